"""The outcome of a retained message at each SUBSCRIBE of one client.

That a message was delivered was recorded. That one was there and was not delivered follows from the
subscription that was recorded and from the message: the one that is retained now, if it is older
than the SUBSCRIBE, or else the newest publication before it. Where neither is known, nothing is
told.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.client_view import ClientView, RetainedView
from mqtt_broker.recorder.recorder import OFFSET_MAX
from mqtt_broker.recorder.search import Fact
from mqtt_broker.topics.names import matches, split_share

# What became of it.
SENT_QOS0: Final = "sent at QoS 0"
ACKNOWLEDGED: Final = "acknowledged"
IN_FLIGHT: Final = "not acknowledged"
WAITING: Final = "waiting"
DROPPED: Final = "dropped"
ON_ITS_WAY: Final = "on its way"
SENT: Final = "sent"  # what followed is not known
# Why it was not delivered.
HANDLING_2: Final = "Retain Handling 2 asks for none"
HANDLING_1: Final = "Retain Handling 1, and the subscription existed already"
SHARED: Final = "shared subscriptions get no retained messages"
EXPIRED: Final = "it had expired"
OWN: Final = "it is its own message, and the subscription says No Local"
DENIED: Final = "the SUBSCRIBE was denied"
NOT_KNOWN: Final = "why is not known"
DELIVERED: Final = (SENT_QOS0, ACKNOWLEDGED, IN_FLIGHT, WAITING, DROPPED, ON_ITS_WAY, SENT)


class RetainedOutcome:
    """A retained message, and what became of it at one SUBSCRIBE of a client."""

    __slots__ = (
        "acknowledged_ms",
        "dropped",
        "message",
        "qos",
        "state",
        "subscription",
        "topic",
    )

    def __init__(self, topic: str, subscription: Fact, message: RetainedView | None) -> None:
        self.topic = topic
        self.subscription = subscription  # granted, or refused
        self.message = message  # None: by whom and when it was published is not known
        self.state = NOT_KNOWN
        self.qos = 0
        self.dropped: Fact | None = None
        self.acknowledged_ms = 0

    def conclude(self, state: str, qos: int = 0, acknowledged_ms: int = 0) -> None:
        """Set what became of it."""
        self.state = state
        self.qos = qos
        self.acknowledged_ms = acknowledged_ms

    def drop(self, dropped: Fact) -> None:
        """Note that it was dropped."""
        self.state = DROPPED
        self.dropped = dropped

    def identify(self, message: RetainedView | None) -> None:
        """Set which message it was."""
        self.message = message

    @property
    def at_ms(self) -> int:
        """The time of the SUBSCRIBE."""
        return self.subscription.at_ms

    @property
    def is_delivered(self) -> bool:
        """Tell whether it was given to the client, whatever came of that."""
        return self.state in DELIVERED

    @property
    def went_wrong(self) -> bool:
        """Tell whether the client did not get it."""
        return self.state == DROPPED or not self.is_delivered

    def is_of(self, publication: Fact) -> bool:
        """Tell whether it is one of the messages of a publication."""
        message = self.message
        return message is not None and publication.covers(message.received_ms)


class RetainedHistory:
    """The facts about one client and one topic, from which the outcomes follow."""

    def __init__(
        self, topic: str, view: ClientView, events: list[Fact], publications: list[Fact]
    ) -> None:
        self._topic = topic
        self._view = view
        self._events = sorted(events, key=lambda fact: fact.at_ms)
        self._publications = publications

    def outcomes(self, since_ms: int) -> list[RetainedOutcome]:
        """Return the outcomes at the SUBSCRIBEs since a time, the oldest first.

        Of several filters of one SUBSCRIBE, those are told that brought the message, if any did.
        """
        found: list[RetainedOutcome] = []
        for fact in self._events:
            if fact.at_ms >= since_ms and _is_subscribe(fact) and covers(fact.topic, self._topic):
                outcome = self._outcome_at(fact)
                if outcome is not None:
                    found.append(outcome)
        brought = {outcome.at_ms for outcome in found if outcome.is_delivered}
        return [one for one in found if one.is_delivered or one.at_ms not in brought]

    def _outcome_at(self, subscription: Fact) -> RetainedOutcome | None:
        """Return what became of the message at one SUBSCRIBE; None: there was none."""
        message = self._standing_at(subscription.at_ms)
        outcome = RetainedOutcome(self._topic, subscription, message)
        state = _state_without(subscription)
        sent = None if state else self._sent_at(subscription)
        if message is None and sent is None:
            return None
        if state:
            outcome.conclude(state)
        elif sent is not None:
            self._follow(outcome, sent)
        elif message is not None:
            outcome.conclude(*self._without_record(subscription, message))
        return outcome

    def _standing_at(self, at_ms: int) -> RetainedView | None:
        """Return the message that was retained at a time, if that is certain."""
        newest = self._view.retained
        if newest is not None and newest.received_ms <= at_ms:
            return newest
        before = [
            fact
            for fact in self._publications
            if fact.code & kinds.RETAIN_BIT and fact.at_ms <= at_ms and fact.topic == self._topic
        ]
        last = max(before, key=lambda fact: fact.until_ms, default=None)
        if last is None or not last.size or last.until_ms > at_ms:
            return None
        if last.count > 1 and newest is None:
            return None  # the last one of the run may have removed it
        return RetainedView(last.client, last.code & kinds.QOS_BITS, last.until_ms, 0)

    def _sent_at(self, subscription: Fact) -> Fact | None:
        """Return the delivery that a SUBSCRIBE caused."""
        for fact in self._events:
            if fact.at_ms > subscription.at_ms and fact.kind == kinds.SUBSCRIBED:
                if covers(fact.topic, self._topic):
                    return None  # what follows is of that one
            if fact.at_ms >= subscription.at_ms and fact.kind == kinds.RETAINED:
                if fact.topic == self._topic:
                    return fact
        return None

    def _without_record(self, subscription: Fact, message: RetainedView) -> tuple[str, int]:
        """Return the state and the QoS of a message of which no delivery was recorded."""
        if message.expires_ms and message.expires_ms <= subscription.at_ms:
            return EXPIRED, 0
        if subscription.code & kinds.NO_LOCAL_BIT and message.publisher == self._view.client_id:
            return OWN, 0
        if subscription.topic in self._view.retained_filters:
            return ON_ITS_WAY, 0
        is_one_of_many = any(
            fact.kind == kinds.RETAINED
            and fact.code & kinds.MANY_BIT
            and fact.at_ms >= subscription.at_ms
            for fact in self._events
        )
        if is_one_of_many and message is self._view.retained:
            qos = min(message.qos, subscription.code & kinds.QOS_BITS)
            return SENT if qos else SENT_QOS0, qos
        return NOT_KNOWN, 0

    def _follow(self, outcome: RetainedOutcome, sent: Fact) -> None:
        """Find out what became of a message that was delivered."""
        received_ms = self._identify(outcome, sent)
        for fact in self._events:
            if fact.kind == kinds.DROPPED and fact.topic == self._topic:
                if fact.at_ms >= sent.at_ms and fact.covers(received_ms):
                    outcome.drop(fact)
                    return
        view, key = self._view, (self._topic, received_ms)
        qos = sent.code & kinds.QOS_BITS
        if not qos:
            outcome.conclude(SENT_QOS0)
        elif key in view.in_flight:
            outcome.conclude(IN_FLIGHT, qos)
        elif key in view.waiting:
            outcome.conclude(WAITING, qos)
        elif not view.is_known or not view.is_whole or self._has_ended_since(sent.at_ms):
            outcome.conclude(SENT, qos)
        else:
            outcome.conclude(ACKNOWLEDGED, qos, self._acknowledged_ms(sent, received_ms))

    def _acknowledged_ms(self, sent: Fact, received_ms: int) -> int:
        """Return when it was acknowledged, if only one run can have it."""
        found = [
            fact
            for fact in self._events
            if fact.kind == kinds.ACKNOWLEDGED
            and fact.until_ms >= sent.at_ms
            and fact.covers(received_ms)
        ]
        return found[0].until_ms if len(found) == 1 else 0

    def _identify(self, outcome: RetainedOutcome, sent: Fact) -> int:
        """Return when the message that was delivered was received, and name it, if it is known."""
        received_ms, newest = sent.first_ms, self._view.retained
        if sent.at_ms - received_ms >= OFFSET_MAX:  # no cell holds an age of 24 days and more
            if outcome.message is not None:
                received_ms = outcome.message.received_ms
        elif outcome.message is not None and outcome.message.received_ms != received_ms:
            outcome.identify(None)  # another one stood there when its turn came
        if outcome.message is None and newest is not None and newest.received_ms == received_ms:
            outcome.identify(newest)
        return received_ms

    def _has_ended_since(self, at_ms: int) -> bool:
        return any(
            fact.kind == kinds.SESSION_ENDED and fact.at_ms >= at_ms for fact in self._events
        )


def covers(text: str, topic: str) -> bool:
    """Tell whether a filter, shared or not, matches a topic."""
    shared = split_share(text)
    return matches(text if shared is None else shared[1], topic)


def _is_subscribe(fact: Fact) -> bool:
    return fact.kind == kinds.SUBSCRIBED or (
        fact.kind == kinds.REFUSED and fact.first_ms == kinds.SUBSCRIBE_REFUSED
    )


def _state_without(subscription: Fact) -> str:
    """Say why a SUBSCRIBE brings no retained messages; empty: it brings them."""
    if subscription.kind == kinds.REFUSED:
        return DENIED
    if split_share(subscription.topic) is not None:
        return SHARED
    handling = subscription.code >> kinds.HANDLING_AT & 3
    if handling == 2:
        return HANDLING_2
    return HANDLING_1 if handling == 1 and subscription.code & kinds.EXISTED_BIT else ""


def brought_by(subscription: Fact, events: list[Fact]) -> int:
    """Count the retained messages that a SUBSCRIBE brought, by topics that its filter matches.

    They are those until the client subscribes to the same filter again.
    """
    again = min(
        (
            fact.at_ms
            for fact in events
            if fact.kind == kinds.SUBSCRIBED
            and fact.topic == subscription.topic
            and fact.at_ms > subscription.at_ms
        ),
        default=1 << 62,
    )
    return sum(
        fact.count
        for fact in events
        if fact.kind == kinds.RETAINED
        and subscription.at_ms <= fact.at_ms < again
        and (not fact.topic or matches(subscription.topic, fact.topic))
    )

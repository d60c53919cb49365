"""Outcomes of publications at one client, from what was recorded and what is there now.

Nothing is guessed. That a message is in flight or waits is looked up. That it was dropped, queued
or lost with its session was recorded. What was sent and is none of these was acknowledged; when, is
told only if a single run of acknowledgements can have it.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.client_view import ClientView
from mqtt_broker.recorder.search import Fact
from mqtt_broker.recorder.segments import Receivers

# The states of a message at a client.
SENT_QOS0: Final = "sent at QoS 0"  # nobody acknowledges it
AWAY_QOS0: Final = "not kept"  # QoS 0, while the client was away
DROPPED: Final = "dropped"
PARTLY_DROPPED: Final = "partly dropped"
IN_FLIGHT: Final = "not acknowledged"
WAITING: Final = "waiting"
ACKNOWLEDGED: Final = "acknowledged"
LOST: Final = "lost with its session"
OTHER_MEMBER: Final = "given to another member"
WAITS_FOR_MEMBER: Final = "waits for a member"
EXPIRED: Final = "expired"  # and still in the queue
OWN: Final = "its own message"
UNMATCHED: Final = "not matched"
NOT_KNOWN: Final = "not known"


class Evidence:
    """The facts about one client, by kind."""

    __slots__ = (
        "acknowledged",
        "back_to_ms",
        "connections",
        "dropped",
        "given",
        "now_ms",
        "of_groups",
        "queued",
        "refused",
        "resent",
        "sent",
        "sessions",
        "takeovers",
    )

    def __init__(
        self,
        facts: list[Fact],
        back_to_ms: int,
        now_ms: int = 0,
        of_groups: list[Fact] | None = None,
    ) -> None:
        self.back_to_ms = back_to_ms  # everything since is there
        self.now_ms = now_ms
        self.of_groups = of_groups or []  # what its groups queued, dropped and gave to members
        newest_last = facts[::-1]  # they were found newest first
        facts = sorted(newest_last, key=lambda fact: fact.at_ms)
        self.queued = _of(facts, kinds.QUEUED)
        self.sent = _of(facts, kinds.SENT)
        self.resent = _of(facts, kinds.RESENT)
        self.acknowledged = _of(facts, kinds.ACKNOWLEDGED)
        self.given = _of(facts, kinds.GIVEN)
        self.dropped = _of(facts, kinds.DROPPED)
        self.sessions = _of(facts, kinds.SESSION_ENDED)
        self.takeovers = _of(facts, kinds.TAKEN_OVER)
        self.refused = _of(facts, kinds.NOT_CONNECTED)
        self.connections = [
            fact for fact in facts if fact.kind in (kinds.CONNECTED, kinds.DISCONNECTED)
        ]

    def was_online(self, ms: int, view: ClientView) -> bool | None:
        """Tell whether the client was connected at a time; None: not known."""
        if any(fact.at_ms == ms for fact in self.connections):
            return None  # in the same millisecond
        before = [fact for fact in self.connections if fact.at_ms < ms]
        if before:
            return before[-1].kind == kinds.CONNECTED
        if ms < self.back_to_ms:
            return None
        if self.connections:
            return self.connections[0].kind == kinds.DISCONNECTED
        return view.is_online

    def refused_since(self, ms: int) -> Fact | None:
        """Return the newest CONNECT that was refused, if none was accepted since."""
        refused = _last(self.refused)
        if refused is None or refused.at_ms < ms:
            return None
        came = [fact for fact in self.connections if fact.kind == kinds.CONNECTED]
        return None if came and came[-1].at_ms >= refused.at_ms else refused

    def takeover_between(self, since_ms: int, until_ms: int) -> Fact | None:
        """Return the newest takeover between two times."""
        return _last([fact for fact in self.takeovers if since_ms <= fact.at_ms <= until_ms])

    def away_since(self, ms: int) -> int:
        """Return since when the client was away at a time; 0: not known."""
        before = [fact for fact in self.connections if fact.at_ms <= ms]
        if before and before[-1].kind == kinds.DISCONNECTED:
            return before[-1].at_ms
        return 0


def _of(facts: list[Fact], kind: int) -> list[Fact]:
    return [fact for fact in facts if fact.kind == kind]


class Outcome:
    """A publication, and what became of it at one client."""

    __slots__ = (
        "acknowledged_ms",
        "away_since_ms",
        "dropped",
        "ended",
        "expired_ms",
        "filter",
        "given_count",
        "given_to",
        "granted",
        "group",
        "open_count",
        "publication",
        "queued",
        "refused",
        "resent_ms",
        "sent_ms",
        "state",
        "takeover",
    )

    def __init__(self, publication: Fact) -> None:
        self.publication = publication
        self.state = NOT_KNOWN
        self.filter = ""  # that matched
        self.granted = 0
        self.group = ""  # the shared subscription that it came by
        self.given_count = 0  # of its messages, that the client was given for the group
        self.queued: Fact | None = None
        self.away_since_ms = 0
        self.sent_ms = 0  # from the queue
        self.resent_ms = 0
        self.acknowledged_ms = 0
        self.dropped: Fact | None = None
        self.open_count = 0  # in flight, or waiting
        self.given_to = ""  # another member of the shared subscription
        self.ended: Fact | None = None  # the session that it was lost with
        self.expired_ms = 0  # of a message that waits in vain
        self.refused: Fact | None = None  # a CONNECT, while the message waited
        self.takeover: Fact | None = None  # before it was sent again

    @property
    def qos(self) -> int:
        """The QoS at which it goes to the client."""
        return min(self.granted, self.publication.code & kinds.QOS_BITS)

    def find(self, view: ClientView, known: Evidence) -> None:
        """Find out what became of it at a client."""
        publication = self.publication
        receivers = publication.receivers
        if receivers is None or not self._find_match(receivers, view):
            self.state = UNMATCHED
            return
        is_held_back = self.granted & 4 and publication.client == view.client_id
        self.granted &= kinds.QOS_BITS
        if is_held_back:
            self.state = OWN
        elif not self.group:
            self._follow(view, known)
        elif publication.at_ms >= known.back_to_ms:
            self._follow_shared(view, known)

    def _find_match(self, receivers: Receivers, view: ClientView) -> bool:
        if view.client_id in receivers.clients:
            index = receivers.clients.index(view.client_id)
            self.filter = receivers.filters[index]
            self.granted = receivers.grants[index]
            return True
        for subscription in view.subscriptions:
            if subscription.filter in receivers.groups:
                self.filter = self.group = subscription.filter
                self.granted = subscription.qos
                return True
        return False

    def _follow_shared(self, view: ClientView, known: Evidence) -> None:
        """Follow a message of a shared subscription, if this member was given it.

        When a member goes, what it has not acknowledged is another member's.
        """
        publication = self.publication
        self.given_count = sum(
            fact.count
            for fact in known.given
            if fact.topic == publication.topic and _overlap(fact, publication)
        )
        if not self.given_count:
            self.state = self._find_state_in_group(view.client_id, known)
            return
        self._follow(view, known)
        has_left = any(
            fact.kind == kinds.DISCONNECTED and fact.at_ms >= publication.at_ms
            for fact in known.connections
        )
        if has_left and self.state == ACKNOWLEDGED:
            self.state = NOT_KNOWN
            self.acknowledged_ms = 0

    def _find_state_in_group(self, client_id: str, known: Evidence) -> str:
        """Find out what became of a message that this member was not given."""
        publication = self.publication
        facts = [
            fact
            for fact in known.of_groups
            if fact.topic == publication.topic and _overlap(fact, publication)
        ]
        own = [fact for fact in facts if fact.client == self.group]
        dropped = [fact for fact in _of(own, kinds.DROPPED) if fact.other == publication.client]
        others = [fact for fact in _of(facts, kinds.GIVEN) if fact.client != client_id]
        if dropped:
            self.dropped = dropped[-1]
            return _dropped_state(dropped[-1], publication)
        if others:
            self.given_to = others[-1].client
            return OTHER_MEMBER
        self.queued = _last(_of(own, kinds.QUEUED))
        return NOT_KNOWN if self.queued is None else WAITS_FOR_MEMBER

    def _follow(self, view: ClientView, known: Evidence) -> None:
        """Follow a message from its publication to its end."""
        publication = self.publication
        self.dropped = _last(
            [
                fact
                for fact in known.dropped
                if fact.topic == publication.topic
                and fact.other == publication.client
                and _overlap(fact, publication)
            ]
        )
        if not self.qos and not view.queues_qos0:
            self._follow_qos0(view, known)
            return
        self.queued = _last(
            [
                fact
                for fact in known.queued
                if fact.topic == publication.topic and _overlap(fact, publication)
            ]
        )
        self.resent_ms = _time_of(known.resent, publication)
        if self.queued is not None:
            self.sent_ms = _time_of(known.sent, publication)
            if self.queued.code == kinds.AWAY:
                self.away_since_ms = known.away_since(publication.at_ms)
        self.state = self._find_state(view, known)
        if self.resent_ms:
            self.takeover = known.takeover_between(publication.at_ms, self.resent_ms)
        if self.state in (WAITING, EXPIRED) and not view.is_online:
            self.refused = known.refused_since(publication.at_ms)
        if self.state not in (IN_FLIGHT, ACKNOWLEDGED):
            self.sent_ms = self.resent_ms = 0  # of those before and behind it

    def _follow_qos0(self, view: ClientView, known: Evidence) -> None:
        publication = self.publication
        if self.dropped is not None:
            self.state = _dropped_state(self.dropped, publication)
            return
        begin = known.was_online(publication.at_ms, view)
        changed = any(
            publication.at_ms <= fact.at_ms <= publication.until_ms for fact in known.connections
        )
        if begin is None or changed or publication.at_ms < known.back_to_ms:
            self.state = NOT_KNOWN
        elif begin:
            self.state = SENT_QOS0
        else:
            self.state = AWAY_QOS0
            self.away_since_ms = known.away_since(publication.at_ms)

    def _find_state(self, view: ClientView, known: Evidence) -> str:
        """Find the state of a message at QoS 1 or 2."""
        publication = self.publication
        for held, state in ((view.in_flight, IN_FLIGHT), (view.waiting, WAITING)):
            self.open_count = _open(held, publication.topic, publication)
            if self.open_count:
                return self._waiting_state(view, known) if state == WAITING else state
        if self.dropped is not None:
            return _dropped_state(self.dropped, publication)
        if not view.is_whole or publication.at_ms < known.back_to_ms:
            return NOT_KNOWN
        ended = [fact for fact in known.sessions if fact.at_ms >= publication.at_ms]
        if ended:
            self.ended = ended[0]
            return _state_after(ended[0])
        if not view.is_known:
            return NOT_KNOWN
        if self.queued is not None and not self.sent_ms:
            was_sent = any(_overlap(fact, publication) for fact in known.sent)
            return ACKNOWLEDGED if was_sent and not view.waiting_elsewhere else NOT_KNOWN
        self.acknowledged_ms = _time_of(known.acknowledged, publication)
        return ACKNOWLEDGED

    def _waiting_state(self, view: ClientView, known: Evidence) -> str:
        """Tell whether a message that waits has expired: then it is dropped when its turn comes."""
        expires_ms = view.expires.get((self.publication.topic, self.publication.at_ms), 0)
        if 0 < expires_ms <= known.now_ms:
            self.expired_ms = expires_ms
            return EXPIRED
        return WAITING


def outcome_of(publication: Fact, view: ClientView, known: Evidence) -> Outcome:
    """Find out what became of a publication at a client."""
    outcome = Outcome(publication)
    outcome.find(view, known)
    return outcome


def _overlap(fact: Fact, publication: Fact) -> bool:
    """Tell whether a fact is about messages received while these were published."""
    return fact.first_ms <= publication.until_ms and fact.last_ms >= publication.at_ms


def _dropped_state(dropped: Fact, publication: Fact) -> str:
    """Tell whether all of it was dropped. A run of drops may leave out messages between them."""
    is_within = publication.at_ms <= dropped.first_ms and dropped.last_ms <= publication.until_ms
    return DROPPED if is_within and dropped.count >= publication.count else PARTLY_DROPPED


def _state_after(end: Fact) -> str:
    """Return the state of a message whose session has ended with so many left."""
    in_flight, queued = end.first_ms, end.last_ms
    return ACKNOWLEDGED if not in_flight and not queued else LOST


def _open(held: dict[tuple[str, int], int], topic: str, publication: Fact) -> int:
    """Count the messages of a publication that are held."""
    if publication.at_ms == publication.until_ms:
        return held.get((topic, publication.at_ms), 0)
    return sum(
        count
        for (name, ms), count in held.items()
        if name == topic and publication.at_ms <= ms <= publication.until_ms
    )


def _last(facts: list[Fact]) -> Fact | None:
    return facts[-1] if facts else None


def _time_of(facts: list[Fact], publication: Fact) -> int:
    """Return when the one run that can have it ended; 0: there is none, or several can."""
    found = [fact for fact in facts if _overlap(fact, publication)]
    return found[0].until_ms if len(found) == 1 else 0

"""The question why a client did, or did not, get messages of a topic.

An `Inquiry` is answered in steps, so that the broker can do its work between them. The answer has a
sentence for each publication that concerns the client, the facts that they were made from, and the
time from which on the recorder sees everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mqtt_broker.recorder import kinds, outcomes, retained_outcomes, sentences
from mqtt_broker.recorder.client_view import ClientView
from mqtt_broker.recorder.nearest import nearest_filter
from mqtt_broker.recorder.outcomes import Evidence, Outcome, outcome_of
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.retained_outcomes import RetainedHistory, RetainedOutcome, brought_by
from mqtt_broker.recorder.search import Fact, Search
from mqtt_broker.topics.names import is_wildcard, matches, split_share

SENTENCES_MAX: Final = 20
_PUBLICATIONS_MAX: Final = 200
_OUTCOMES_A_STEP: Final = 5
_GROUP_TOPICS_MAX: Final = 20  # of which it is looked up which members got them
_ADVICE: Final = {
    outcomes.IN_FLIGHT: "The broker sent it; look at the device: it did not acknowledge.",
    outcomes.WAITING: "It is sent when the client is connected and acknowledges what it has.",
    outcomes.EXPIRED: "Its Message Expiry Interval is over: it is dropped when its turn comes.",
    outcomes.WAITS_FOR_MEMBER: "It is given to the next member that connects.",
    outcomes.AWAY_QOS0: "Publish at QoS 1 and subscribe at QoS 1, so that it waits for the client.",
    outcomes.SENT_QOS0: "If it did not arrive, the network lost it: use QoS 1.",
}
_LOST_ADVICE: Final = {
    kinds.EXPIRED: "Raise the client's Session Expiry Interval, or let it connect sooner.",
    kinds.REPLACED: "Let the client connect without Clean Start, so that it keeps its session.",
    kinds.NOT_KEPT: "Let the session outlive its connections: set a Session Expiry Interval.",
}
_DROP_ADVICE: Final = {
    "slow_reader": "The client reads more slowly than it is sent to; see the slow subscribers.",
    "queue_full": "Raise queue_messages_max or queue_bytes_max, or let the client connect sooner.",
    "expired": "Its Message Expiry Interval was over before it could be sent.",
    "packet_too_large": "The client's Maximum Packet Size is smaller than the message.",
    "not_authorized": "No rule lets the client read this topic any more.",
    "no_member": "No member of the shared subscription was online, and QoS 0 does not wait.",
    "not_stored": "The database did not take it; its publisher was told, and may send it again.",
    "queue_cleared": "An operator cleared the queue of the client.",
}


_RETAINED_ADVICE: Final = {
    retained_outcomes.HANDLING_2: "Subscribe with Retain Handling 0 to get retained messages.",
    retained_outcomes.HANDLING_1: "With Retain Handling 0 every SUBSCRIBE brings them again.",
    retained_outcomes.SHARED: "Subscribe to the filter without $share to get retained messages.",
    retained_outcomes.DENIED: "Change the rule, or subscribe to topics that the client may read.",
    retained_outcomes.IN_FLIGHT: _ADVICE[outcomes.IN_FLIGHT],
    retained_outcomes.WAITING: _ADVICE[outcomes.WAITING],
}


@dataclass(slots=True)
class Answer:
    """The answer to a question; times are milliseconds of Unix time."""

    sentence: str
    sees_back_to_ms: int
    sentences: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    advice: str = ""
    is_cut: bool = False  # there was more than one answer may hold


class Inquiry:
    """Answers why a client did or did not get messages, in steps."""

    def __init__(
        self,
        recorder: Recorder,
        look: Callable[[str], ClientView],
        topic: str,
        since_ms: int,
        now_ms: int,
    ) -> None:
        self._recorder = recorder
        self._look = look
        self._view = look(topic)
        self._topic = topic  # a topic, a filter, or empty: any
        self._since_ms = since_ms
        self._now_ms = now_ms
        self._clock = sentences.clock_for(now_ms)
        self._publications = Search(since_ms, _PUBLICATIONS_MAX)
        self._events = Search(0)
        self._refusals = Search(since_ms, _PUBLICATIONS_MAX)
        self._of_groups = Search(since_ms)
        self.outcomes: list[Outcome] = []  # of every publication that was found, the oldest first
        self.answer: Answer | None = None

    def steps(self) -> Iterator[None]:
        """Look into the rings; after the last step `answer` is there."""
        recorder = self._recorder
        traffic, evidence = recorder.traffic, recorder.evidence
        recorder.settle()
        yield from self._find_publications()
        # Behind the publications that were found and before what was done with them: so each of
        # them was acknowledged, is in flight, or waits, and if it was, that is recorded.
        self._view = self._look(self._topic)
        recorder.settle()
        client_id = self._view.client_id
        yield from self._events.events(traffic, client_id)
        yield from self._events.evidence_of(evidence.rings_of(client_id), client_id)
        yield from self._find_in_groups()
        yield from self._follow()
        self.answer = self._conclude()

    def _find_in_groups(self) -> Iterator[None]:
        """Find what the shared subscriptions of the client did with the publications."""
        own = {one.filter for one in self._view.subscriptions}
        groups: set[str] = set()
        topics: set[str] = set()
        for fact in self._publications.found:
            shared = own.intersection(() if fact.receivers is None else fact.receivers.groups)
            if shared:
                groups |= shared
                topics.add(fact.topic)
        recorder, search = self._recorder, self._of_groups
        for topic in sorted(topics)[:_GROUP_TOPICS_MAX]:
            yield from search.given(recorder.traffic, topic)
        for group in groups:
            yield from search.events(recorder.traffic, group)
            yield from search.evidence_of(recorder.evidence.rings_of(group), group)

    def _find_publications(self) -> Iterator[None]:
        """Find what was published, and who was refused to."""
        recorder, view = self._recorder, self._view
        traffic, evidence = recorder.traffic, recorder.evidence
        topic = self._topic
        if topic and not is_wildcard(topic):
            yield from self._publications.publications(traffic, None, topic)
            yield from self._refusals.refusals(
                [evidence.common, evidence.strangers, *evidence.shares.values()], topic
            )
        elif topic:
            yield from self._publications.publications(
                traffic, lambda name: matches(topic, name), ""
            )
        else:
            groups = [one.filter for one in view.subscriptions if one.filter.startswith("$share/")]
            yield from self._publications.publications_to(traffic, view.client_id, groups)

    @property
    def sees_back_to_ms(self) -> int:
        """The time from which on nothing about this client was overwritten."""
        recorder = self._recorder
        return max(
            recorder.started_ms,
            recorder.traffic.begins_ms,
            recorder.evidence.sees_back_to_ms(self._view.client_id),
        )

    def _known_back_to_ms(self) -> int:
        """Return the time from which on everything that was found is whole."""
        back_to_ms = self.sees_back_to_ms
        if self._events.is_cut:  # it has found the newest
            back_to_ms = max([back_to_ms] + [fact.at_ms for fact in self._events.found[-1:]])
        return back_to_ms

    def _follow(self) -> Iterator[None]:
        """Find out what became of each publication."""
        known = Evidence(
            self._events.found, self._known_back_to_ms(), self._now_ms, self._of_groups.found[::-1]
        )
        yield
        found = sorted(self._publications.found, key=lambda fact: fact.at_ms)
        for place, fact in enumerate(found, 1):
            self.outcomes.append(outcome_of(fact, self._view, known))
            if place % _OUTCOMES_A_STEP == 0:
                yield

    def _conclude(self) -> Answer:
        back_to_ms = self._known_back_to_ms()
        told = self.outcomes
        refusals = self._refused_here()
        retained = self._retained_here()
        said = {id(one.subscription) for one in retained}
        refusals = [fact for fact in refusals if id(fact) not in said]
        told = self._select(told)
        lines = self._lines(told, refusals, retained)
        sentence, advice = self._choose(told, refusals, retained)
        return Answer(
            sentence,
            back_to_ms,
            sentences=lines[-SENTENCES_MAX:],
            facts=self._facts(told, [*refusals, *(one.subscription for one in retained)]),
            advice=advice,
            is_cut=self._publications.is_cut or len(lines) > SENTENCES_MAX,
        )

    def _select(self, told: list[Outcome]) -> list[Outcome]:
        """Keep one of the publications that matched no subscription of the client: the newest."""
        if not self._topic:
            return told
        matched = [one for one in told if one.state != outcomes.UNMATCHED]
        return matched or told[-1:]

    def _refused_here(self) -> list[Fact]:
        """Return the refusals of the topic, and those of the client itself."""
        topic, client_id = self._topic, self._view.client_id
        own = [
            fact
            for fact in self._events.found
            if fact.kind == kinds.REFUSED
            and fact.until_ms >= self._since_ms
            and (not topic or _concerns(fact, topic))
        ]
        others = [fact for fact in self._refusals.found if fact.client != client_id]
        return sorted(own + others, key=lambda fact: fact.at_ms)

    def _retained_here(self) -> list[RetainedOutcome]:
        """Return what became of the retained message of the topic at the client's SUBSCRIBEs."""
        if not self._topic or is_wildcard(self._topic):
            return []
        history = RetainedHistory(
            self._topic, self._view, self._events.found, self._publications.found
        )
        return history.outcomes(self._since_ms)

    def _brought(self) -> list[tuple[int, str]]:
        """Say how many retained messages each SUBSCRIBE brought, if it is asked about several."""
        if self._topic and not is_wildcard(self._topic):
            return []
        events, clock = self._events.found, self._clock
        found: list[tuple[int, str]] = []
        for fact in events:
            if fact.kind != kinds.SUBSCRIBED or fact.at_ms < self._since_ms:
                continue
            if not self._topic or _concerns(fact, self._topic):
                count = brought_by(fact, events)
                if count:
                    found.append((fact.at_ms, sentences.brought_sentence(fact, count, clock)))
        return found

    def _lines(
        self, told: list[Outcome], refusals: list[Fact], retained: list[RetainedOutcome]
    ) -> list[str]:
        """Write a sentence for each publication and refusal, the oldest first."""
        clock, client_id = self._clock, self._view.client_id
        lines = [
            (one.publication.at_ms, sentences.sentence_of(one, client_id, clock)) for one in told
        ]
        lines += [(fact.at_ms, sentences.refusal_sentence(fact, clock)) for fact in refusals]
        lines += [
            (one.at_ms, sentences.retained_sentence(one, client_id, clock)) for one in retained
        ]
        lines += self._brought()
        lines.sort(key=lambda line: line[0])
        return [text for _, text in lines]

    def _choose(
        self, told: list[Outcome], refusals: list[Fact], retained: list[RetainedOutcome]
    ) -> tuple[str, str]:
        """Return the sentence that answers, and an advice."""
        chosen = _most_telling(told)
        if chosen is not None and chosen.state == outcomes.UNMATCHED:
            chosen = None
        if retained and _says_more(retained[-1], chosen):
            newest = retained[-1]
            said = sentences.retained_sentence(newest, self._view.client_id, self._clock)
            return said, _RETAINED_ADVICE.get(newest.state, "")
        if refusals and (chosen is None or refusals[-1].at_ms > chosen.publication.until_ms):
            return sentences.refusal_sentence(refusals[-1], self._clock), _DENIED
        if chosen is None:
            return self._nothing(len(told) > 0)
        said = sentences.sentence_of(chosen, self._view.client_id, self._clock)
        return said, _advice_for(chosen)

    def _nothing(self, is_published: bool) -> tuple[str, str]:
        """Say why there is nothing to tell: no client, no subscription, or no publication."""
        view, topic, clock = self._view, self._topic, self._clock
        name = sentences.quoted(view.client_id)
        since = clock(max(self._since_ms, self.sees_back_to_ms))
        if not view.is_known:
            last = [fact for fact in self._events.found if fact.kind in _CONNECTION_KINDS]
            if last:
                newest = max(last, key=lambda fact: fact.at_ms)
                return sentences.connection_sentence(newest, clock), _NO_SESSION
            return f"there is no session of {name}", _NO_SESSION
        if topic and not any(_covers(one.filter, topic) for one in view.subscriptions):
            filters = [one.filter for one in view.subscriptions]
            nearest = nearest_filter(filters, topic)
            return sentences.no_match_sentence(view.client_id, topic, nearest), _SUBSCRIBE
        if is_published:
            return (
                f"{sentences.quoted(topic)} was published before {name} had a subscription that "
                "matches"
            ), ""
        about = f"to {sentences.quoted(topic)}" if topic else f"that {name} subscribes to"
        return f"nothing was published {about} since {since}", ""

    def _facts(self, told: list[Outcome], refusals: list[Fact]) -> list[Fact]:
        """Return publications, refusals, and what happened to them at the client."""
        facts = [one.publication for one in told] + refusals
        told_already = {id(fact) for fact in facts}
        begin = min([fact.at_ms for fact in facts], default=self._now_ms)
        facts += [
            fact
            for fact in reversed(self._events.found)  # in the order in which they happened
            if fact.kind != kinds.REFUSED
            and id(fact) not in told_already
            and fact.until_ms >= begin - _BEFORE_MS
        ]
        facts.sort(key=lambda fact: fact.at_ms)
        return facts[-_FACTS_MAX:]


_BEFORE_MS: Final = 600_000
_FACTS_MAX: Final = 500
_CONNECTION_KINDS: Final = (
    kinds.CONNECTED,
    kinds.DISCONNECTED,
    kinds.TAKEN_OVER,
    kinds.NOT_CONNECTED,
    kinds.SESSION_ENDED,
)
_DENIED: Final = "Change the rule, or publish to a topic that the client may use."
_NO_SESSION: Final = "Look at the client's connection first: see its events."
_SUBSCRIBE: Final = "Compare the topic and the filter, level by level."
_RECEIVED: Final = (outcomes.ACKNOWLEDGED, outcomes.SENT_QOS0)
# What is asked about most, first: what went wrong, then what is under way, then what went well.
_TELLING: Final = (
    (
        outcomes.DROPPED,
        outcomes.PARTLY_DROPPED,
        outcomes.AWAY_QOS0,
        outcomes.LOST,
        outcomes.EXPIRED,
    ),
    (outcomes.IN_FLIGHT, outcomes.WAITING, outcomes.WAITS_FOR_MEMBER),
    (outcomes.NOT_KNOWN, outcomes.OTHER_MEMBER, outcomes.OWN),
    (outcomes.ACKNOWLEDGED, outcomes.SENT_QOS0),
    (outcomes.UNMATCHED,),
)


def _most_telling(told: list[Outcome]) -> Outcome | None:
    """Return the newest of those that went wrong or, if none did, of the others."""
    for states in _TELLING:
        found = [one for one in told if one.state in states]
        if found:
            return found[-1]
    return None


def _says_more(retained: RetainedOutcome, chosen: Outcome | None) -> bool:
    """Tell whether what became of the retained message answers better than a publication."""
    if chosen is None:
        return True
    if retained.at_ms < chosen.publication.until_ms or not retained.is_of(chosen.publication):
        return False
    return not retained.went_wrong or chosen.state not in _RECEIVED


def _advice_for(outcome: Outcome) -> str:
    if outcome.dropped is not None:
        return _DROP_ADVICE.get(kinds.DROP_REASONS[outcome.dropped.code], "")
    if outcome.ended is not None:
        return _LOST_ADVICE.get(outcome.ended.code, "")
    if outcome.refused is not None:
        return "Let the client connect: see why its CONNECT was refused."
    return _ADVICE.get(outcome.state, "")


def _covers(text: str, topic: str) -> bool:
    """Tell whether a subscription matches a topic, or is the filter that was asked about."""
    shared = split_share(text)
    if shared is not None:
        text = shared[1]
    return text == topic or (not is_wildcard(topic) and matches(text, topic))


def _concerns(refusal: Fact, topic: str) -> bool:
    """Tell whether a refusal is about a topic, or about a filter that would match it."""
    return refusal.topic == topic or matches(topic, refusal.topic) or matches(refusal.topic, topic)

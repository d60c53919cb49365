"""The question why a client did, or did not, get one message: by its publisher and its time.

What is found are runs of messages that were published within a second: the name of a message finds
the run that it is one of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mqtt_broker.recorder import kinds, outcomes, sentences
from mqtt_broker.recorder.client_view import ClientView
from mqtt_broker.recorder.inquiry import Inquiry
from mqtt_broker.recorder.message_ids import MessageName, name_of
from mqtt_broker.recorder.outcomes import Outcome
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.retained_outcomes import RetainedOutcome
from mqtt_broker.recorder.search import FACTS_MAX, Fact, Search
from mqtt_broker.topics.names import is_wildcard, matches

_AROUND_MS: Final = 60_000  # that the nearest message is searched in
_ADVICE: Final = (
    "The time is that of the broker, in UTC: name one of the messages that --facts shows."
)


class MessageInquiry(Inquiry):
    """Answers why a client did or did not get one message, in steps."""

    def __init__(
        self,
        recorder: Recorder,
        look: Callable[[str], ClientView],
        topic: str,
        name: MessageName,
        now_ms: int,
    ) -> None:
        since_ms, until_ms = name.since_ms - _AROUND_MS, name.until_ms + _AROUND_MS
        super().__init__(recorder, look, topic, since_ms, now_ms)
        self._name = name
        self._publications = Search(since_ms, FACTS_MAX, until_ms)
        self._of_publisher = Search(since_ms, FACTS_MAX, until_ms)
        self._is_found = False

    def _find_publications(self) -> Iterator[None]:
        recorder, topic, publisher = self._recorder, self._topic, self._name.publisher
        if publisher and (not topic or is_wildcard(topic)):
            yield from self._publications.publications_by(recorder.traffic, publisher)
        else:
            yield from super()._find_publications()
        if publisher:
            rings = recorder.evidence.rings_of(publisher)
            yield from self._of_publisher.evidence_of(rings, publisher)
        self._choose_publications()

    def _choose_publications(self) -> None:
        """Keep the publications that have the message or, if none has, the nearest one."""
        name = self._name
        found = [fact for fact in self._publications.found if self._may_be(fact)]
        exact = [fact for fact in found if not name.distance(fact)]
        self._is_found = bool(exact)
        self._publications.keep(exact or sorted(found, key=name.distance)[:1])
        topics = {fact.topic for fact in exact}
        if len(topics) == 1:
            self._topic = exact[0].topic

    def _may_be(self, publication: Fact) -> bool:
        topic = self._topic
        return self._name.is_by(publication.client) and (
            not topic or publication.topic == topic or matches(topic, publication.topic)
        )

    def _select(self, told: list[Outcome]) -> list[Outcome]:
        return told if self._is_found else []

    def _refused_here(self) -> list[Fact]:
        """Return refusals of the message, and the client's own of subscriptions to its topic."""
        name = self._name
        refused = [
            fact
            for fact in [*self._of_publisher.found, *self._refusals.found]
            if fact.kind == kinds.REFUSED
            and fact.first_ms == kinds.PUBLISH_REFUSED
            and self._may_be(fact)
            and not name.distance(fact)
        ]
        if self._is_found and self._topic:
            own = super()._refused_here()
            refused += [fact for fact in own if fact.first_ms == kinds.SUBSCRIBE_REFUSED]
        unique = {(fact.at_ms, fact.client, fact.topic): fact for fact in refused}
        return sorted(unique.values(), key=lambda fact: fact.at_ms)

    def _retained_here(self) -> list[RetainedOutcome]:
        if not self._is_found:
            return []
        found = self._publications.found
        return [one for one in super()._retained_here() if any(one.is_of(fact) for fact in found)]

    def _choose(
        self, told: list[Outcome], refusals: list[Fact], retained: list[RetainedOutcome]
    ) -> tuple[str, str]:
        if not told and not refusals:
            return self._not_found(), _ADVICE
        is_unmatched = all(one.state == outcomes.UNMATCHED for one in told)
        if told and is_unmatched and not self._topic and not refusals:  # of several topics
            return sentences.sentence_of(told[-1], self._view.client_id, self._clock), ""
        return super()._choose(told, refusals, retained)

    def _not_found(self) -> str:
        """Say that there is no such message, and which is nearest."""
        back_to_ms = self.sees_back_to_ms
        said = f"no message {sentences.quoted(self._name.text)} is recorded"
        if self._name.since_ms < back_to_ms:
            return f"{said}: the recorder sees back to {self._clock(back_to_ms)}"
        for fact in self._publications.found:
            nearest = f"nearest is {sentences.quoted(name_of(fact))}"
            return f"{said}; {nearest}, to {sentences.quoted(fact.topic)}"
        return said

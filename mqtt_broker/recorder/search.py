"""Find cells: by topic, by client, by who a topic matched; the newest first.

A number is four bytes, and a backward search for four bytes in a segment takes less than a
millisecond, so nothing is indexed while it is written. A search is a generator: each step is a
share of a turn, and what it finds is in `found`. A segment that is reused between two steps is left
out from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.segments import (
    EVENT,
    EVIDENCE,
    EVIDENCE_CELL,
    NUMBERS,
    PUBLICATION,
    ROUTE_TAG,
    TOPIC_TAG,
    TRAFFIC_CELL,
    Receivers,
    Segment,
    SegmentRing,
)

FACTS_MAX: Final = 2_000  # of one search
_FOREVER_MS: Final = 1 << 62
_FEW: Final = 4  # numbers that are searched for one by one; of more, every cell is looked at
_CELLS_A_STEP: Final = 500
_NAMES_A_STEP: Final = 1_000
_TOPIC_AT: Final = 4  # in a publication
_PUBLISHER_AT: Final = 8
_ROUTE_AT: Final = 12
_CLIENT_AT: Final = 4  # in an event, and in evidence
_ABOUT_AT: Final = 8  # the topic in evidence
_EVENT_TOPIC_AT: Final = 20


class Fact:
    """A cell, with its names in place of numbers. Times are milliseconds of Unix time."""

    __slots__ = (
        "at_ms",
        "client",
        "code",
        "count",
        "first_ms",
        "kind",
        "last_ms",
        "other",
        "receivers",
        "size",
        "topic",
        "until_ms",
    )

    def __init__(
        self,
        kind: int,
        code: int,
        at_ms: int,
        until_ms: int,
        *,
        client: str = "",
        topic: str = "",
        other: str = "",
        count: int = 1,
        size: int = 0,
        first_ms: int = 0,
        last_ms: int = 0,
        receivers: Receivers | None = None,
    ) -> None:
        self.kind = kind
        self.code = code
        self.at_ms = at_ms
        self.until_ms = until_ms
        self.client = client  # the publisher of a publication
        self.topic = topic  # or a filter, or the address of a connection
        self.other = other  # the publisher, the rule, or the reason
        self.count = count
        self.size = size
        self.first_ms = first_ms  # when the first and the last message of it were received
        self.last_ms = last_ms
        self.receivers = receivers

    def covers(self, ms: int) -> bool:
        """Tell whether a message that was received then may be among those of this fact."""
        return self.first_ms <= ms <= self.last_ms


def read_traffic(segment: Segment, offset: int) -> Fact:
    """Read a cell of traffic."""
    if segment.cells[offset + TRAFFIC_CELL - 2] == kinds.PUBLISHED:
        return _read_publication(segment, offset)
    at, client, first, last, count, topic, lasted, kind, code = EVENT.unpack_from(
        segment.cells, offset
    )
    at_ms = segment.base_ms + at
    return Fact(
        kind,
        code,
        at_ms,
        at_ms + lasted,
        client=segment.name_of(client),
        topic=segment.name_of(topic),
        count=count,
        first_ms=at_ms + first,
        last_ms=at_ms + last,
    )


def _read_publication(segment: Segment, offset: int) -> Fact:
    at, topic, client, route, count, size, lasted, kind, code = PUBLICATION.unpack_from(
        segment.cells, offset
    )
    at_ms = segment.base_ms + at
    return Fact(
        kind,
        code,
        at_ms,
        at_ms + lasted,
        client=segment.name_of(client),
        topic=segment.name_of(topic),
        count=count,
        size=size,
        first_ms=at_ms,
        last_ms=at_ms + lasted,
        receivers=segment.routes[route & NUMBERS],
    )


def read_evidence(segment: Segment, offset: int) -> Fact:
    """Read a cell of evidence."""
    at, client, about, other, count, first, last, lasted, kind, code = EVIDENCE.unpack_from(
        segment.cells, offset
    )
    at_ms = segment.base_ms + at
    since_ms = at_ms if kind == kinds.DROPPED else 0  # else they are details of this kind
    return Fact(
        kind,
        code,
        at_ms,
        at_ms + lasted,
        client=segment.name_of(client),
        topic=segment.name_of(about),
        other=segment.name_of(other),
        count=count,
        first_ms=since_ms + first,
        last_ms=since_ms + last,
    )


def offsets_of(segment: Segment, number: int, field: int) -> Iterator[int]:
    """Yield the places of the cells that have this number in this field, the newest first."""
    pattern = number.to_bytes(4, "little")
    generation = segment.generation
    end = segment.size
    while segment.generation == generation:
        position = segment.cells.rfind(pattern, 0, end)
        if position < 0:
            return
        offset = position - position % segment.cell_bytes
        if position - offset == field:
            yield offset
        end = position + 3


class Search:
    """Finds what a question looks for in the rings, in steps."""

    __slots__ = ("_limit", "_since_ms", "_until_ms", "found", "is_cut")

    def __init__(self, since_ms: int, limit: int = FACTS_MAX, until_ms: int = _FOREVER_MS) -> None:
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._limit = limit
        self.found: list[Fact] = []
        self.is_cut = False  # there is more than it may find

    def keep(self, found: list[Fact]) -> None:
        """Keep only these of what was found."""
        self.found = found

    def publications(
        self, ring: SegmentRing, is_wanted: Callable[[str], bool] | None, topic: str
    ) -> Iterator[None]:
        """Find publications to a topic or, if it is empty, to the wanted ones."""
        for segment in ring.newest_first():
            numbers: list[int] = []
            if topic:
                number = segment.topic_numbers.get(topic, 0)
                numbers = [number] if number else []
                yield
            elif is_wanted is not None:
                yield from _wanted_topics(segment, is_wanted, numbers)
            if numbers:
                yield from self._collect(segment, numbers, _TOPIC_AT, kinds.PUBLISHED)
            if self.is_cut:
                return

    def publications_to(
        self, ring: SegmentRing, client_id: str, groups: list[str]
    ) -> Iterator[None]:
        """Find publications that matched a client, or a shared subscription that it is in."""
        wanted = set(groups)
        for segment in ring.newest_first():
            numbers: list[int] = []
            yield from _routes_to(segment, client_id, wanted, numbers)
            if numbers:
                yield from self._collect(segment, numbers, _ROUTE_AT, kinds.PUBLISHED)
            if self.is_cut:
                return

    def publications_by(self, ring: SegmentRing, client_id: str) -> Iterator[None]:
        """Find publications of one client."""
        for segment in ring.newest_first():
            numbers = segment.numbers_of_client(client_id)
            yield
            if numbers:
                yield from self._collect(segment, numbers, _PUBLISHER_AT, kinds.PUBLISHED)
            if self.is_cut:
                return

    def events(self, ring: SegmentRing, client_id: str) -> Iterator[None]:
        """Find what happened at one client in the ring of traffic."""
        for segment in ring.newest_first():
            numbers = segment.numbers_of_client(client_id)
            yield
            if numbers:
                yield from self._collect(segment, numbers, _CLIENT_AT, 0)
            if self.is_cut:
                return

    def given(self, ring: SegmentRing, topic: str) -> Iterator[None]:
        """Find which members of shared subscriptions were given messages of a topic."""
        for segment in ring.newest_first():
            number = segment.topic_numbers.get(topic, 0)
            yield
            if number:
                yield from self._collect(segment, [number], _EVENT_TOPIC_AT, kinds.GIVEN)
            if self.is_cut:
                return

    def evidence_of(self, rings: list[SegmentRing], client_id: str) -> Iterator[None]:
        """Find drops, refusals and connections of one client."""
        for ring in rings:
            for segment in ring.newest_first():
                numbers = segment.numbers_of_client(client_id)
                yield
                if numbers:
                    yield from self._collect(segment, numbers, _CLIENT_AT, 0)

    def refusals(self, rings: list[SegmentRing], topic: str) -> Iterator[None]:
        """Find who was refused to publish to a topic."""
        for ring in rings:
            for segment in ring.newest_first():
                number = segment.topic_numbers.get(topic, 0)
                yield
                if number:
                    yield from self._collect(segment, [number], _ABOUT_AT, kinds.REFUSED)

    def all_evidence(self, rings: list[SegmentRing]) -> Iterator[None]:
        """Find the evidence of everybody."""
        for ring in rings:
            for segment in ring.newest_first():
                yield from self._walk(segment, None, 0, 0)

    def _collect(
        self, segment: Segment, numbers: list[int], field: int, kind: int
    ) -> Iterator[None]:
        """Collect the cells of a segment with one of these numbers in a field."""
        if len(numbers) > _FEW:
            yield from self._walk(segment, set(numbers), field, kind)
            return
        for number in numbers:
            for seen, offset in enumerate(offsets_of(segment, number, field), 1):
                if not self._take(segment, offset, kind):
                    break
                if seen % _CELLS_A_STEP == 0:
                    yield
            yield

    def _walk(
        self, segment: Segment, numbers: set[int] | None, field: int, kind: int
    ) -> Iterator[None]:
        """Look at every cell of a segment, the newest first."""
        generation = segment.generation
        offset = segment.size - segment.cell_bytes
        seen = 0
        while offset >= 0 and segment.generation == generation:
            seen += 1
            if numbers is None or _number_at(segment, offset + field) in numbers:
                if not self._take(segment, offset, kind):
                    return
            offset -= segment.cell_bytes
            if seen % _CELLS_A_STEP == 0:
                yield

    def _take(self, segment: Segment, offset: int, kind: int) -> bool:
        """Take a cell of this kind (0: any); False when those before it are of no interest."""
        cell_kind = segment.cells[offset + segment.cell_bytes - 2]
        if kind and cell_kind != kind:
            return True
        if not kind and cell_kind == kinds.PUBLISHED:
            return True
        if segment.cell_bytes == EVIDENCE_CELL:
            fact = read_evidence(segment, offset)
        else:
            fact = read_traffic(segment, offset)
        if fact.until_ms < self._since_ms:
            # Those before it began earlier, and a cell lasts a second at most.
            return fact.at_ms >= self._since_ms - 2_000
        if fact.at_ms > self._until_ms:
            return True
        if len(self.found) >= self._limit:
            self.is_cut = True
            return False
        self.found.append(fact)
        return True


def _wanted_topics(
    segment: Segment, is_wanted: Callable[[str], bool], numbers: list[int]
) -> Iterator[None]:
    """Collect the numbers of the topics that are wanted."""
    topics = segment.topics  # another list, if the segment is used anew
    for begin in range(0, len(topics), _NAMES_A_STEP):
        for index, name in enumerate(topics[begin : begin + _NAMES_A_STEP], begin):
            if is_wanted(name):
                numbers.append(TOPIC_TAG | index)
        yield
    if segment.topics is not topics:
        numbers.clear()


def _routes_to(
    segment: Segment, client_id: str, groups: set[str], numbers: list[int]
) -> Iterator[None]:
    """Collect the numbers of the routes to a client, or to one of its shared subscriptions."""
    routes = segment.routes
    for begin in range(0, len(routes), _NAMES_A_STEP):
        for index, receivers in enumerate(routes[begin : begin + _NAMES_A_STEP], begin):
            if client_id in receivers.clients or not groups.isdisjoint(receivers.groups):
                numbers.append(ROUTE_TAG | index)
        yield
    if segment.routes is not routes:
        numbers.clear()


def _number_at(segment: Segment, offset: int) -> int:
    return int.from_bytes(segment.cells[offset : offset + 4], "little")

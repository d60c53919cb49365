"""Rings of cells: byte arrays that are filled one after the other, and reused.

A ring has a few segments. Each has its own table of the names that its cells refer to by number:
when the oldest segment is reused, its cells and its names go together, so that a ring never takes
more than its bytes, and no name is kept for longer than the cells that mention it. Cells and names
share the bytes of a segment: few topics leave room for many cells.

A number has a tag in its highest byte, so that a search for the four bytes of a number (`search`)
rarely stops at anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from sys import getsizeof
from typing import Final

PUBLICATION: Final = Struct("<IIIIIIHBB")  # at, topic, publisher, route, count, bytes, lasted, ...
EVENT: Final = Struct("<IIiiIIHBB")  # at, client, first, last, count, topic, lasted, kind, code
EVIDENCE: Final = Struct("<IIIIIiiHBB")  # at, client, topic, publisher, count, first, last, ...
TRAFFIC_CELL: Final = PUBLICATION.size
EVIDENCE_CELL: Final = EVIDENCE.size
KIND_AT: Final = {TRAFFIC_CELL: TRAFFIC_CELL - 2, EVIDENCE_CELL: EVIDENCE_CELL - 2}
TOPIC_TAG: Final = 0x54 << 24
CLIENT_TAG: Final = 0x43 << 24
ROUTE_TAG: Final = 0x52 << 24
TEXT_TAG: Final = 0x58 << 24
TAGS: Final = 0xFF << 24
NUMBERS: Final = (1 << 24) - 1
SEPARATOR: Final = "\0"  # which no filter may have
_AGE_MS_MAX: Final = 1 << 30  # of a segment: times in it are milliseconds since it began
_ENTRY_BYTES: Final = 120  # of a name in a dictionary and a list, beside itself
_NO_CELLS: Final = bytes(64 << 10)  # that a segment grows by, at most
_REFERENCE_BYTES: Final = 16  # of a name that is there anyway: its session has it


class Receivers:
    """The receivers of a topic when it was published; each has one place in every field."""

    __slots__ = ("clients", "filters", "grants", "groups")

    def __init__(
        self,
        clients: tuple[str, ...],
        filters: tuple[str, ...],
        grants: bytes,
        groups: tuple[str, ...],
    ) -> None:
        self.clients = clients
        self.filters = filters  # that match, by client; of one with several, with SEPARATOR
        self.grants = grants  # the granted QoS, and 4 where No Local holds back its own messages
        self.groups = groups  # shared subscriptions: `$share/<name>/<filter>`

    @property
    def key(self) -> tuple[object, ...]:
        return (self.clients, self.filters, self.grants, self.groups)

    @property
    def bytes(self) -> int:
        return 400 + 17 * len(self.clients) + 8 * len(self.groups)


NOBODY: Final = Receivers((), (), b"", ())


class Segment:
    """Cells in the order in which they began, and the names that they refer to."""

    __slots__ = (
        "base_ms",
        "bytes_max",
        "cell_bytes",
        "cells",
        "clients",
        "generation",
        "name_bytes",
        "route_numbers",
        "routes",
        "size",
        "spent",
        "text_numbers",
        "texts",
        "topic_numbers",
        "topics",
    )

    def __init__(self, cell_bytes: int, bytes_max: int) -> None:
        self.cell_bytes = cell_bytes
        self.bytes_max = bytes_max  # of cells and names together
        self.cells = bytearray()  # grows: few names leave room for many cells
        self.size = 0  # bytes of cells in use
        self.name_bytes = 0
        self.generation = 0  # 0: never used
        self.base_ms = 0
        self.topics: list[str] = []
        self.topic_numbers: dict[str, int] = {}
        self.clients: list[str] = []
        self.spent: list[int] = []  # cells of each client, in a ring with shares
        self.routes: list[Receivers] = []
        self.route_numbers: dict[tuple[object, ...], int] = {}
        self.texts: list[str] = []
        self.text_numbers: dict[str, int] = {}

    def begin(self, generation: int, now_ms: int) -> None:
        """Forget everything, and begin anew."""
        self.cells = bytearray()
        self.generation = generation
        self.base_ms = now_ms
        self.size = 0
        self.name_bytes = 0
        self.topics = []
        self.topic_numbers = {}
        self.clients = []
        self.spent = []
        self.routes = []
        self.route_numbers = {}
        self.texts = []
        self.text_numbers = {}

    @property
    def is_full(self) -> bool:
        return self.size + self.name_bytes >= self.bytes_max or len(self.clients) >= NUMBERS

    def number_client(self, client_id: str) -> int:
        """Return a new number of a client; the caller remembers it as long as the segment lives."""
        number = len(self.clients)
        self.clients.append(client_id)
        self.spent.append(0)
        self.name_bytes += _REFERENCE_BYTES + getsizeof(client_id)
        return CLIENT_TAG | number

    def spend(self, client: int) -> None:
        """Count a cell of a client."""
        self.spent[client & NUMBERS] += 1

    def number_topic(self, topic: str) -> int:
        found = self.topic_numbers.get(topic)
        if found is None:
            found = self.topic_numbers[topic] = TOPIC_TAG | len(self.topics)
            self.topics.append(topic)
            self.name_bytes += _ENTRY_BYTES + getsizeof(topic)
        return found

    def number_text(self, text: str) -> int:
        found = self.text_numbers.get(text)
        if found is None:
            found = self.text_numbers[text] = TEXT_TAG | len(self.texts)
            self.texts.append(text)
            self.name_bytes += _ENTRY_BYTES + getsizeof(text)
        return found

    def number_route(self, receivers: Receivers) -> int:
        """Number who a topic matched; equal ones have one number."""
        key = receivers.key
        found = self.route_numbers.get(key)
        if found is None:
            found = self.route_numbers[key] = ROUTE_TAG | len(self.routes)
            self.routes.append(receivers)
            self.name_bytes += _ENTRY_BYTES + receivers.bytes
        return found

    def reserve(self) -> int:
        """Return the place of a new cell; the segment must not be full."""
        offset = self.size
        self.size = offset + self.cell_bytes
        if self.size > len(self.cells):
            self.cells.extend(_NO_CELLS[: max(self.cell_bytes, self.bytes_max // 64)])
        return offset

    def name_of(self, number: int) -> str:
        """Return the topic, client or text behind a number; empty for 0."""
        if not number:
            return ""
        tag, index = number & TAGS, number & NUMBERS
        names = self.topics
        if tag == CLIENT_TAG:
            names = self.clients
        elif tag == TEXT_TAG:
            names = self.texts
        return names[index]

    def numbers_of_client(self, client_id: str) -> list[int]:
        """Return all numbers of a client: each of its sessions has one of its own."""
        found: list[int] = []
        index = -1
        while True:
            try:
                index = self.clients.index(client_id, index + 1)
            except ValueError:
                return found
            found.append(CLIENT_TAG | index)


class SegmentRing:
    """Segments that are filled in turn. The newest is `current`."""

    __slots__ = ("current", "generation", "segments")

    def __init__(self, cell_bytes: int, ring_bytes: int, count: int) -> None:
        share = ring_bytes // count
        self.segments = [Segment(cell_bytes, share) for _ in range(count)]
        self.generation = 0
        self.current = self.segments[0]

    def writable(self, now_ms: int) -> Segment:
        """Return a segment that has room for one more cell."""
        current = self.current
        if (
            not self.generation
            or current.is_full
            or now_ms < current.base_ms
            or now_ms - current.base_ms > _AGE_MS_MAX
        ):
            self.generation += 1
            current = self.current = self.segments[self.generation % len(self.segments)]
            current.begin(self.generation, now_ms)
        return current

    def of_generation(self, generation: int) -> Segment | None:
        """Return the segment of a generation, unless it was reused since."""
        segment = self.segments[generation % len(self.segments)]
        return segment if generation and segment.generation == generation else None

    @property
    def has_lost(self) -> bool:
        """Tell whether something was overwritten."""
        return self.generation > len(self.segments)

    def newest_first(self) -> Iterator[Segment]:
        """Walk the segments in use, the newest first."""
        for age in range(min(self.generation, len(self.segments))):
            yield self.segments[(self.generation - age) % len(self.segments)]

    @property
    def begins_ms(self) -> int:
        """The time from which on everything is there; 0: since the start."""
        if not self.has_lost:
            return 0
        return self.segments[(self.generation + 1) % len(self.segments)].base_ms

    @property
    def bytes(self) -> int:
        """The bytes in use, of cells and names."""
        return sum(
            segment.size + segment.name_bytes for segment in self.segments if segment.generation
        )

"""Histograms of times and sizes: buckets that double, so that a value finds its own by its length.

Recorded once for a run of messages or a turn, never for each message. Times are in microseconds
here; who shows them converts them to seconds.
"""

from __future__ import annotations

from typing import Final

from sessions.messages.counters import Counters

TIME_BUCKETS: Final = 26  # the last but one ends at 2**24 us, 16.8 s
SIZE_BUCKETS: Final = 30  # and at 2**28 bytes, the largest packet
_PUBLISH: Final = 3
_PUBACK: Final = 4
_PUBREC: Final = 5


SHORT: Final = 1 << 12
LENGTHS: Final = bytes(value.bit_length() for value in range(SHORT))  # of small numbers


def bit_length(value: int) -> int:
    """Return `value.bit_length()`, which costs a call of a method where this is compiled."""
    if value < SHORT:
        return LENGTHS[value]
    return 12 + bit_length(value >> 12)


class Histogram:
    """Counts by bucket: `counts[n]` of values below 2**n and not below 2**(n-1)."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int = TIME_BUCKETS) -> None:
        self.counts = [0] * buckets
        self.total = 0

    def add(self, value: int, count: int = 1) -> None:
        """Count a value so many times."""
        if value < 0:
            value = 0
        counts = self.counts
        bucket = bit_length(value)
        if bucket >= len(counts):
            bucket = len(counts) - 1
        counts[bucket] += count
        self.total += value * count

    def add_seconds(self, seconds: float, count: int = 1) -> None:
        """Count a time in seconds so many times."""
        self.add(int(seconds * 1e6), count)

    def copy(self) -> tuple[list[int], int]:
        """Return the counts and the total, as they are now."""
        return list(self.counts), self.total


class Timings:
    """The histograms of a broker.

    What is acknowledged or delivered in the turn that brought it is counted at the end of the turn,
    with the time of the turn: the difference of counters says how many there were. What waited, for
    the store or in a queue, is counted when it goes, with its own time.
    """

    __slots__ = (
        "_acknowledged",
        "_counters",
        "_held",
        "_late",
        "_sent",
        "acknowledge",
        "commit",
        "deliver",
        "held",
        "late",
        "packet_sizes",
        "turn",
    )

    def __init__(self) -> None:
        self._counters: Counters | None = None
        self.turn = Histogram()
        self.acknowledge = Histogram()  # from PUBLISH to PUBACK or PUBREC
        self.deliver = Histogram()  # from PUBLISH to the packet to a subscriber
        self.commit = Histogram()  # of a group, from its hand-over to the store
        # Of received PUBLISH packets; by `(size - 1).bit_length()`, so a bound is part of a bucket.
        self.packet_sizes = [0] * SIZE_BUCKETS
        self.held = 0  # acknowledgements that had to wait
        self.late = 0  # deliveries that had to wait
        self._acknowledged = self._sent = self._held = self._late = 0  # at the end of the last turn

    def count_with(self, counters: Counters) -> None:
        """Use these counters to see what a turn has done."""
        self._counters = counters

    def on_turn(self, seconds: float, published: int) -> None:
        """Count a turn and what it did at once; `published` are packets that sessions sent."""
        elapsed = int(seconds * 1e6)
        self.turn.add(elapsed)
        counters = self._counters
        if counters is None:
            return
        sent = counters.packets_sent
        acknowledged = sent[_PUBACK] + sent[_PUBREC]
        at_once = acknowledged - self._acknowledged - (self.held - self._held)
        if at_once > 0:
            self.acknowledge.add(elapsed, at_once)
        self._acknowledged, self._held = acknowledged, self.held
        delivered = sent[_PUBLISH] + published
        at_once = delivered - self._sent - (self.late - self._late)
        if at_once > 0:
            self.deliver.add(elapsed, at_once)
        self._sent, self._late = delivered, self.late

    def hold(self, count: int) -> None:
        """Note acknowledgements that have to wait."""
        self.held += count

    def on_acknowledged(self, seconds: float, count: int) -> None:
        """Count acknowledgements that leave after they waited."""
        self.acknowledge.add(int(seconds * 1e6), count)

    def on_late(self, seconds: float) -> None:
        """Count the delivery of a message that waited in a queue."""
        self.late += 1
        self.deliver.add(int(seconds * 1e6))

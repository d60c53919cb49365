"""A histogram of durations with a bounded error, as HdrHistogram keeps it.

Values are whole microseconds. A bucket is at most 1/128 of its value wide, so a percentile has an
error of at most 0.8 %, whether it is a millisecond or an hour; below 256 us it is exact. Only
buckets with values take memory, and histograms of several processes add up without loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

_SUB_BITS: Final = 7
_EXACT: Final = 1 << (_SUB_BITS + 1)  # below this every value has a bucket of its own


class Histogram:
    """Counts of durations in buckets of bounded error."""

    __slots__ = ("buckets", "count", "max_us", "min_us", "total_us")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total_us = 0
        self.min_us = 0
        self.max_us = 0

    def record(self, us: int) -> None:
        if us < _EXACT:
            if us < 0:
                us = 0  # a clock was set back
            bucket = us
        else:
            shift = us.bit_length() - _SUB_BITS - 1
            bucket = (shift << _SUB_BITS) + (us >> shift)
        buckets = self.buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1
        if us > self.max_us:
            self.max_us = us
        if us < self.min_us or not self.count:
            self.min_us = us
        self.count += 1
        self.total_us += us

    def add(self, other: Histogram) -> None:
        """Add the values of another histogram."""
        if not other.count:
            return
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.min_us = min(self.min_us, other.min_us) if self.count else other.min_us
        self.max_us = max(self.max_us, other.max_us)
        self.count += other.count
        self.total_us += other.total_us

    def since(self, before: Mapping[int, int]) -> Histogram:
        """Return the durations recorded since `buckets` were `before`."""
        newer = Histogram()
        for bucket, count in self.buckets.items():
            more = count - before.get(bucket, 0)
            if more:
                newer.buckets[bucket] = more
                newer.count += more
                newer.total_us += more * highest(bucket)
                newer.max_us = max(newer.max_us, min(highest(bucket), self.max_us))
        newer.min_us = lowest(min(newer.buckets, default=0))
        return newer

    def percentile(self, percent: float) -> int:
        """Return the value that `percent` of all values do not exceed; 0 if there are none."""
        wanted = max(1.0, self.count * percent / 100)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted - 1e-9:
                return min(highest(bucket), self.max_us)
        return 0

    @property
    def mean_us(self) -> float:
        return self.total_us / self.count if self.count else 0.0

    def bars(self) -> Iterator[tuple[int, int, int]]:
        """Yield (lowest value, highest value, count) of each bucket, in order."""
        for bucket in sorted(self.buckets):
            yield lowest(bucket), highest(bucket), self.buckets[bucket]

    def to_data(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "mean_ms": round(self.mean_us / 1000, 3),
            "min_ms": self.min_us / 1000,
            **{f"{name}_ms": self.percentile(at) / 1000 for name, at in PERCENTILES.items()},
            "max_ms": self.max_us / 1000,
        }

    def dump(self) -> list[list[int]]:
        """Return the whole histogram as plain data, for `restored`."""
        head = [self.total_us, self.min_us, self.max_us]
        return [head, *([bucket, count] for bucket, count in sorted(self.buckets.items()))]

    @classmethod
    def restored(cls, data: list[list[int]]) -> Self:
        """Return the histogram that `dump` made the data of."""
        found = cls()
        found.restore(*data)
        return found

    def restore(self, head: list[int], *buckets: list[int]) -> None:
        """Take what `dump` returned in place of what there is."""
        self.total_us, self.min_us, self.max_us = head
        self.buckets = {}
        for bucket, count in buckets:
            self.buckets[bucket] = count
        self.count = sum(self.buckets.values())

    def copy(self) -> Self:
        other = type(self)()
        other.add(self)
        return other


PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}


def lowest(bucket: int) -> int:
    """Return the smallest value of the bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return (bucket - (shift << _SUB_BITS)) << shift


def highest(bucket: int) -> int:
    """Return the largest value of the bucket."""
    return lowest(bucket + 1) - 1

"""A histogram of times in 192 bytes: buckets that grow with the time, four to each doubling."""

from __future__ import annotations

from typing import Final

_BUCKETS: Final = 96  # the last one begins at nine hours
_COUNT_MAX: Final = 0xFFFF  # two bytes a bucket


class LogHistogram:
    """Counts times by their size, so that a share of them is found within a quarter of its value.

    When a bucket is full all are halved: what is long ago counts less.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = bytearray(2 * _BUCKETS)

    def add(self, seconds: float) -> None:
        """Count a time."""
        bucket = _bucket_of(int(seconds * 1000.0))
        count = self._count(bucket)
        if count >= _COUNT_MAX:
            self._halve()
            count = self._count(bucket)
        self._set(bucket, count + 1)

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of the times does not exceed; 0: there is none."""
        counts = [self._count(bucket) for bucket in range(_BUCKETS)]
        wanted = share * sum(counts)
        seen = 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return _end_of(bucket) / 1000.0
        return 0.0

    def _count(self, bucket: int) -> int:
        return self._counts[2 * bucket] | self._counts[2 * bucket + 1] << 8

    def _set(self, bucket: int, count: int) -> None:
        self._counts[2 * bucket] = count & 0xFF
        self._counts[2 * bucket + 1] = count >> 8

    def _halve(self) -> None:
        for bucket in range(_BUCKETS):
            self._set(bucket, self._count(bucket) // 2)


def _bucket_of(ms: int) -> int:
    """Return the bucket of a time: below 4 ms one for each, then by its three highest bits."""
    if ms < 4:
        return max(0, ms)
    bits = ms.bit_length()
    return min(_BUCKETS - 1, 4 * (bits - 2) + (ms >> (bits - 3) & 3))


def _end_of(bucket: int) -> int:
    """Return the milliseconds below which the times of a bucket are."""
    if bucket < 4:
        return bucket + 1
    return (5 + bucket % 4) << (bucket // 4 - 1)

"""Positions in a stream: `{"epoch": "...", "p0": 17, "p1": 4}`, earliest, latest, or a time.

An offset is that of the next message, so an end is the first offset that does not exist yet. The
epoch tells streams of one name apart: a stream that is deleted and created again counts from 0, and
offsets of the old one would otherwise be used for the new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from mqtt_broker.streams.format.errors import (
    EndBeforeStart,
    Invalid,
    OffsetAhead,
    OffsetGone,
    UnknownPartition,
    WrongEpoch,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EXAMPLE: Final = '{"p0": 17, "p1": 4}'
EXPECTED: Final = f"earliest, latest, an ISO 8601 time, or JSON such as {EXAMPLE}"
OFFSET_MAX: Final = (1 << 63) - 1
TEXT_CHARS_MAX: Final = 64 << 10
_DATE_DIGITS: Final = 8  # 20261118
_PARTITION: Final = re.compile(r"p(0|[1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position in each partition of a stream, with its epoch."""

    epoch: str
    ends: tuple[int, ...]  # a partition each

    def text(self) -> str:
        """Return JSON with sorted keys: equal offsets are equal texts."""
        return json.dumps(
            {"epoch": self.epoch, **{f"p{n}": end for n, end in enumerate(self.ends)}},
            sort_keys=True,
        )

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parse the result of `text`, for any stream."""
        try:
            found = json.loads(text)
            ends = tuple(int(found[f"p{number}"]) for number in range(len(found) - 1))
            return cls(str(found["epoch"]), ends)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Invalid(
                "offsets", f"{text[:80]!r} is invalid: expected JSON such as {EXAMPLE}"
            ) from None


def parse(text: str, stream: str, epoch: str, partitions: int) -> Offsets:
    """Parse the offsets of every partition of a stream, and the epoch if it is given."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid("offsets", f"{len(text)} characters are too many: up to {TEXT_CHARS_MAX}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid("offsets", f"{text[:80]!r} is not valid JSON") from None
    if not isinstance(found, dict):
        raise Invalid("offsets", f"{text[:80]!r} is not a JSON object")
    given = found.pop("epoch", epoch)
    if given != epoch:
        raise WrongEpoch(stream, str(given)[:80], epoch)
    ends: dict[int, int] = {}
    for key, value in found.items():
        name = _PARTITION.fullmatch(key)
        if name is None:
            raise Invalid("offsets", f"{key[:80]!r} is neither a partition nor 'epoch'")
        if int(name[1]) >= partitions:
            raise UnknownPartition(stream, key, partitions)
        if type(value) is not int or not 0 <= value <= OFFSET_MAX:
            raise Invalid(
                "offsets",
                f"{key} is {str(value)[:80]}: expected a number from 0 to {OFFSET_MAX}",
            )
        ends[int(name[1])] = value
    for number in range(partitions):
        if number not in ends:
            raise Invalid("offsets", f"p{number} of stream {stream!r} is missing")
    return Offsets(epoch, tuple(ends[number] for number in range(partitions)))


def parse_time(text: str) -> int | None:
    """Parse an ISO 8601 time, UTC unless it has a zone, into microseconds of Unix time."""
    if text.isdigit() and len(text) != _DATE_DIGITS:
        return None  # digits may be seconds or an offset; Python parses some as years
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    try:
        since = found - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def check(stream: str, wanted: Offsets, earliest: Sequence[int], latest: Sequence[int]) -> None:
    """Raise an error unless every partition can be read from its offset."""
    for number, offset in enumerate(wanted.ends):
        if offset < earliest[number]:
            raise OffsetGone(stream, number, offset, earliest[number])
        if offset > latest[number]:
            raise OffsetAhead(stream, number, offset, latest[number])


def check_range(stream: str, start: Offsets, end: Offsets) -> None:
    if start.epoch != end.epoch:
        raise WrongEpoch(stream, start.epoch, end.epoch)
    for number, (low, high) in enumerate(zip(start.ends, end.ends, strict=True)):
        if high < low:
            raise EndBeforeStart(stream, number, low, high)

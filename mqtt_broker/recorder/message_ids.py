"""The names of messages: publisher and time, as in `app-3@2026-11-19T12:00:01.250Z`.

Facts show them, and a question may have one. A broker does not number what it forwards, and does
not record payloads: its own clock tells the messages of a publisher apart. A time without a
fraction stands for that second; without a date, for the last time that it was so late.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.search import Fact

EXPECTED: Final = (
    "PUBLISHER@TIME, the time as 12:00:01, 2026-11-19T12:00:01.250Z or in Unix seconds (UTC)"
)
_TIME: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ])?(?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?P<fraction>\.[0-9]{1,9})?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)
_UNIX: Final = re.compile(r"[0-9]{1,11}(?P<fraction>\.[0-9]{1,9})?")


class InvalidMessage(ValueError):
    """A text that names no message; it says what is expected."""


class MessageName:
    """A publisher, or any, and a time with the width that it was given with."""

    __slots__ = ("publisher", "since_ms", "text", "until_ms")

    def __init__(self, text: str, publisher: str, since_ms: int, until_ms: int) -> None:
        self.text = text
        self.publisher = publisher  # empty: any
        self.since_ms = since_ms
        self.until_ms = until_ms

    def is_by(self, client_id: str) -> bool:
        """Tell whether it may be a message of this publisher."""
        return not self.publisher or self.publisher == client_id

    def distance(self, fact: Fact) -> int:
        """Return how many milliseconds a run of messages is away from it; 0: it is one of them."""
        return max(0, fact.at_ms - self.until_ms, self.since_ms - fact.until_ms)


def name_of(publication: Fact) -> str:
    """Return the name of the first message of a publication; empty for other facts."""
    if publication.kind != kinds.PUBLISHED:
        return ""
    moment = datetime.fromtimestamp(publication.at_ms / 1000, UTC)
    at = f"{moment:%Y-%m-%dT%H:%M:%S}.{publication.at_ms % 1000:03d}Z"
    return f"{publication.client}@{at}"


def parse_name(text: str, now: float) -> MessageName:
    """Read the name of a message; InvalidMessage if it is none."""
    publisher, at, time = text.rpartition("@")
    fraction = ""
    try:
        if not at:
            raise ValueError
        if (found := _UNIX.fullmatch(time)) is not None:
            whole, _, fraction = time.partition(".")
            since_ms = int(whole) * 1000
        elif (found := _TIME.fullmatch(time)) is not None:
            fraction = (found["fraction"] or "").removeprefix(".")
            since_ms = _clock_ms(found["date"], found["clock"], found["zone"], now)
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidMessage(f"message must be {EXPECTED}, and is {text[:100]!r}") from None
    digits = fraction[:3]
    since_ms += int(digits.ljust(3, "0"))
    return MessageName(text, publisher, since_ms, since_ms + 10 ** (3 - len(digits)) - 1)


def _clock_ms(date: str | None, clock: str, zone: str | None, now: float) -> int:
    zone = "+00:00" if zone in (None, "Z") else zone
    if date is not None:
        return int(datetime.fromisoformat(f"{date[:10]}T{clock}{zone}").timestamp()) * 1000
    today = datetime.fromtimestamp(now, UTC)
    moment = datetime.fromisoformat(f"{today:%Y-%m-%d}T{clock}{zone}")
    if moment > today + timedelta(minutes=1):  # else it is now, by another clock
        moment -= timedelta(days=1)
    return int(moment.timestamp()) * 1000

"""Parse the filter of a subscription to a stream, and find where it begins to read.

    $stream/<name>[/@<from>]
    $share/<group>/$stream/<name>[/@<from>]

`from` is earliest, latest, an ISO 8601 time, or offsets as JSON. It is checked against data in
memory: this module opens no file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.message_log import Refusal
from mqtt_broker.streams.format import file_names, offsets
from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.errors import Invalid, StreamError
from mqtt_broker.streams.format.offsets import EARLIEST, EXPECTED, LATEST
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.topics.names import split_share

ROOT: Final = "$stream/"
FROM: Final = "@"


class StreamFilter(NamedTuple):
    """The parts of a Topic Filter that reads a stream."""

    group: str  # empty: the client reads alone
    stream: str
    start: str | None  # None: it is not in the filter


class StartPosition(NamedTuple):
    """The offset of each partition, or a time that must still be looked up in files.

    The time NULL stands for the earliest record that is no older than the retention.
    """

    offsets: tuple[int, ...]
    at_us: int | None = None


class StartRefused(Exception):
    """A stream cannot be read from there."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(reason, text)


def parse_filter(text: str) -> StreamFilter:
    """Parse a filter that begins with `$stream`, or a share of one. Raises Invalid."""
    shared = split_share(text)
    group, path = shared if shared is not None else ("", text)
    name, slash, rest = path[len(ROOT) :].partition("/")
    if "+" in name or "#" in name:
        raise Invalid(path, "wildcards do not match streams: subscribe to each by its name")
    if not path.startswith(ROOT) or (slash and not rest.startswith(FROM)):
        raise Invalid(path, f"it is neither {ROOT}<name> nor {ROOT}<name>/{FROM}<from>")
    file_names.check_stream(name)
    return StreamFilter(group, name, rest[len(FROM) :] if slash else None)


def starts_of(stream: Stream) -> tuple[int, ...]:
    """Return the earliest offset of each partition, from memory."""
    return tuple(partition.catalog.start for partition in stream.partitions)


def ends_of(stream: Stream) -> tuple[int, ...]:
    """Return the offset up to which readers may read each partition."""
    return tuple(partition.committed for partition in stream.partitions)


def _has_expired(stream: Stream, now: float) -> bool:
    """Tell whether a stream may hold records that are older than its retention."""
    before_us = int((now - stream.settings.retain_s) * 1e6)
    return stream.settings.retain_s > 0 and any(
        min(partition.catalog.min_us, partition.active.min_us) < before_us
        for partition in stream.partitions
    )


def parse_start(stream: Stream, text: str, now: float) -> StartPosition:
    """Find where to start. Raises StartRefused if that is invalid, or no longer kept."""
    if text == EARLIEST:
        if _has_expired(stream, now):
            return StartPosition((), NULL)
        return StartPosition(starts_of(stream))
    if text == LATEST:
        return StartPosition(ends_of(stream))
    if text.lstrip().startswith("{"):
        try:
            found = offsets.parse(text, stream.name, stream.epoch, len(stream.partitions))
            offsets.check(stream.name, found, starts_of(stream), ends_of(stream))
        except StreamError as error:
            raise StartRefused(reasons.IMPLEMENTATION_SPECIFIC_ERROR, str(error)) from None
        return StartPosition(found.ends)
    at_us = offsets.parse_time(text)
    if at_us is None:
        raise StartRefused(
            reasons.TOPIC_FILTER_INVALID,
            f"offsets {text[:80]!r} are invalid: expected {EXPECTED}",
        )
    return StartPosition((), at_us)

"""The protocol of the log over HTTP: header names, limits, errors as JSON.

An error is sent as `{"error": "OffsetGone", "text": "...", "stream": ..., "offset": ...}`: the name
of its class, its text and all its fields, next to the members of a problem document (RFC 9457). It
is decoded into the same error. `STATUS` has the HTTP status of each class; other classes have the
status of their base class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mqtt_broker.streams.format import errors
from mqtt_broker.streams.format.errors import StreamError

EPOCH: Final = "FleetMQ-Epoch"
BASE: Final = "FleetMQ-Base"  # the first offset that is sent, which may be before `START`
START: Final = "FleetMQ-Start"  # the first offset that was requested
END: Final = "FleetMQ-End"  # the first offset after the batches: where to continue
EARLIEST: Final = "FleetMQ-Earliest"  # of the partition
LATEST: Final = "FleetMQ-Latest"  # its committed end
SEGMENT: Final = "FleetMQ-Segment"  # the file, and
POSITION: Final = "FleetMQ-Position"  # the position in it, for reports of damage

BYTES: Final = 1 << 20
BYTES_MAX: Final = 8 << 20
WAIT_S_MAX: Final = 30.0

_STATUS: Final[dict[type[StreamError], int]] = {
    StreamError: 500,
    errors.Invalid: 400,
    errors.UnreadableFile: 500,
    errors.EndBeforeStart: 400,
    errors.UnknownStream: 404,
    errors.UnknownPartition: 404,
    errors.StreamGone: 404,
    errors.WrongEpoch: 409,
    errors.OffsetGone: 410,
    errors.OffsetAhead: 416,
    errors.Locked: 503,
}
_OF_EVERY_ERROR: Final = frozenset({"error", "text", "type", "title", "status", "detail"})
_CLASSES: Final = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, StreamError)
}


def status_of(error: StreamError) -> int:
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def encode_error(error: StreamError) -> dict[str, Any]:
    return {"error": type(error).__name__, "text": str(error), **vars(error)}


def decode_error(found: Mapping[str, Any]) -> StreamError | None:
    """Return the error that was encoded, or None if it is not an error of a broker."""
    kind = _CLASSES.get(str(found.get("error")))
    text = found.get("text")
    fields = {key: value for key, value in found.items() if key not in _OF_EVERY_ERROR}
    if kind is None or not isinstance(text, str):
        return None
    if any(type(value) not in (str, int) for value in fields.values()):
        return None
    error = kind.__new__(kind, text)  # its own constructor would create another text
    error.__dict__.update(fields)
    return error

"""Sparkplug B payloads (Eclipse Tahu's schema) as bytes and back, without protobuf.

    message Payload { uint64 timestamp = 1; repeated Metric metrics = 2; uint64 seq = 3; ... }

Only what a device says of itself is written: scalars, and properties of text. Everything is
read; a data set or a template stays the bytes that it came in. Fields are written in the
order of their numbers, as protobuf's own encoders do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Data types of metrics.
INT8: Final = 1
INT16: Final = 2
INT32: Final = 3
INT64: Final = 4
UINT8: Final = 5
UINT16: Final = 6
UINT32: Final = 7
UINT64: Final = 8
FLOAT: Final = 9
DOUBLE: Final = 10
BOOLEAN: Final = 11
STRING: Final = 12
DATE_TIME: Final = 13
TEXT: Final = 14
UUID: Final = 15
BYTES: Final = 17

_INT_VALUE: Final = frozenset((INT8, INT16, INT32, UINT8, UINT16, UINT32))
_LONG_VALUE: Final = frozenset((INT64, UINT64, DATE_TIME))
_TEXTS: Final = frozenset((STRING, TEXT, UUID))
_SIGNED: Final = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5

PAYLOAD_BYTES_MAX: Final = 1 << 20
METRICS_MAX: Final = 10_000

_double: Final = struct.Struct("<d")
_float: Final = struct.Struct("<f")


class SparkplugError(ValueError):
    """Bytes that are no Sparkplug payload."""


@dataclass(slots=True)
class Metric:
    """A metric. In data messages an alias stands for the name that its birth gave."""

    name: str = ""
    value: Any = None
    type: int = 0  # 0: not said, as in data messages
    alias: int | None = None
    timestamp: int | None = None
    historical: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Payload:
    timestamp: int | None = None
    metrics: list[Metric] = field(default_factory=list)
    seq: int | None = None


def encode_varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "little")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire: int) -> bytes:
    return encode_varint(number << 3 | wire)


def _bytes(number: int, raw: bytes) -> bytes:
    return _tag(number, _LENGTH) + encode_varint(len(raw)) + raw


def encode_value(type: int, value: Any) -> bytes:
    """Encode the field of the `oneof` that this data type uses, or is_null."""
    if value is None:
        return b"\x38\x01"
    if type == DOUBLE:
        return b"\x69" + _double.pack(value)
    if type == FLOAT:
        return b"\x65" + _float.pack(value)
    if type == BOOLEAN:
        return b"\x70\x01" if value else b"\x70\x00"
    if type in _INT_VALUE:
        return b"\x50" + encode_varint(value & 0xFFFF_FFFF)
    if type in _LONG_VALUE:
        return b"\x58" + encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if type in _TEXTS:
        return _bytes(15, value.encode())
    if type == BYTES:
        return _bytes(16, value)
    raise ValueError(f"data type {type} is not written")


def encode_metric(metric: Metric) -> bytes:
    """Encode a metric with its tag and length, as it stands in a payload."""
    parts = []
    if metric.name:
        parts.append(_bytes(1, metric.name.encode()))
    if metric.alias is not None:
        parts.append(b"\x10" + encode_varint(metric.alias))
    if metric.timestamp is not None:
        parts.append(b"\x18" + encode_varint(metric.timestamp))
    if metric.type:
        parts.append(b"\x20" + encode_varint(metric.type))
    if metric.historical:
        parts.append(b"\x28\x01")
    value = encode_value(metric.type, metric.value)
    if metric.value is None:  # is_null is before the properties, values are behind
        parts.append(value)
    if metric.properties:
        parts.append(_encode_properties(metric.properties))
    if metric.value is not None:
        parts.append(value)
    return _bytes(2, b"".join(parts))


def _encode_properties(properties: Mapping[str, str]) -> bytes:
    keys = b"".join(_bytes(1, key.encode()) for key in properties)
    values = b"".join(
        _bytes(2, b"\x08" + encode_varint(STRING) + _bytes(8, text.encode()))
        for text in properties.values()
    )
    return _bytes(9, keys + values)


def encode_reading(alias: bytes, when: bytes, historical: bool, type: int, value: Any) -> bytes:
    """Encode a metric of a data message, from its alias and time as varints: no name, no type."""
    inside = b"".join(
        (
            b"\x10", alias, b"\x18", when, b"\x28\x01" if historical else b"",
            encode_value(type, value),
        )
    )  # fmt: skip
    return b"\x12" + encode_varint(len(inside)) + inside


def encode_body(timestamp: int, metrics: Iterable[bytes]) -> bytes:
    """Encode a payload without its sequence number, which `append_seq` appends."""
    return b"".join((b"\x08", encode_varint(timestamp), *metrics))


def append_seq(body: bytes, seq: int) -> bytes:
    return body + b"\x18" + encode_varint(seq)


def encode_payload(timestamp: int, metrics: Sequence[Metric], seq: int | None = None) -> bytes:
    body = encode_body(timestamp, [encode_metric(metric) for metric in metrics])
    return body if seq is None else append_seq(body, seq)


# Reading.


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise SparkplugError("an integer is cut short or too long")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7


def _fields(raw: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and content of each field of a message."""
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            content: Any
            content, at = _read_varint(raw, at)
        else:
            if wire == _LENGTH:
                length, at = _read_varint(raw, at)
            elif wire == _FIXED64:
                length = 8
            elif wire == _FIXED32:
                length = 4
            else:
                raise SparkplugError(f"wire type {wire}")
            if at + length > len(raw):
                raise SparkplugError(f"field {number} is cut short")
            content = raw[at : at + length]
            at += length
        yield number, wire, content


_PAYLOAD_WIRES: Final = {1: _VARINT, 2: _LENGTH, 3: _VARINT}
_METRIC_WIRES: Final = {
    1: _LENGTH, 2: _VARINT, 3: _VARINT, 4: _VARINT, 5: _VARINT, 7: _VARINT, 9: _LENGTH,
    10: _VARINT, 11: _VARINT, 12: _FIXED32, 13: _FIXED64, 14: _VARINT, 15: _LENGTH,
    16: _LENGTH, 17: _LENGTH, 18: _LENGTH, 19: _LENGTH,
}  # fmt: skip


def decode_payload(raw: bytes) -> Payload:
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise SparkplugError(f"more than {PAYLOAD_BYTES_MAX} bytes")
    found = Payload()
    for number, wire, content in _fields(raw):
        if wire != _PAYLOAD_WIRES.get(number, wire):
            raise SparkplugError(f"field {number} of a payload has wire type {wire}")
        if number == 1:
            found.timestamp = content
        elif number == 2:
            if len(found.metrics) >= METRICS_MAX:
                raise SparkplugError(f"more than {METRICS_MAX} metrics")
            found.metrics.append(_decode_metric(content))
        elif number == 3:
            found.seq = content
    return found


def _decode_metric(raw: bytes) -> Metric:
    metric = Metric()
    value: Any = None
    is_null = False
    for number, wire, content in _fields(raw):
        if wire != _METRIC_WIRES.get(number, wire):
            raise SparkplugError(f"field {number} of a metric has wire type {wire}")
        if number == 1:
            metric.name = _text(content)
        elif number == 2:
            metric.alias = content
        elif number == 3:
            metric.timestamp = content
        elif number == 4:
            metric.type = content
        elif number == 5:
            metric.historical = bool(content)
        elif number == 7:
            is_null = bool(content)
        elif number == 9:
            metric.properties = _decode_properties(content)
        elif 10 <= number <= 19:
            value = _value(number, content)
    if is_null:
        value = None
    elif isinstance(value, int) and not isinstance(value, bool):
        value = as_type(metric.type, value)
    metric.value = value
    return metric


def _value(number: int, content: Any) -> Any:
    if number == 12:
        return _float.unpack(content)[0]
    if number == 13:
        return _double.unpack(content)[0]
    if number == 14:
        return bool(content)
    if number == 15:
        return _text(content)
    return content  # whole numbers as they are; bytes, data sets and templates too


def as_type(type: int, value: int) -> int:
    """Convert an integer from the wire, where negative ones are two's complement."""
    bits = _SIGNED.get(type)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _decode_properties(raw: bytes) -> dict[str, str]:
    """Decode properties that are text; commands to a device use no others."""
    keys: list[str] = []
    values: list[str | None] = []
    for number, wire, content in _fields(raw):
        if wire != _LENGTH:
            raise SparkplugError("a property set holds only messages")
        if number == 1:
            keys.append(_text(content))
        elif number == 2:
            texts = [_text(inner) for at, _, inner in _fields(content) if at == 8]
            values.append(texts[-1] if texts else None)
    return {key: value for key, value in zip(keys, values, strict=False) if value is not None}


def _text(raw: Any) -> str:
    try:
        return str(raw, "utf-8")
    except (UnicodeDecodeError, TypeError) as error:
        raise SparkplugError(f"no text: {error}") from None

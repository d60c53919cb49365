"""Documents of declared fields as bytes, and commands back from bytes.

A report goes out once an interval from each of ten thousand devices, so what does not change
in it is prepared: JSON is one `%` format with the names, digits and client id in place (1 us
for six fields, where an encoder of dictionaries takes 2.5). Everything else that a device
says is rare and goes through `document`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from iot_sim.payloads.schema import DOUBLE, LONG, Field
from iot_sim.payloads.templates import Template

JSON: Final = "json"
CBOR: Final = "cbor"
SPARKPLUG: Final = "sparkplug"
TEMPLATE: Final = "template"
FORMATS: Final = (JSON, CBOR, SPARKPLUG, TEMPLATE)

DOCUMENT_BYTES_MAX: Final = 65_536  # of what a device reads


class Unreadable(ValueError):
    """Bytes that are no document of this format."""


class Layout(Protocol):
    """The format of one device's documents."""

    @property
    def content_type(self) -> str:
        """Return the content type of reports."""

    @property
    def document_type(self) -> str:
        """Return the content type of all documents that are no reports."""

    def report(self, seq: int, ts: int, values: Sequence[Any]) -> bytes:
        """Encode a report: the declared fields in their order, behind `id`, `seq` and `ts`."""

    def document(self, content: Mapping[str, Any]) -> bytes: ...

    def read(self, raw: bytes) -> dict[str, Any]:
        """Decode a document; an empty payload is an empty document. Raises Unreadable."""


_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _no_constant(name: str) -> float:
    raise Unreadable(f"{name} is no JSON")


_decode: Final = json.JSONDecoder(parse_constant=_no_constant).decode


def read_json(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise Unreadable(f"more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = _decode(raw.decode())
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unreadable("not a JSON object")
    return found


def write_json(content: Mapping[str, Any]) -> bytes:
    return _encode(content).encode()


class JsonLayout:
    """JSON, with the digits that a field declares."""

    __slots__ = ("_fields", "_format", "_head", "_numbers_only")

    content_type: Final = "application/json"
    document_type: Final = "application/json"

    def __init__(self, client_id: str, fields: Sequence[Field]) -> None:
        self._head = '{"id":' + _encode(client_id)
        parts = [self._head.replace("%", "%%"), '"seq":%d', '"ts":%d']
        for field in fields:
            form = {DOUBLE: f"%.{field.digits}f", LONG: "%d"}.get(field.type, "%s")
            parts.append(_encode(field.name).replace("%", "%%") + ":" + form)
        self._format = ",".join(parts) + "}"
        self._fields = tuple(fields)
        self._numbers_only = all(field.type in (DOUBLE, LONG) for field in fields)

    def report(self, seq: int, ts: int, values: Sequence[Any]) -> bytes:
        if self._numbers_only:
            try:
                return (self._format % (seq, ts, *values)).encode()
            except TypeError:  # a value that is missing
                pass
        body = [
            f"{_encode(field.name)}:{_as_json(field, value)}"
            for field, value in zip(self._fields, values, strict=True)
        ]
        return ",".join((self._head, f'"seq":{seq}', f'"ts":{ts}', *body)).encode() + b"}"

    document = staticmethod(write_json)
    read = staticmethod(read_json)


def _as_json(field: Field, value: Any) -> str:
    if value is None:
        return "null"
    if field.type == DOUBLE:
        return f"{value:.{field.digits}f}"
    if field.type == LONG:
        return str(int(value))
    return _encode(value)


class CborLayout:
    """CBOR (RFC 8949): the same documents in about two thirds of the bytes."""

    __slots__ = ("_fields", "_head")

    content_type: Final = "application/cbor"
    document_type: Final = "application/cbor"

    def __init__(self, client_id: str, fields: Sequence[Field]) -> None:
        self._head = {"id": client_id}
        self._fields = tuple((field.name, field.type, field.digits) for field in fields)

    def report(self, seq: int, ts: int, values: Sequence[Any]) -> bytes:
        content: dict[str, Any] = {**self._head, "seq": seq, "ts": ts}
        for (name, type, digits), value in zip(self._fields, values, strict=True):
            if value is not None:
                if type == DOUBLE:
                    value = round(value, digits)
                elif type == LONG:
                    value = int(value)
            content[name] = value
        return self.document(content)

    @staticmethod
    def document(content: Mapping[str, Any]) -> bytes:
        raw: bytes = _cbor().dumps(content)
        return raw

    @staticmethod
    def read(raw: bytes) -> dict[str, Any]:
        if not raw:
            return {}
        if len(raw) > DOCUMENT_BYTES_MAX:
            raise Unreadable(f"more than {DOCUMENT_BYTES_MAX} bytes")
        try:
            found = _cbor().loads(raw)
        except Exception as error:
            raise Unreadable(f"not CBOR: {error}") from None
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise Unreadable("not a CBOR map of names")
        return found


def _cbor() -> Any:
    """Import cbor2 at first use, so that JSON works without it."""
    import cbor2

    return cbor2


class TemplateLayout:
    """Reports as the scenario wrote them; everything else is JSON."""

    __slots__ = ("_template",)

    content_type: Final = "text/plain"
    document_type: Final = "application/json"

    def __init__(self, template: Template) -> None:
        self._template = template

    def report(self, seq: int, ts: int, values: Sequence[Any]) -> bytes:
        return self._template.fill(seq, ts, values).encode()

    document = staticmethod(write_json)
    read = staticmethod(read_json)


def make_layout(
    payload: str, client_id: str, fields: Sequence[Field], template: Template | None
) -> Layout:
    """Make the layout for fields other than `id`, `seq` and `ts`, which begin every report."""
    if payload == JSON:
        return JsonLayout(client_id, fields)
    if payload == CBOR:
        return CborLayout(client_id, fields)
    assert payload == TEMPLATE and template is not None
    return TemplateLayout(template)

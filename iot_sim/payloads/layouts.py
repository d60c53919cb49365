"""Encode documents of declared fields, and decode commands.

Ten thousand devices send a report every interval, so the constant parts of a report are prepared:
JSON is one `%` format with names, digits and client id in place (1 us for six fields, where an
encoder of dictionaries takes 2.5). All other documents are rare and go through `document`.
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

DOCUMENT_BYTES_MAX: Final = 65_536  # of a document that a device receives


class PayloadError(ValueError):
    """Bytes that are not a document of this format."""


class Layout(Protocol):
    """The format of one device's documents."""

    @property
    def content_type(self) -> str:
        """Return the content type of reports."""

    @property
    def document_type(self) -> str:
        """Return the content type of documents other than reports."""

    def report(self, seq: int, ts: int, values: Sequence[Any]) -> bytes:
        """Encode a report: `id`, `seq`, `ts`, and the declared fields in their order."""

    def document(self, content: Mapping[str, Any]) -> bytes: ...

    def read(self, raw: bytes) -> dict[str, Any]:
        """Decode a document; an empty payload is an empty document. Raises PayloadError."""


_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _no_constant(name: str) -> float:
    raise PayloadError(f"not JSON: {name}")


_decode: Final = json.JSONDecoder(parse_constant=_no_constant).decode


def read_json(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise PayloadError(f"more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = _decode(raw.decode())
    except PayloadError:
        raise
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise PayloadError("not a JSON object")
    return found


def write_json(content: Mapping[str, Any]) -> bytes:
    return _encode(content).encode()


class JsonLayout:
    """JSON; a field's `digits` are its decimal places."""

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
            except TypeError:  # a value is None
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
            raise PayloadError(f"more than {DOCUMENT_BYTES_MAX} bytes")
        try:
            found = _cbor().loads(raw)
        except Exception as error:
            raise PayloadError(f"not CBOR: {error}") from None
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise PayloadError("not a CBOR map with text keys")
        return found


def _cbor() -> Any:
    """Import cbor2 at first use, so that JSON works without it."""
    import cbor2

    return cbor2


class TemplateLayout:
    """Reports by a template of the scenario; other documents are JSON."""

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
    """Make the layout for a model's fields; `id`, `seq` and `ts` precede them."""
    if payload == JSON:
        return JsonLayout(client_id, fields)
    if payload == CBOR:
        return CborLayout(client_id, fields)
    assert payload == TEMPLATE and template is not None
    return TemplateLayout(template)

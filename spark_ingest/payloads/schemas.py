"""From JSON Schema to columns: which fields a payload has, and what each may be.

A `Shape` is what decoding goes by. It is made from JSON Schema here, or from Spark's types in
`columns`, and gives the Arrow type of its column. What is taken of JSON Schema:

    type        object, array, string, integer, number, boolean, and one of them with null
    format      date-time of a string becomes a timestamp; others stay text
    properties  the fields; others in a payload are ignored
    required    the field has to be there, and not null unless its type says so
    items       of an array; elements may be null only where their type says so
    enum, const of one type
    $ref within the schema; anyOf and oneOf of one type and null; allOf of one

An optional field that is null is treated as missing: devices send both, and a column cannot
distinguish them. Bounds, patterns and lengths are ignored: a value outside them can still be read.
A field without a single type (a union, an object without named fields) gets no column; `left_out`
has its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

OBJECT: Final = "object"
ARRAY: Final = "array"
STRING: Final = "string"
INTEGER: Final = "integer"
NUMBER: Final = "number"
BOOLEAN: Final = "boolean"
TIME: Final = "time"
BINARY: Final = "binary"

DEPTH_MAX: Final = 32  # of objects and arrays in a schema
REFS_MAX: Final = 128  # of references and alternatives on the way to a place
FIELDS_MAX: Final = 2_000
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ELEMENT: Final = "element"  # as Spark calls it
_INTEGERS: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_SCALARS: Final = {
    STRING: pa.string(),
    BOOLEAN: pa.bool_(),
    TIME: TIMESTAMP,
    BINARY: pa.binary(),
}
_ENUM_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    STRING: (str,),
    INTEGER: (int,),
    NUMBER: (int, float),
}


class SchemaError(ValueError):
    """A schema that has no columns, with the place in the schema."""


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str
    is_required: bool = False  # a field has to be there, an element may not be null
    bits: int = 64  # of an integer or number
    enum: tuple[Any, ...] = ()
    fields: tuple[tuple[str, Shape], ...] = ()  # of an object
    element: Shape | None = None  # of an array

    @property
    def arrow(self) -> Any:
        """The type of its column. Everything may be null: a message may not fit."""
        if self.kind == OBJECT:
            return pa.struct([pa.field(name, shape.arrow) for name, shape in self.fields])
        if self.element is not None:
            return pa.list_(pa.field(ELEMENT, self.element.arrow))
        if self.kind == INTEGER:
            return _INTEGERS[self.bits]
        if self.kind == NUMBER:
            return pa.float32() if self.bits == 32 else pa.float64()
        return _SCALARS[self.kind]


class _Unclear(Exception):
    """A place in a schema that no column can be made of; why."""


@dataclass(slots=True)
class _Walk:
    root: Mapping[str, Any]
    left_out: list[str] = field(default_factory=list)
    fields: int = 0


def parse_schema(text: str) -> Mapping[str, Any]:
    """Parse a JSON Schema as it stands in a file."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise SchemaError("it is no JSON") from None
    if not isinstance(found, dict):
        raise SchemaError("it is no JSON object")
    return found


def shape_of(schema: Mapping[str, Any]) -> tuple[Shape, list[str]]:
    """Return (the shape of a payload, the fields that get no column)."""
    walk = _Walk(schema)
    try:
        shape, _ = _shape(walk, schema, "$", ("#",))
    except _Unclear as why:
        raise SchemaError(f"$: {why}") from None
    return shape, walk.left_out


def _shape(
    walk: _Walk, schema: object, place: str, refs: tuple[str, ...], depth: int = 0
) -> tuple[Shape, bool]:
    """Return (the shape, whether it may be null)."""
    if depth > DEPTH_MAX:
        raise SchemaError(f"{place}: more than {DEPTH_MAX} objects or arrays in each other")
    if len(refs) > REFS_MAX:
        raise SchemaError(f"{place}: more than {REFS_MAX} $ref, anyOf, oneOf or allOf in a row")
    if not isinstance(schema, Mapping):
        if isinstance(schema, bool):
            raise _Unclear("it may be anything")
        raise SchemaError(f"{place}: {type(schema).__name__} where a schema belongs")
    if "$ref" in schema:
        ref = schema["$ref"]
        if ref in refs:
            raise _Unclear(f"{ref} refers to itself")
        return _shape(walk, _resolve(walk.root, ref, place), place, (*refs, ref), depth)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _of_many(walk, schema[key], f"{place} {key}", refs, depth, is_all=key == "allOf")
    kind, nullable = _kind(schema, place)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    shape = Shape(kind)
    if kind == OBJECT:
        shape = _object(walk, schema, place, refs, depth)
    elif kind == ARRAY:
        element, may_be_null = _shape(
            walk, schema.get("items", True), f"{place}[]", refs, depth + 1
        )
        shape = Shape(ARRAY, element=replace(element, is_required=not may_be_null))
    elif kind == STRING and schema.get("format") == "date-time":
        shape = Shape(TIME)
    if values is not None:
        nullable = None in values and (nullable or "type" not in schema)
        shape = replace(shape, enum=_enum(shape.kind, values))
    return shape, nullable


def _resolve(root: Mapping[str, Any], ref: object, place: str) -> object:
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise SchemaError(f"{place}: $ref {ref!r} leads out of the schema")
    found: Any = root
    for step in ref[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            raise SchemaError(f"{place}: $ref {ref!r} leads nowhere")
        found = found[step]
    return found


def _of_many(
    walk: _Walk, parts: object, place: str, refs: tuple[str, ...], depth: int, *, is_all: bool
) -> tuple[Shape, bool]:
    if not isinstance(parts, list):
        raise SchemaError(f"{place}: it is no array")
    real = [part for part in parts if part != {"type": "null"}]
    if len(real) != 1:
        raise _Unclear("it has several types")
    shape, nullable = _shape(walk, real[0], place, (*refs, ""), depth)
    return shape, nullable or (len(real) < len(parts) and not is_all)


def _kind(schema: Mapping[str, Any], place: str) -> tuple[str, bool]:
    said = schema.get("type")
    if said is None:
        return _kind_by_keywords(schema), False
    names = said if isinstance(said, list) else [said]
    known = {OBJECT, ARRAY, STRING, INTEGER, NUMBER, BOOLEAN}
    for name in names:
        if not isinstance(name, str) or name not in known | {"null"}:
            raise SchemaError(f"{place}: there is no type {name!r}")
    real = {name for name in names if name != "null"}
    if real == {INTEGER, NUMBER}:
        real = {NUMBER}
    if len(real) != 1:
        raise _Unclear("it has several types" if real else "it is always null")
    return real.pop(), "null" in names


def _kind_by_keywords(schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        return OBJECT
    if "items" in schema:
        return ARRAY
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    for kind, types in _ENUM_TYPES.items():
        if values and all(value is None or type(value) in types for value in values):
            return kind
    raise _Unclear("it has no type")


def _enum(kind: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list) or kind not in _ENUM_TYPES:
        raise _Unclear("its values are not of one simple type")
    found = [value for value in values if value is not None]
    if not found or any(type(value) not in _ENUM_TYPES[kind] for value in found):
        raise _Unclear("its values are not of one simple type")
    return tuple(float(value) for value in found) if kind == NUMBER else tuple(found)


def _object(
    walk: _Walk, schema: Mapping[str, Any], place: str, refs: tuple[str, ...], depth: int
) -> Shape:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
        raise SchemaError(f"{place}: properties is no object, or required no array")
    fields = []
    for name, part in properties.items():
        inside = f"{place}.{name}"
        walk.fields += 1
        if walk.fields > FIELDS_MAX:
            raise SchemaError(f"{inside}: more than {FIELDS_MAX} fields")
        try:
            shape, nullable = _shape(walk, part, inside, refs, depth + 1)
        except _Unclear as why:
            walk.left_out.append(f"{inside}: {why}")
            continue
        fields.append((name, replace(shape, is_required=name in required and not nullable)))
    if not fields:
        raise _Unclear("it has no fields that a column can be made of")
    return Shape(OBJECT, fields=tuple(fields))

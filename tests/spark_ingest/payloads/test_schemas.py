"""JSON Schema to columns: what is taken, what is left out, what is an error."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ingest.payloads.schemas import SchemaError, shape_of


def in_a_row(count: int, key: str) -> dict[str, Any]:
    if key == "$ref":
        hops = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
        return {"$ref": "#/$defs/d0", "$defs": {**hops, f"d{count}": {"type": "integer"}}}
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(count):
        found = {key: {"a": found} if key == "properties" else [found]}
    return found


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"enum": ["a", None]}, "string"),
        ({"const": 5}, "int64"),
        ({"items": {"type": "boolean"}}, "list<element: bool>"),
        ({"properties": {"a": {"type": "string"}}}, "struct<a: string>"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "int64"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, "int64"),
        ({"type": "string", "format": "uuid"}, "string"),
    ],
)
def test_columns_of_a_schema(schema: dict[str, Any], kind: str) -> None:
    shape, left_out = shape_of(schema)
    assert str(shape.arrow) == kind
    assert left_out == []


def test_fields_without_a_type_are_left_out() -> None:
    shape, left_out = shape_of(
        {
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": ["integer", "string"]},
                "c": {"type": "object"},
                "d": True,
                "e": {"$ref": "#"},
                "f": {"type": "array"},
                "g": {"enum": ["x", 1]},
            }
        }
    )
    assert str(shape.arrow) == "struct<a: int64>"
    assert left_out == [
        "$.b: it has several types",
        "$.c: it has no fields that a column can be made of",
        "$.d: it may be anything",
        "$.e: # refers to itself",
        "$.f: it may be anything",
        "$.g: it has no type",
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (in_a_row(900, "allOf"), "more than 128 $ref, anyOf, oneOf or allOf in a row"),
        (in_a_row(900, "properties"), "more than 32 objects or arrays in each other"),
        (in_a_row(900, "$ref"), "more than 128 $ref, anyOf, oneOf or allOf in a row"),
        ({}, "$: it has no type"),
        ({"type": "object"}, "$: it has no fields"),
        ({"type": "text"}, "$: there is no type 'text'"),
        ({"properties": {"a": 5}}, "$.a: int where a schema belongs"),
        ({"properties": []}, "$: properties is no object"),
        ({"$ref": "http://x"}, "$: $ref 'http://x' leads out of the schema"),
        ({"$ref": "#/nowhere"}, "$: $ref '#/nowhere' leads nowhere"),
        ({"anyOf": 1}, "$ anyOf: it is no array"),
    ],
)
def test_a_schema_that_is_none(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError) as caught:
        shape_of(schema)
    assert said in str(caught.value)


def test_a_schema_of_any_depth_is_an_error() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="more than 32 objects or arrays in each other"):
        shape_of(schema)

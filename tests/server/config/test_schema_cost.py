"""The cost of a schema: references count as often as they are followed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mqtt_broker.server.config.schema_cost import STEPS_MAX, schema_problem

MULTIPLY = "its references multiply: a value would be checked against more than 100,000 schemas"


def powers(base: int, levels: int) -> dict[str, Any]:
    """Each definition refers so often to the next."""
    definitions = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * base} for n in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({}, ""),
        (True, ""),
        ({"$ref": "#"}, ""),
        ({"$ref": "#/$defs/none"}, ""),  # the compiler says so
        ({"$ref": "#/items/0"}, ""),
        ({"$ref": ["#"]}, ""),
        ({"items": [{"$ref": "#/items/1"}, {"$ref": "#/items/0"}]}, ""),
        ({"$ref": "#/" + "a/" * 10_000}, ""),
        (powers(1, 4_000), ""),
        (powers(2, 14), ""),
        (powers(2, 16), MULTIPLY),
        (powers(2, 1_000), MULTIPLY),
        (powers(10, 5), MULTIPLY),
        ({"$defs": {f"a{n}": powers(2, 16) for n in range(3)}}, ""),  # nothing refers to them
    ],
)
def test_references(schema: Any, says: str) -> None:
    assert schema_problem(schema) == says


def test_names_are_followed_like_places() -> None:
    for key, name in (("$anchor", "#{}"), ("$dynamicAnchor", "#{}"), ("$id", "{}")):
        schema = {
            "$defs": {
                f"d{n}": {
                    key: f"n{n}",
                    "allOf": [{"$ref": name.format(f"n{n + 1}")}] * 2,
                }
                for n in range(30)
            },
            "$ref": name.format("n0"),
        }
        assert schema_problem(schema) == MULTIPLY, key


def test_schemas_of_fleets_are_far_from_the_limit() -> None:
    """A hundred kinds of measurements with ten figures each, in one of twenty forms."""
    figure = {"type": "object", "properties": {k: {"type": "number"} for k in "abcdefghij"}}
    one = {"properties": {f"m{n}": {"$ref": "#/$defs/figure"} for n in range(100)}}
    schema = {"$defs": {"figure": figure, "one": one}, "oneOf": [{"$ref": "#/$defs/one"}] * 20}
    assert schema_problem(schema) == ""
    assert STEPS_MAX >= 100_000


def test_depth_and_size_come_first() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"not": deep}
    assert schema_problem(deep).startswith("it is nested")
    wide = dict.fromkeys(map(str, itertools.islice(itertools.count(), 30_000)), True)
    assert schema_problem({"properties": wide}).startswith("it has more than 20,000")

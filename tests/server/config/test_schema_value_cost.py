"""What a schema costs for one value: alternatives add up, members do not."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.server.config.schema_cost import STEPS_MAX
from mqtt_broker.server.config.schema_value_cost import VALUE_COST_MAX, value_cost

CONST = {"const": 1}
ONE = value_cost(CONST).most


def powers(levels: int) -> dict[str, Any]:
    """Each definition applies the next one twice to the same value."""
    found = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**found, f"d{levels}": CONST}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        True, False, {}, {"type": "object"}, {"properties": {"a": {"type": "number"}}},
        {"$ref": "#/nowhere"}, {"$ref": 5}, {"anyOf": {}}, {"properties": []}, {"items": 7},
        {"enum": {}}, {"dependentRequired": []}, {"patternProperties": 1}, {"not": 3},
    ],
)  # fmt: skip
def test_what_says_nothing_costs_nothing(schema: Any) -> None:
    assert value_cost(schema).most <= 1 and not value_cost(schema).leads_back


@pytest.mark.parametrize(
    ("schema", "times"),
    [
        ({"anyOf": [CONST] * 50}, 50),
        ({"allOf": [{"oneOf": [CONST] * 5}] * 5}, 25),
        ({"items": {"anyOf": [CONST] * 50}}, 50),
        ({"prefixItems": [CONST, CONST, {"anyOf": [CONST] * 3}]}, 3),  # one of them
        ({"properties": {f"p{n}": CONST for n in range(100)}}, 1),  # one of them
        ({"patternProperties": {f"p{n}": CONST for n in range(9)}}, 9),  # all may match
        ({"anyOf": [{"properties": {"a": CONST}}] * 20}, 20),
        ({"allOf": [{"contains": CONST}] * 7}, 7),
        ({"if": CONST, "then": CONST, "else": CONST}, 3),
        ({"not": {"not": {"not": CONST}}}, 1),
        ({"dependentSchemas": {"a": CONST, "b": CONST}}, 2),
        ({"$defs": {"a": CONST}, "anyOf": [{"$ref": "#/$defs/a"}] * 10}, 10),
        ({"$defs": {"a": {"$anchor": "x", **CONST}}, "anyOf": [{"$ref": "#x"}] * 10}, 10),
        (powers(10), 1_024),
    ],
)
def test_what_is_applied_to_one_value_adds_up(schema: Any, times: int) -> None:
    most = value_cost(schema).most
    assert times * ONE <= most <= 1.5 * times * ONE + 20


def test_it_is_bounded() -> None:
    assert value_cost(powers(100)).most == VALUE_COST_MAX
    assert value_cost(powers(3_000)).most == STEPS_MAX


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"$ref": "#"}},
        {"$ref": "#"},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}},
         "$ref": "#/$defs/a"},
        {"$id": "https://example.org/tree", "$dynamicAnchor": "n",
         "properties": {"children": {"items": {"$dynamicRef": "#n"}}}},
        {"additionalProperties": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    ],
)  # fmt: skip
def test_schemas_that_refer_to_themselves(schema: Any) -> None:
    found = value_cost(schema)
    assert found.leads_back and found.most < 100

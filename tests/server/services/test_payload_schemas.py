"""One schema and what hostile payloads do to it: an answer each, at once, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqtt_broker.server.config.schema_value_cost import value_cost
from mqtt_broker.server.config.schemas import WHY_CHARS_MAX, Schema
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.services.payload_schemas import (
    COST_MAX,
    TOO_MANY,
    VIOLATED,
    WHY_BYTES_MAX,
    SchemaCheck,
)
from tests.instructions import instructions, needs_valgrind

AGAIN_AND_AGAIN = "^((a+)+|(a|aa)+|(\\w+\\s?)*)$"
ALTERNATIVES = {"items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}


def problem(definition: dict[str, Any], payload: bytes) -> str:
    return SchemaCheck(Schema("t/#", "reject", definition)).problem(payload)


@pytest.mark.parametrize(
    ("definition", "payload", "says"),
    [
        ({"type": "object"}, b"{}", ""),
        ({"type": "object"}, b"[]", "is not of type"),
        ({}, b"", "not JSON"),
        ({}, b"\xff", "not JSON"),
        ({}, b"NaN", "not JSON"),
        ({}, b"1" * 5000, "not JSON"),
        ({}, b"[" * 90_000, "nested too deep"),
        ({"items": {"$ref": "#"}}, b"[" * 900 + b"]" * 900, ""),
        ({"type": "string", "maxLength": 2}, b'"\\ud800"', "cannot be validated"),
        ({"enum": ["a"]}, b'"\\udfff"', "cannot be validated"),
        ({"additionalProperties": False}, b'{"a\\u0000\\n": 1}', "payload"),
    ],
)
def test_whatever_comes_there_is_an_answer(
    definition: dict[str, Any], payload: bytes, says: str
) -> None:
    found = problem(definition, payload)
    assert says in found
    assert bool(found) == bool(says)
    assert found.isprintable()
    assert len(found) <= WHY_CHARS_MAX


def test_why_is_told_of_payloads_that_are_not_large() -> None:
    assert "payload[0]: 0 is not valid" in problem(ALTERNATIVES, b"[0]")


def test_no_reason_is_sought_in_large_payloads() -> None:
    """It may take a look at the payload for each of its parts: ten seconds at 1 MB."""
    count = WHY_BYTES_MAX // 3
    payload, larger = (json.dumps([0] * n).encode() for n in (count, count + 1))
    assert len(payload) <= WHY_BYTES_MAX < len(larger)
    assert problem(ALTERNATIVES, payload).startswith("payload[0]")
    assert problem(ALTERNATIVES, larger) == "the payload violates its schema"


# Checks a payload of that many parts, after all imports and the compilation of the schema.
ONE_CHECK = """
import json, sys
from mqtt_broker.server.config.schemas import Schema
from mqtt_broker.server.services.payload_schemas import SchemaCheck

definition, payload = json.loads(sys.argv[1]), eval(sys.argv[2], {"count": int(sys.argv[3])})
SchemaCheck(Schema("t/#", "reject", definition)).problem(json.dumps(payload).encode())
"""


@pytest.mark.slow
@needs_valgrind
@pytest.mark.parametrize(
    ("definition", "payload"),
    [({"pattern": AGAIN_AND_AGAIN}, "'a' * count + '!'"),
     ({"uniqueItems": True}, "[[n] for n in range(count)]")],
    ids=["each letter is looked at once", "items are not compared with each other"],
)  # fmt: skip
def test_ten_times_as_much_takes_ten_times_as_long(
    definition: dict[str, Any], payload: str
) -> None:
    """Not a hundred times, nor 2^10 times."""
    none, few, many = (
        instructions(ONE_CHECK, json.dumps(definition), payload, count) for count in (1, 500, 5_000)
    )
    assert 5 * (few - none) < many - none < 25 * (few - none)


def nested(levels: int, key: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        found = {key: {"a": found} if key == "properties" else [found]}
    return found


def multiplied(levels: int, key: str = "$ref") -> dict[str, Any]:
    """Each definition applies the next one twice."""
    name = "#/$defs/d{}" if key == "$ref" else "#d{}"
    definitions = {
        f"d{n}": {
            "$anchor": f"d{n}",
            "allOf": [{key: name.format(n + 1)}, {key: name.format(n + 1)}],
        }
        for n in range(levels)
    }
    return {"$defs": {**definitions, f"d{levels}": {"$anchor": f"d{levels}"}}, key: name.format(0)}


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (nested(900, "properties"), "it is nested in more than 64 levels"),
        (nested(33, "allOf"), "it is nested in more than 64 levels"),
        ({"enum": list(range(30_000))}, "it has more than 20,000 values"),
        (multiplied(30), "its references multiply: a value would be checked against more than"),
        (multiplied(30, "$dynamicRef"), "its references multiply"),
        ({"allOf": [{"$ref": "#/nowhere"}]}, "/nowhere"),
        ({"$ref": "https://example.org/s.json"}, "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
        ({"pattern": "(?=a)"}, "look-around or back-references, whose time has no bound"),
        ({"pattern": "(a)\\1"}, 'pattern "(a)'),
        ({"patternProperties": {"(?<!a)b": {}}}, "look-around"),
        ({"pattern": "((a{0,1000}){0,1000}){0,1000}"}, "too large"),
        ({"pattern": "(" * 9_000 + ")" * 9_000}, "pattern"),
        ({"pattern": "("}, 'pattern "(" is wrong'),
        ({"type": 5}, "5 is not valid"),
        ({"required": [1]}, "1 is not of type"),
    ],
)
def test_a_schema_that_costs_too_much_is_refused(definition: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchemaCheck(Schema("t/#", "reject", definition))
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2 * WHY_CHARS_MAX


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        (nested(31, "properties"), b"{}"),
        ({"$ref": "#"}, b"{}"),
        ({"allOf": [{"$ref": "#"}]}, b"{}"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
         b"{}"),
        ({"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}, b"[" * 200 + b"]" * 200),
        (multiplied(10), b"{}"),
        ({"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}
          | {"d3000": {"type": "object"}}, "$ref": "#/$defs/d0"}, b"{}"),
        ({"$id": "https://example.org/s", "items": {"$ref": "s#/$defs/a"}, "$defs": {"a": {}}},
         b"[1]"),
    ],
)  # fmt: skip
def test_references_that_lead_back_or_far(definition: dict[str, Any], payload: bytes) -> None:
    assert problem(definition, payload) == ""


CONSTANTS = {"items": {"anyOf": [{"const": n} for n in range(50)]}}


def test_what_takes_long_to_check_is_not_checked() -> None:
    """Two million bytes took ten seconds; as many as fit are checked."""
    check = SchemaCheck(Schema("t/#", "reject", CONSTANTS))
    most = COST_MAX // value_cost(CONSTANTS).most
    for count, says in ((most - 2, ""), (most, TOO_MANY), (900_000, TOO_MANY)):
        assert check.problem(b"[" + b",".join([b"7"] * count) + b"]") == says
    assert 5_000 < most < 20_000
    assert (
        problem({"items": {"type": "number", "minimum": 0}}, b"[" + b"7," * 900_000 + b"7]") == ""
    )


@pytest.mark.parametrize(
    ("definition", "inside"),
    [
        ({"oneOf": [{"type": "array", "items": {"$ref": "#"}},
                    {"items": {"$ref": "#"}, "maxItems": 0}, {"type": "null"}]}, b""),
        ({"$defs": {"n": {"type": "array", "anyOf": [{"items": {"$ref": "#/$defs/n"}}] * 2}},
          "$ref": "#/$defs/n"}, b"7"),
    ],
)  # fmt: skip
def test_no_reason_is_sought_in_schemas_that_refer_to_themselves(
    definition: dict[str, Any], inside: bytes
) -> None:
    """It is looked for at each level again: thirty levels would take a day."""
    assert problem(definition, b"[" * 30 + inside + b"]" * 30) == VIOLATED


def test_no_reason_is_sought_among_very_many_values() -> None:
    wrong = b"[" + b",".join([b"99"] * 2_000) + b"]"
    assert len(wrong) < WHY_BYTES_MAX and problem(CONSTANTS, wrong) == VIOLATED
    assert problem(CONSTANTS, b"[99]").startswith("payload[0]")


def test_the_cost_of_a_check_is_told_before() -> None:
    """The core gives others their turn after it."""
    check = SchemaCheck(Schema("t/#", "reject", CONSTANTS))
    assert check.cost(b"[7]") < 1_000
    small, large = (check.cost(b"[" + b"7," * count + b"7]") for count in (700, 7_000))
    assert 9 * small < large < 11 * small and large > 500_000
    assert check.cost(b"[" + b"7," * 900_000 + b"7]") < 2 * COST_MAX // 10

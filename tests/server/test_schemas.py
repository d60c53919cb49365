"""One schema and what hostile payloads do to it: an answer each, at once, and never an error."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from mqtt_broker.server.config.schemas import WHY_CHARS_MAX, Schema
from mqtt_broker.server.services.payload_schemas import WHY_BYTES_MAX, SchemaCheck

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
    payload = json.dumps([0] * WHY_BYTES_MAX).encode()
    assert problem(ALTERNATIVES, payload) == "the payload does not fit its schema"


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        (ALTERNATIVES, json.dumps(list(range(150_000))).encode()),
        (ALTERNATIVES, json.dumps([0] * (WHY_BYTES_MAX // 3 - 1)).encode()),
        ({"pattern": "^(a+)+\\1$"}, b'"' + b"a" * 1_000_000 + b'!"'),
        ({"contains": {"pattern": "(a|aa)+\\1(?=b)"}}, json.dumps(["a" * 40] * 1000).encode()),
        ({"uniqueItems": True}, json.dumps([[n] for n in range(100_000)]).encode()),
    ],
)
def test_no_payload_holds_up_the_loop(definition: dict[str, Any], payload: bytes) -> None:
    """A second of CPU is far from what these need, and from what they needed: ten to a thousand."""
    start = time.process_time()
    problem(definition, payload)
    assert time.process_time() - start < 1.0

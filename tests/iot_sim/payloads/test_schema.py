"""Schemas are rendered from the fields that a model declares."""

from __future__ import annotations

import json

import pytest

from iot_sim.models.catalogue import models
from iot_sim.payloads.schema import (
    BINARY,
    BOOLEAN,
    DOUBLE,
    LONG,
    STRING,
    Field,
    plain,
    schema_errors,
    spark_ddl,
    spark_json,
)

FIELDS = (
    Field("id", STRING),
    Field("temperature", DOUBLE, "°C", nullable=True, help="it's measured"),
    Field("Inputs/Set `Point`", LONG),
    Field("on", BOOLEAN),
    Field("raw", BINARY, nullable=True),
)


def test_ddl() -> None:
    assert spark_ddl(FIELDS) == (
        "`id` STRING NOT NULL, `temperature` DOUBLE COMMENT 'it\\'s measured, °C', "
        "`Inputs/Set ``Point``` BIGINT NOT NULL, `on` BOOLEAN NOT NULL, `raw` BINARY"
    )


def test_json() -> None:
    found = json.loads(spark_json(FIELDS))
    assert found["type"] == "struct"
    assert found["fields"][1] == {
        "name": "temperature",
        "type": "double",
        "nullable": True,
        "metadata": {"comment": "it's measured, °C", "unit": "°C"},
    }
    assert [
        field["type"] for field in found["fields"]
    ] == "string double long boolean binary".split()


def test_plain() -> None:
    assert plain(FIELDS)[0] == {
        "name": "id",
        "type": "string",
        "nullable": False,
        "unit": "",
        "choices": [],
        "help": "",
    }


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, []),
        ({"temperature": None, "raw": None}, []),
        ({"temperature": 3}, []),
        ({"id": None}, ["id: null"]),
        ({"id": 3}, ["id: 3 is not a string"]),
        ({"temperature": True}, ["temperature: True is not a double"]),
        ({"Inputs/Set `Point`": 1.0}, ["Inputs/Set `Point`: 1.0 is not a long"]),
        ({"Inputs/Set `Point`": 2**63}, [f"Inputs/Set `Point`: {2**63} is not a long"]),
        ({"on": 1}, ["on: 1 is not a boolean"]),
        ({"raw": "x"}, ["raw: 'x' is not a binary"]),
        ({"more": 1}, ["more: unknown"]),
    ],
)
def test_misfits(document: dict[str, object], found: list[str]) -> None:
    good = {"id": "a", "temperature": 1.5, "Inputs/Set `Point`": 1, "on": True, "raw": b""}
    assert schema_errors(FIELDS, {**good, **document}) == found


def test_what_is_missing_or_no_choice() -> None:
    fields = (Field("a", STRING, choices=("x", "y")), Field("b", LONG))
    assert schema_errors(fields, {"a": "z"}) == ["a: 'z' is not one of x, y", "b: missing"]


@pytest.mark.parametrize("model", models())
def test_every_document_of_every_model_has_a_schema(model: str) -> None:
    info = models()[model]
    assert info.fields == info.documents["telemetry"]
    for fields in info.documents.values():
        names = [field.name for field in fields]
        assert len(names) == len(set(names))
        ddl = spark_ddl(fields)
        assert len(json.loads(spark_json(fields))["fields"]) == len(names)
        assert all(name in ddl for name in names)

"""The schema of a device's documents: declared by the model, rendered for Spark.

Payloads are encoded by the declared fields, and the schemas that Spark reads them with are
generated as text, so Spark is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

STRING: Final = "string"
LONG: Final = "long"
DOUBLE: Final = "double"
BOOLEAN: Final = "boolean"
BINARY: Final = "binary"

# The types in Spark's DDL; its JSON form uses our names.
_DDL: Final = {
    STRING: "STRING", LONG: "BIGINT", DOUBLE: "DOUBLE", BOOLEAN: "BOOLEAN", BINARY: "BINARY",
}  # fmt: skip
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a flat document."""

    name: str
    type: str
    unit: str = ""
    nullable: bool = False
    digits: int = 2  # decimal places of a double
    choices: tuple[str, ...] = ()  # all values of a string, if they are known
    help: str = ""


# Every document begins with these.
HEADER_FIELDS: Final = (
    Field("id", STRING, help="client id of the device"),
    Field("seq", LONG, help="number of the report since the device started"),
    Field("ts", LONG, "ms", help="the device's own clock, since 1970"),
)


def plain(fields: Iterable[Field]) -> list[dict[str, object]]:
    """Return the schema as plain data."""
    return [
        {
            "name": field.name,
            "type": field.type,
            "nullable": field.nullable,
            "unit": field.unit,
            "choices": list(field.choices),
            "help": field.help,
        }
        for field in fields
    ]


def _comment(field: Field) -> str:
    return ", ".join(part for part in (field.help, field.unit) if part)


def spark_ddl(fields: Iterable[Field]) -> str:
    """Render the schema for `CREATE TABLE`, `from_json` and a reader's `schema()`."""
    columns = []
    for field in fields:
        name = field.name.replace("`", "``")
        column = f"`{name}` {_DDL[field.type]}"
        if not field.nullable:
            column += " NOT NULL"
        if comment := _comment(field):
            escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
            column += f" COMMENT '{escaped}'"
        columns.append(column)
    return ", ".join(columns)


def spark_json(fields: Iterable[Field]) -> str:
    """Render the schema for `StructType.fromJson`, with the units as metadata."""
    return json.dumps(
        {
            "type": "struct",
            "fields": [
                {
                    "name": field.name,
                    "type": field.type,
                    "nullable": field.nullable,
                    "metadata": {
                        key: value
                        for key, value in (("comment", _comment(field)), ("unit", field.unit))
                        if value
                    },
                }
                for field in fields
            ],
        }
    )


def schema_errors(fields: Iterable[Field], document: Mapping[str, Any]) -> list[str]:
    """Return how a document violates the schema; empty if it does not."""
    found = []
    known = set()
    for field in fields:
        known.add(field.name)
        if field.name not in document:
            found.append(f"{field.name}: missing")
        elif (value := document[field.name]) is None:
            if not field.nullable:
                found.append(f"{field.name}: null")
        elif not _has_type(field.type, value):
            found.append(f"{field.name}: {value!r} is not a {field.type}")
        elif field.choices and value not in field.choices:
            found.append(f"{field.name}: {value!r} is not one of {', '.join(field.choices)}")
    found += [f"{name}: unknown" for name in document if name not in known]
    return found


def _has_type(type: str, value: object) -> bool:
    if isinstance(value, bool):
        return type == BOOLEAN
    if isinstance(value, int):
        return type == DOUBLE or (type == LONG and -_LONG_MAX - 1 <= value <= _LONG_MAX)
    if isinstance(value, float):
        return type == DOUBLE
    if isinstance(value, str):
        return type == STRING
    return type == BINARY and isinstance(value, bytes)

"""The `[[schemas]]` of a configuration file: JSON Schemas for the payloads of a Topic Filter.

The mode says what happens to a payload that violates the schema. `off`: nothing, the schema only
gives a stream its columns. `warn`: it is counted and logged. `reject`: it is refused with 0x99 and
a Reason String. `services.payload_schemas` checks payloads.

Schemas are compiled by jsonschema-rs, which is imported only when there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mqtt_broker.server.config.schema_cost import schema_problem
from mqtt_broker.server.config.streams import read_schema
from mqtt_broker.server.config.tables import ConfigError, tables
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.topics.names import filter_problem

MODES: Final = ("off", "warn", "reject")
WHY_CHARS_MAX: Final = 200
_NO_PATTERN: Final = ' is not a "regex"'


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema for the payloads of a Topic Filter."""

    filter: str
    mode: str
    definition: dict[str, Any] = field(hash=False)


def read_schemas(found: Any, path: str) -> tuple[Schema, ...]:
    """Read and compile the schemas. Raises ConfigError."""
    schemas = []
    for table in tables("schemas", found, path, ("filter", "file", "mode")):
        text = table.text("filter")
        if problem := filter_problem(text):
            raise table.error(f"filter {text!r}: {problem}")
        mode = table.choice("mode", MODES, "reject")
        file = table.text("file")
        definition = read_schema(Path(path).parent / file, table)
        compile_schema(definition, f"{table.where}: {file}")
        schemas.append(Schema(text, mode, definition))
    return tuple(schemas)


def with_columns(
    streams: Sequence[StreamSettings], schemas: Sequence[Schema]
) -> tuple[StreamSettings, ...]:
    """Give each stream without a schema the one for its filter, so that readers get columns."""
    definitions = {schema.filter: schema.definition for schema in reversed(schemas)}
    return tuple(
        stream
        if stream.schema is not None or stream.filter not in definitions
        else replace(stream, schema=definitions[stream.filter])
        for stream in streams
    )


def compile_schema(definition: dict[str, Any], where: str) -> Any:
    """Return the validator of a schema. Raises ConfigError, which names the part that is wrong.

    Patterns must match in time linear in the text, so look-around and back-references are refused.
    """
    if problem := schema_problem(definition):
        raise ConfigError(f"{where}: {problem}")
    try:
        import jsonschema_rs
    except ImportError:
        raise ConfigError(
            f"{where}: schemas need jsonschema-rs: pip install 'fleetmq[schemas]'"
        ) from None
    try:
        return jsonschema_rs.validator_for(
            definition,
            validate_formats=True,
            retriever=_refuse_to_fetch,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except Exception as error:  # several types of errors; all mean that the schema is wrong
        why = str(error)
        if _NO_PATTERN in why:
            pattern = one_line(why.partition(_NO_PATTERN)[0])
            raise ConfigError(
                f"{where}: pattern {pattern} is wrong, too large, or has look-around or "
                "back-references, whose time has no bound"
            ) from None
        raise ConfigError(f"{where}: {one_line(why)}") from None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and nothing is fetched: put it into the schema")


def one_line(text: str) -> str:
    """Make a text fit for a Reason String and a log line: one line, printable, short."""
    text = text.split("\n", 1)[0]
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= WHY_CHARS_MAX else text[: WHY_CHARS_MAX - 3] + "..."

"""The `[[schemas]]` of a configuration file: JSON Schemas for the payloads of a Topic Filter.

The mode says what happens to a payload that does not fit: nothing with `off` (the schema only
gives a stream its columns), a count and a log line with `warn`, a refusal with 0x99 and the
reason with `reject`. The first schema whose filter matches a topic applies.

Schemas are compiled by jsonschema-rs, which is imported only when there are any: 0.1 us a message,
beside the 1.5 us it takes to read the JSON.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mqtt_broker.core.interfaces.payload_checks import PayloadCheck
from mqtt_broker.server.config.streams import read_schema
from mqtt_broker.server.config.tables import ConfigError, tables
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.topics.names import filter_problem, matches

MODES: Final = ("off", "warn", "reject")
WHY_CHARS_MAX: Final = 200
# To find what is wrong, a schema with alternatives may look at a payload once for each of its
# parts: at 1 MB that took ten seconds, on the event loop.
WHY_BYTES_MAX: Final = 8 << 10
# A pattern with look-around or back-references may try so many ways a text: 0.3 ms.
_BACKTRACK_MAX: Final = 10_000
LOG_EVERY_S: Final = 10.0
_log = logging.getLogger("fleetmq")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)  # no NaN, no Infinity


@dataclass(frozen=True, slots=True)
class Schema:
    filter: str
    mode: str
    definition: dict[str, Any] = field(hash=False)


def read_schemas(found: Any, path: str) -> tuple[Schema, ...]:
    schemas = []
    for table in tables("schemas", found, path, ("filter", "file", "mode")):
        text = table.text("filter")
        if problem := filter_problem(text):
            raise table.error(f"filter {text!r}: {problem}")
        mode = table.choice("mode", MODES, "reject")
        file = table.text("file")
        definition = read_schema(Path(path).parent / file, table)
        _compile(definition, f"{table.where}: {file}")
        schemas.append(Schema(text, mode, definition))
    return tuple(schemas)


def with_columns(
    streams: Sequence[StreamSettings], schemas: Sequence[Schema]
) -> tuple[StreamSettings, ...]:
    """Give streams without a schema the one of their filter, so that readers get columns."""
    definitions = {schema.filter: schema.definition for schema in reversed(schemas)}
    return tuple(
        stream
        if stream.schema is not None or stream.filter not in definitions
        else replace(stream, schema=definitions[stream.filter])
        for stream in streams
    )


def _compile(definition: dict[str, Any], where: str) -> Any:
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
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_MAX),
        )
    except Exception as error:  # the library has several, and all mean that the schema is wrong
        raise ConfigError(f"{where}: {_one_line(str(error))}") from None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"{uri} is not in the schema, and nothing is fetched")


class SchemaCheck:
    """A compiled schema, with its counters."""

    def __init__(self, schema: Schema, now: Callable[[], float] = time.monotonic) -> None:
        self.schema = schema
        self.rejected = 0
        self.warned = 0
        self._validator = _compile(schema.definition, schema.filter)
        self._now = now
        self._log_at = 0.0

    def problem(self, payload: bytes) -> str:
        why = self._problem(payload)
        if not why:
            return ""
        if self.schema.mode == "reject":
            self.rejected += 1
            return why
        self.warned += 1
        if self._now() >= self._log_at:
            self._log_at = self._now() + LOG_EVERY_S
            _log.warning(
                "schema %s: %s (%d messages until now)", self.schema.filter, why, self.warned
            )
        return ""

    def _problem(self, payload: bytes) -> str:
        try:
            instance = _JSON.decode(payload.decode())
        except RecursionError:
            return "the payload is nested too deeply"
        except ValueError:
            return "the payload is not JSON"
        try:
            if self._validator.is_valid(instance):
                return ""
            if len(payload) > WHY_BYTES_MAX:
                return "the payload does not fit its schema"
            error = next(self._validator.iter_errors(instance))
        except ValueError:  # half of a surrogate pair, or a number that none of its types holds
            return "the payload has text or numbers that cannot be validated"
        place = "".join(f"[{step!r}]" for step in error.instance_path)
        return _one_line(f"payload{place}: {error.message}")


class SchemaChecks:
    """All schemas that check payloads, for the broker's `PayloadChecks` interface."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self.checks = [SchemaCheck(schema) for schema in schemas if schema.mode != "off"]

    def find(self, topic: str) -> PayloadCheck | None:
        for check in self.checks:
            if matches(check.schema.filter, topic):
                return check
        return None


def _one_line(text: str) -> str:
    """Make a text fit for a Reason String and a log line: printable, and not long."""
    text = text.split("\n", 1)[0]
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= WHY_CHARS_MAX else text[: WHY_CHARS_MAX - 3] + "..."

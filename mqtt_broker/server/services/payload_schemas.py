"""Check payloads against the JSON Schemas of the configuration.

The first schema whose filter matches a topic applies. A check takes 0.1 us a message, in addition
to 1.5 us for parsing the JSON.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from mqtt_broker.core.interfaces.payload_checks import PayloadCheck
from mqtt_broker.server.config.schema_value_cost import value_cost
from mqtt_broker.server.config.schemas import Schema, compile_schema, one_line
from mqtt_broker.topics.names import matches

# The highest cost of a check, in units of 10 ns: it runs on the event loop, so all clients wait.
COST_MAX: Final = 10_000_000
# To explain a violation, a schema with alternatives may check each part of a payload again and
# keep all errors: with 1 MB that took ten seconds. A recursive schema does so at each level:
# sixteen brackets took as long.
WHY_BYTES_MAX: Final = 8 << 10
WHY_COST_MAX: Final = COST_MAX // 20
_SMALL_COST: Final = 10_000  # smaller payloads: their values are not counted
TOO_MANY: Final = "the payload has too many values for its schema"
VIOLATED: Final = "the payload violates its schema"
LOG_EVERY_S: Final = 10.0
_log = logging.getLogger("fleetmq")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)  # no NaN, no Infinity


class SchemaCheck:
    """A compiled schema, with its counters."""

    def __init__(self, schema: Schema, now: Callable[[], float] = time.monotonic) -> None:
        self.schema = schema
        self.rejected = 0
        self.warned = 0
        self._validator = compile_schema(schema.definition, schema.filter)
        self._cost = value_cost(schema.definition)
        self._now = now
        self._log_at = 0.0

    def problem(self, payload: bytes) -> str:
        """Return why the payload is refused, or "" if it is accepted."""
        why = self._problem(payload)
        if not why:
            return ""
        if self.schema.mode == "reject":
            self.rejected += 1
            return why
        self.warned += 1
        if self._now() >= self._log_at:
            self._log_at = self._now() + LOG_EVERY_S
            _log.warning("schema %s: %s (%d messages so far)", self.schema.filter, why, self.warned)
        return ""

    def cost(self, payload: bytes) -> int:
        """Estimate how long `problem` takes at most, in units of 0.1 us."""
        return len(payload) // 4 + min(self._cost_of(payload), COST_MAX) // 10

    def _cost_of(self, payload: bytes) -> int:
        """Return the highest cost of a payload's values."""
        most = self._cost.most
        if len(payload) * most <= _SMALL_COST:
            return len(payload) * most
        values = 1 + payload.count(b",") + payload.count(b"[") + payload.count(b"{")
        return values * most

    def _problem(self, payload: bytes) -> str:
        cost = self._cost_of(payload)
        if cost > COST_MAX:
            return TOO_MANY
        try:
            instance = _JSON.decode(payload.decode())
        except RecursionError:
            return "the payload is nested too deeply"
        except ValueError:
            return "the payload is not JSON"
        try:
            if self._validator.is_valid(instance):
                return ""
            if len(payload) > WHY_BYTES_MAX or cost > WHY_COST_MAX or self._cost.leads_back:
                return VIOLATED
            error = next(self._validator.iter_errors(instance))
        except ValueError:  # a lone surrogate, or a number out of range
            return "the payload has text or numbers that cannot be validated"
        place = "".join(f"[{step!r}]" for step in error.instance_path)
        return one_line(f"payload{place}: {error.message}")


class SchemaChecks:
    """Implements the core's `PayloadChecks` by the configured schemas."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self.checks = [SchemaCheck(schema) for schema in schemas if schema.mode != "off"]

    def find(self, topic: str) -> PayloadCheck | None:
        """Return the check of the first schema whose filter matches."""
        for check in self.checks:
            if matches(check.schema.filter, topic):
                return check
        return None

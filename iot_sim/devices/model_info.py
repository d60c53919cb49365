"""The description of a device model: options with their limits, documents, commands.

All that a scenario can get wrong about a device is found here, before the device is made,
and told in one line that begins with the key.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from iot_sim.devices.device import COMMAND, Device, Publication, Spec
from iot_sim.payloads.layouts import CBOR, CborLayout, write_json
from iot_sim.payloads.schema import Field

INT: Final = "int"
FLOAT: Final = "float"
BOOL: Final = "bool"
STR: Final = "str"
TABLE: Final = "table"

_TYPES: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    INT: ("a whole number", (int,)),
    FLOAT: ("a number", (int, float)),
    BOOL: ("true or false", (bool,)),
    STR: ("text", (str,)),
    TABLE: ("a table", (dict,)),
}

INTERVAL_S_MIN: Final = 0.001
INTERVAL_S_MAX: Final = 31 * 86_400.0
TOPIC_BYTES_MAX: Final = 1_024


class ModelError(ValueError):
    """A scenario asks a model for something that it does not offer."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key
        self.text = text


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a model, with its default and limits."""

    name: str
    type: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, given: object) -> Any:
        value: Any = given
        key = f"options.{self.name}"
        said, types = _TYPES[self.type]
        if not isinstance(given, types) or (isinstance(value, bool) and self.type != BOOL):
            raise ModelError(key, f"{self.name} is {said}, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ModelError(key, f"{self.name} is a finite number, not {value!r}")
        if self.low is not None and value < self.low:
            raise ModelError(key, f"at least {self.low:g}, not {value!r}")
        if self.high is not None and value > self.high:
            raise ModelError(key, f"at most {self.high:g}, not {value!r}")
        if self.choices and value not in self.choices:
            raise ModelError(key, f"one of {', '.join(self.choices)}, not {value!r}")
        return float(value) if self.type == FLOAT else value


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a device obeys, with its arguments."""

    summary: str
    example: Mapping[str, Any] = field(default_factory=dict)


def order_by_topic(spec: Spec, what: str, args: Mapping[str, Any]) -> Publication:
    """Make a command to `<root>/cmd/<name>`, with the arguments in the device's own format."""
    write = CborLayout.document if spec.payload == CBOR else write_json
    return Publication(f"{spec.topic}/cmd/{what}", write(args), 1, kind=COMMAND)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as the catalogue knows it."""

    name: str
    summary: str
    build: Callable[[Spec], Device]  # of a spec that has been checked
    options: tuple[Option, ...]
    payloads: tuple[str, ...]  # the first is the default
    # By the last level of their topics; answers, which go anywhere, are `response`.
    documents: Mapping[str, tuple[Field, ...]]
    commands: Mapping[str, Command]
    # A command as that device reads it; without response topic and correlation.
    order: Callable[[Spec, str, Mapping[str, Any]], Publication] = order_by_topic
    # Filters that match all it publishes.
    published: Callable[[Spec], tuple[str, ...]] = lambda spec: (spec.topic + "/#",)
    # Messages of telemetry in one interval_s, by the options of the scenario.
    per_interval: Callable[[Mapping[str, Any]], float] = lambda options: 1.0

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.documents["telemetry"]

    def complete(self, spec: Spec) -> Spec:
        """Return the spec with all options filled in. Raises ModelError."""
        check_spec(spec)
        payload = spec.payload or self.payloads[0]
        if payload not in self.payloads:
            raise ModelError(
                "payload", f"{self.name} speaks {', '.join(self.payloads)}, not {payload!r}"
            )
        return replace(spec, payload=payload, options=self.complete_options(spec.options))

    def complete_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                raise ModelError(
                    f"options.{name}", f"{self.name} has no such option{did_you_mean(name, known)}"
                )
        return {
            name: option.check(given[name]) if name in given else option.default
            for name, option in known.items()
        }


def did_you_mean(name: str, known: Iterable[str]) -> str:
    known = list(known)
    if close := difflib.get_close_matches(name, known, 1):
        return f"; did you mean {close[0]}?"
    return f"; it has {', '.join(known)}" if known else ""


def check_spec(spec: Spec) -> None:
    """Check the parts of a specification that all models share."""
    if not INTERVAL_S_MIN <= spec.interval_s <= INTERVAL_S_MAX:
        raise ModelError(
            "interval_s",
            f"{INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds, not {spec.interval_s!r}",
        )
    if spec.qos not in (0, 1, 2):
        raise ModelError("qos", f"0, 1 or 2, not {spec.qos!r}")
    if not spec.client_id:
        raise ModelError("client_id", "not empty: topics and seeds follow from it")
    check_topic("topic", spec.topic)


def check_topic(key: str, topic: str) -> None:
    if not topic or topic.startswith("$") or topic.endswith("/"):
        raise ModelError(
            key, f"a Topic Name that does not begin with $ nor end with /, not {topic!r}"
        )
    if set(topic) & {"+", "#", "\0"}:
        raise ModelError(key, f"a Topic Name has no +, # or U+0000, not {topic!r}")
    if len(topic.encode()) > TOPIC_BYTES_MAX:
        raise ModelError(key, f"at most {TOPIC_BYTES_MAX} bytes")

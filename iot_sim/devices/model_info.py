"""The description of a device model: options with their limits, documents, commands.

It checks what a scenario says about a device before the device is made. Each error is one line
that begins with the key.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
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
    """A key of a scenario that the model does not accept."""

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
        expected, types = _TYPES[self.type]
        if not isinstance(given, types) or (isinstance(value, bool) and self.type != BOOL):
            raise ModelError(key, f"must be {expected}, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ModelError(key, f"must be a finite number, not {value!r}")
        if self.low is not None and value < self.low:
            raise ModelError(key, f"must be at least {self.low:g}, not {value!r}")
        if self.high is not None and value > self.high:
            raise ModelError(key, f"must be at most {self.high:g}, not {value!r}")
        if self.choices and value not in self.choices:
            raise ModelError(key, f"must be one of {', '.join(self.choices)}, not {value!r}")
        return float(value) if self.type == FLOAT else value


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a model, with an example of its arguments."""

    summary: str
    example: Mapping[str, Any] = field(default_factory=dict)


def command_by_topic(spec: Spec, name: str, args: Mapping[str, Any]) -> Publication:
    """Make a command to `<root>/cmd/<name>`, with the arguments in the device's own format."""
    write = CborLayout.document if spec.payload == CBOR else write_json
    return Publication(f"{spec.topic}/cmd/{name}", write(args), 1, kind=COMMAND)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The catalogue's description of a model."""

    name: str
    summary: str
    build: Callable[[Spec], Device]  # from a checked spec
    options: tuple[Option, ...]
    payloads: tuple[str, ...]  # the first is the default
    # Fields by the last level of the topic; those of responses, which go to any topic, under
    # `response`.
    documents: Mapping[str, tuple[Field, ...]]
    commands: Mapping[str, Command]
    # Makes the publication of a command; without response topic and correlation data.
    make_command: Callable[[Spec, str, Mapping[str, Any]], Publication] = command_by_topic
    # Topic Filters that match all the device publishes.
    published: Callable[[Spec], tuple[str, ...]] = lambda spec: (spec.topic + "/#",)
    # Telemetry messages in one interval_s, by the options of the scenario.
    per_interval: Callable[[Mapping[str, Any]], float] = lambda options: 1.0
    order: InitVar[Callable[[Spec, str, Mapping[str, Any]], Publication] | None] = None

    def __post_init__(
        self, order: Callable[[Spec, str, Mapping[str, Any]], Publication] | None
    ) -> None:
        if order is not None:
            warnings.warn(
                "ModelInfo(order=...) is deprecated: use make_command", DeprecationWarning, 3
            )
            object.__setattr__(self, "make_command", order)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.documents["telemetry"]

    def complete(self, spec: Spec) -> Spec:
        """Return the checked spec with all options filled in. Raises ModelError."""
        check_spec(spec)
        payload = spec.payload or self.payloads[0]
        if payload not in self.payloads:
            raise ModelError(
                "payload", f"{self.name} supports {', '.join(self.payloads)}, not {payload!r}"
            )
        return replace(spec, payload=payload, options=self.complete_options(spec.options))

    def complete_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                raise ModelError(
                    f"options.{name}",
                    f"{self.name} has no option {name}{did_you_mean(name, known)}",
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
            f"must be {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds, not {spec.interval_s!r}",
        )
    if spec.qos not in (0, 1, 2):
        raise ModelError("qos", f"must be 0, 1 or 2, not {spec.qos!r}")
    if not spec.client_id:
        raise ModelError("client_id", "must not be empty: topics and seeds are made of it")
    check_topic("topic", spec.topic)


def check_topic(key: str, topic: str) -> None:
    if not topic or topic.startswith("$") or topic.endswith("/"):
        raise ModelError(
            key, f"must be a Topic Name without $ at its start or / at its end, not {topic!r}"
        )
    if set(topic) & {"+", "#", "\0"}:
        raise ModelError(key, f"must be a Topic Name without +, # and U+0000, not {topic!r}")
    if len(topic.encode()) > TOPIC_BYTES_MAX:
        raise ModelError(key, f"must have at most {TOPIC_BYTES_MAX} bytes")

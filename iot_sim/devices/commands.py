"""Commands to a device: those that every model has, checks of arguments, and refusals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from iot_sim.devices.device import Publication
from iot_sim.devices.model_info import Command
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, STRING, Field

TEXT_CHARS_MAX: Final = 64

COMMON: Final[Mapping[str, Command]] = {
    "ping": Command("returns the uptime in seconds"),
    "set_interval": Command("sets the interval between reports", {"interval_s": 5.0}),
    "reboot": Command("disconnects, boots and reconnects; the message buffer is lost"),
    "firmware": Command(
        "downloads, verifies, installs and starts a version, and reports each stage",
        {"version": "2.0.0"},
    ),
}

RESPONSE_FIELDS: Final = (
    Field("id", STRING),
    Field("ts", LONG, "ms"),
    Field("command", STRING),
    Field("ok", BOOLEAN),
    Field("error", STRING, nullable=True),
    Field("value", DOUBLE, nullable=True, help="the number that the command read or set"),
    Field("text", STRING, nullable=True),
)


class CommandRefused(Exception):
    """A command that the device refuses; the text goes into the response."""


@dataclass(slots=True)
class CommandResult:
    """The result of a command: the content of its response, and further publications."""

    value: float | None = None
    text: str | None = None
    publications: list[Publication] = field(default_factory=list)


def number(args: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = args.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandRefused(f"{key} must be a number, not {value!r:.{TEXT_CHARS_MAX}}")
    try:
        found = float(value)
    except OverflowError:  # a whole number that no float holds
        found = math.inf
    if not low <= found <= high or not math.isfinite(found):
        raise CommandRefused(f"{key} must be {low:g} to {high:g}, not {found:g}")
    return found


def text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= TEXT_CHARS_MAX
        or not value.isprintable()
    ):
        raise CommandRefused(
            f"{key} must be a string of 1 to {TEXT_CHARS_MAX} printable characters"
        )
    return value


def _deprecated_result(
    value: float | None = None, text: str | None = None, says: Iterable[Publication] = ()
) -> CommandResult:
    return CommandResult(value, text, list(says))


def __getattr__(name: str) -> Any:
    if name == "Outcome":
        warnings.warn(
            "iot_sim.devices.commands.Outcome(says=...) is deprecated: use"
            " CommandResult(publications=...)",
            DeprecationWarning,
            2,
        )
        return _deprecated_result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

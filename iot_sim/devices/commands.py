"""Commands to a device: the common ones, checks of their arguments, and the refusal in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from iot_sim.devices.device import Publication
from iot_sim.devices.model_info import Command
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, STRING, Field

TEXT_CHARS_MAX: Final = 64

COMMON: Final[Mapping[str, Command]] = {
    "ping": Command("answers with its uptime in seconds"),
    "set_interval": Command("measures every so many seconds from now on", {"interval_s": 5.0}),
    "reboot": Command("goes away in order, comes back, and has forgotten what it kept"),
    "firmware": Command(
        "downloads, verifies, installs and starts a version, and reports on each stage",
        {"version": "2.0.0"},
    ),
}

RESPONSE_FIELDS: Final = (
    Field("id", STRING),
    Field("ts", LONG, "ms"),
    Field("command", STRING),
    Field("ok", BOOLEAN),
    Field("error", STRING, nullable=True),
    Field("value", DOUBLE, nullable=True, help="the number that the command asked for or set"),
    Field("text", STRING, nullable=True),
)


class CommandRefused(Exception):
    """A command that the device does not carry out; the text goes into the answer."""


@dataclass(slots=True)
class Outcome:
    """The result of a command: its answer, and further publications."""

    value: float | None = None
    text: str | None = None
    says: list[Publication] = field(default_factory=list)


def number(args: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = args.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandRefused(f"{key}: a number is needed")
    if not low <= value <= high or not math.isfinite(value):
        raise CommandRefused(f"{key}: {low:g} to {high:g}")
    return float(value)


def text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= TEXT_CHARS_MAX
        or not value.isprintable()
    ):
        raise CommandRefused(f"{key}: a text of 1 to {TEXT_CHARS_MAX} characters is needed")
    return value

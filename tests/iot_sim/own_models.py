"""Device classes of a user's own, as they stand in a scenario: good ones and broken ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iot_sim.devices.commands import CommandResult
from iot_sim.devices.device import Publication, Spec, Subscription
from iot_sim.devices.device_model import CommandHandler, DeviceModel
from iot_sim.models.catalogue import ModelInfo, Option
from iot_sim.models.environment import Environment
from iot_sim.payloads.schema import LONG, Field


class Beacon:
    """Says that it is there, and nothing else."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._due = spec.started_at

    def will(self, now: float) -> Publication | None:
        return None

    def will_delay_s(self) -> int:
        return 0

    def subscriptions(self) -> list[Subscription]:
        return []

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        return []

    def on_disconnected(self, now: float) -> None:
        pass

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        return []

    def next_at(self) -> float:
        return self._due

    def act(self, now: float) -> list[Publication]:
        self._due += self.spec.interval_s
        return [Publication(self.spec.topic, b"here", self.spec.qos)]

    def pace(self, factor: float, now: float) -> None:
        self._due = math.inf if not factor else now

    def wants_link(self, now: float) -> bool:
        return True

    def goodbye(self, now: float) -> list[Publication]:
        return []


def _build(spec: Spec) -> Beacon:
    return Loud(spec)


class Loud(Beacon):
    """Declares what it takes, and gets its options checked."""

    INFO: ClassVar = ModelInfo(
        name="loud",
        summary="a beacon with an option",
        build=_build,
        options=(Option("volume", "int", 3, "how loud", 0, 11),),
        payloads=("json",),
        documents={"telemetry": ()},
        commands={},
    )


class Greenhouse(Environment):
    """Inherits one of ours, with a command of its own.

    Its options are those of the model.
    """

    MODEL = "greenhouse"

    def _command_vent(self, args: Mapping[str, Any], now: float) -> CommandResult:
        return CommandResult(text="open")

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {
        **Environment.COMMANDS,
        "vent": _command_vent,
    }


class Counter(DeviceModel):
    """The least that a device of plain topics needs."""

    FIELDS: ClassVar = (Field("count", LONG),)

    def measure(self, t: float) -> Sequence[Any]:
        return (self.seq,)


class Incomplete:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def act(self, now: float) -> list[Publication]:
        return []


class Failing(Beacon):
    def __init__(self, spec: Spec) -> None:
        raise RuntimeError("no\nluck")


class Misdeclared(Beacon):
    INFO = "not one"


not_a_class = 3

"""A model of a user's own that has the old names still works, and each name has its warning."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Final

import pytest

from iot_sim.devices.device import COMMAND, Publication, Spec
from iot_sim.devices.model_info import ModelInfo
from iot_sim.models.catalogue import command, find, make
from tests.iot_sim.day import Driver, spec

OLD_MODEL: Final = """
from iot_sim.devices.commands import Outcome
from iot_sim.devices.thing import Order, Thing
from iot_sim.models.environment import Environment
from iot_sim.payloads.schema import LONG, Field


class Valve(Thing):
    FIELDS = (Field("level", LONG),)

    def setup(self, options):
        self.first = self.chance.random(), self.fate.random()
        self.at(self.spec.started_at + 15.0, self.wear)

    def wear(self, now):
        self.keep(self.event(now, "creaked"))
        return self.say([self.event(now, "worn", value=float(len(self.kept)))])

    def measure(self, t):
        return (self.seq,)

    def _order_open(self, args, now):
        return Outcome(text="open", says=[self.event(now, "opened")])

    ORDERS = {"open": _order_open}


class Greenhouse(Environment):
    ORDERS = {**Environment.ORDERS, "vent": lambda self, args, now: Outcome(1.0)}
"""
WARNINGS: Final = [
    "Greenhouse.ORDERS is deprecated: use COMMANDS",
    "Valve.ORDERS is deprecated: use COMMANDS",
    "at is deprecated: use call_at",
    "chance is deprecated: use rng",
    "fate is deprecated: use event_rng",
    "iot_sim.devices.commands.Outcome(says=...) is deprecated: use CommandResult(publications=...)",
    "iot_sim.devices.thing.Order is deprecated: use iot_sim.devices.device_model.CommandHandler",
    "iot_sim.devices.thing.Thing is deprecated: use iot_sim.devices.device_model.DeviceModel",
    "keep is deprecated: use buffer_message",
    "kept is deprecated: use buffer",
    "say is deprecated: use publish_or_buffer",
]  # reading `Environment.ORDERS` is silent: it is the same object


def test_an_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_old_model.py").write_text(OLD_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        driver = Driver.of("an_old_model:Valve", interval_s=10.0)
        published = driver.run(20.0)
        asked = driver.device.spec
        order = command("an_old_model:Valve", asked, "open", {})
        answer, event = driver.tell(order.topic, order.payload, "answers")
        house = spec("greenhouse")
        vent = make("an_old_model:Greenhouse", house)
    assert sorted({str(one.message) for one in found}) == WARNINGS
    assert {one.category for one in found} == {DeprecationWarning}
    assert b'"event":"worn"' in b"".join(one.payload for one in published)
    assert json.loads(answer.payload)["text"] == "open"
    assert b'"event":"opened"' in event.payload
    assert {"vent", "set_point", "ping"} <= set(find("an_old_model:Greenhouse").commands)
    assert vent.spec.client_id == house.client_id


def test_the_old_key_of_a_description() -> None:
    def order(given: Spec, what: str, args: Any) -> Publication:
        return Publication(given.topic, what.encode(), kind=COMMAND)

    with pytest.deprecated_call(match=r"ModelInfo\(order=...\) is deprecated: use make_command"):
        info = ModelInfo("old", "", lambda given: make("meter", given), (), ("json",),
                         {"telemetry": ()}, {}, order=order)  # fmt: skip
    assert info.make_command(spec("old"), "open", {}).payload == b"open"

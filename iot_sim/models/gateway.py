"""A gateway that speaks for many children over one connection.

The children are devices of another model, each with topics below `<root>/<child>` and with
reports, commands and state of its own. The gateway can have one will only, its own; that a
child is lost by radio, it says itself. What a child says while the gateway has no link waits
in the gateway's buffer; what it measures while it cannot reach the gateway waits in its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from iot_sim.devices.clockwork import LATE_S_MAX
from iot_sim.devices.device import Device, Publication, Spec, Subscription
from iot_sim.devices.model_info import FLOAT, INT, STR, TABLE, ModelError, ModelInfo, Option
from iot_sim.devices.signals import HOUR_S, Signal, wait
from iot_sim.devices.thing import Thing, describe
from iot_sim.models import environment, machine, meter, tracker
from iot_sim.payloads.layouts import CBOR, JSON
from iot_sim.payloads.schema import DOUBLE, LONG, Field

CHILDREN: Final[Mapping[str, ModelInfo]] = {
    module.INFO.name: module.INFO for module in (environment, meter, machine, tracker)
}
_CHILDREN_DEFAULT: Final = 20


class Child:
    """A device behind the gateway, with its radio link."""

    __slots__ = ("attached", "chance", "device", "lost", "planned", "root")

    def __init__(self, device: Device, chance: Random) -> None:
        self.device = device
        self.chance = chance
        self.root = device.spec.topic + "/"
        self.attached = False  # it and the gateway hear each other
        self.lost = False  # the radio link is gone
        self.planned = math.inf  # when it wants to act; other entries of the heap are stale


class Gateway(Thing):
    MODEL = "gateway"
    FIELDS: ClassVar = (
        Field("children", LONG, help="that it reaches"),
        Field("buffered", LONG, help="messages that wait for a link"),
        Field("processor", DOUBLE, "%", digits=1),
        Field("temperature", DOUBLE, "°C", digits=1),
        Field("uplink", LONG, "dBm"),
        Field("uptime", LONG, "s"),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        spec, start = self.spec, self.spec.started_at
        self._processor = Signal(
            self.chance, 14.0, start, wander=5.0, wander_s=300, noise=1.0, low=0.5, high=100
        )
        self._uplink = Signal(
            self.chance, -71.0, start, wander=5.0, wander_s=900, low=-115, high=-40
        )
        model = CHILDREN[options["child_model"]]
        try:
            asked = model.complete_options(options["child_options"])
        except ModelError as error:
            key = "options.child_options." + error.key.removeprefix("options.")
            raise ModelError(key, error.text) from None
        self.children: list[Child] = []
        self._heap: list[tuple[float, int]] = []  # when which child wants to act
        for number in range(options["children"]):
            name = f"c{number:03d}"
            own = replace(
                spec,
                fleet=f"{spec.fleet}/{spec.number}",
                number=number,
                client_id=f"{spec.client_id}-{name}",
                topic=f"{spec.topic}/{name}",
                options=asked,
            )
            chance = Random(f"{spec.seed}:{own.fleet}:{number}:radio")
            child = Child(model.build(own), chance)
            self.children.append(child)
            child.device.on_connected(start, session_present=False)  # said again at the first link
            child.attached = True
            self._plan_child(number)
        self._by_root = {child.root: at for at, child in enumerate(self.children)}
        for number in range(len(self.children)):
            self._await_loss(number, start)

    def booted(self, now: float) -> list[Publication]:
        for number in range(len(self.children)):
            self._await_loss(number, now)
        return super().booted(now)

    def measure(self, t: float) -> Sequence[Any]:
        busy = self._processor.at(t)
        reached = sum(child.attached for child in self.children)
        return (
            reached,
            len(self.kept),
            busy,
            38.0 + 0.25 * busy,
            int(self._uplink.at(t)),
            int(t - self.up_since),
        )

    # The contract, for all of them.

    def subscriptions(self) -> list[Subscription]:
        own = super().subscriptions()
        return [*own, Subscription(self.spec.topic + "/+/cmd/+")] if own else []

    def births(self, now: float) -> list[Publication]:
        out = super().births(now)
        for child in self.children:
            if child.attached:
                out += child.device.on_connected(now, session_present=True)
            else:
                out += self._death(child, now)
        return out

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        name, found, _ = message.topic.removeprefix(self.spec.topic + "/").partition("/cmd/")
        number = self._by_root.get(f"{self.spec.topic}/{name}/") if found else None
        if number is None:
            return super().on_message(message, now)
        before = self.catch_up(now)
        child = self.children[number]
        if self.down or not child.attached:
            return before
        out = child.device.on_message(message, now)
        return [*before, *self.say([*out, *self._settle(number, now)])]

    def next_at(self) -> float:
        own = super().next_at()
        if self.down or not self._heap or own <= self._heap[0][0]:
            return own
        return self._heap[0][0]

    def act(self, now: float) -> list[Publication]:
        """Act for the gateway and its children, in the order of their times."""
        out: list[Publication] = []
        while True:
            own = super().next_at()
            due = self._heap[0][0] if self._heap and not self.down else own
            if min(own, due) > now:
                return out
            # At the time when it was due, at most LATE_S_MAX ago: what is older is left out.
            if own <= due:
                out += super().act(max(own, now - LATE_S_MAX))
                continue
            _, number = heapq.heappop(self._heap)
            child = self.children[number]
            if child.planned == due:
                child.planned = math.inf
                t = max(due, now - LATE_S_MAX)
                said = child.device.act(t)
                out += self.say([*said, *self._settle(number, t)])

    def pace(self, factor: float, now: float) -> None:
        super().pace(factor, now)
        for number, child in enumerate(self.children):
            child.device.pace(factor, now)
            self._plan_child(number)

    # The radio side.

    def _settle(self, number: int, now: float) -> list[Publication]:
        """Update a child's presence and its next action after an event."""
        child = self.children[number]
        there = not child.lost and child.device.wants_link(now)
        out: list[Publication] = []
        if there and not child.attached:
            child.attached = True
            out = child.device.on_connected(now, session_present=True)
        elif child.attached and not there:
            child.attached = False
            out = self._death(child, now) if child.lost else child.device.goodbye(now)
            child.device.on_disconnected(now)
        self._plan_child(number)
        return out

    def _plan_child(self, number: int) -> None:
        child = self.children[number]
        at = child.device.next_at()
        if at != child.planned:
            child.planned = at
            heapq.heappush(self._heap, (at, number))

    @staticmethod
    def _death(child: Child, now: float) -> list[Publication]:
        """Return the message that stands in for a child's will."""
        will = child.device.will(now)
        return [will] if will is not None else []

    def _await_loss(self, number: int, now: float) -> None:
        per_day: float = self.spec.options["losses_per_day"]
        child = self.children[number]
        if child.lost:  # from before a reboot of the gateway
            self.at(now + self._radio_gap(child), lambda when: self._found(number, when))
        elif per_day:
            gap = wait(child.chance.random, per_day)
            self.at(now + gap, lambda when: self._lost(number, when))

    def _radio_gap(self, child: Child) -> float:
        lost_s: float = self.spec.options["loss_s"]
        return lost_s * (0.5 + child.chance.random())

    def _lost(self, number: int, now: float) -> list[Publication]:
        child = self.children[number]
        child.lost = True
        self.at(now + self._radio_gap(child), lambda when: self._found(number, when))
        return self.say(self._settle(number, now))

    def _found(self, number: int, now: float) -> list[Publication]:
        self.children[number].lost = False
        out = self.say(self._settle(number, now))
        self._await_loss(number, now)
        return out


def _published(spec: Spec) -> tuple[str, ...]:
    model = CHILDREN.get(spec.options.get("child_model", "environment"))
    children = set(model.documents if model else ()) - {"response"}
    own = ("telemetry", "state", "firmware")
    return (
        *(f"{spec.topic}/{name}" for name in own),
        *(f"{spec.topic}/+/{name}" for name in sorted(children)),
    )


INFO: Final = replace(
    describe(
        Gateway,
        "gateway: one connection, many children of another model, lost and found by radio",
        (
            Option("children", INT, _CHILDREN_DEFAULT, "devices behind it", 1, 1_000),
            Option("child_model", STR, "environment", "what they are", choices=tuple(CHILDREN)),
            Option("child_options", TABLE, {}, "the options of their model"),
            Option(
                "losses_per_day", FLOAT, 2.0, "times a day that a child is lost by radio", 0, 1e5
            ),
            Option("loss_s", FLOAT, 2 * HOUR_S / 24, "about how long", 0.1, 86_400),
        ),
        payloads=(JSON, CBOR),
        per_interval=lambda options: 1.0 + options.get("children", _CHILDREN_DEFAULT),
    ),
    published=_published,
)

"""A gateway that connects many children over one connection.

The children are devices of another model, each with topics below `<root>/<child>` and with
reports, commands and state of its own. A connection has one will, which is the gateway's; when a
child is lost by radio, the gateway publishes the child's will itself. While the gateway is
offline, its buffer keeps the messages of its children; while a child cannot reach the gateway,
the child buffers its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from iot_sim.devices.device import Device, Publication, Spec, Subscription
from iot_sim.devices.device_model import DeviceModel, describe
from iot_sim.devices.model_info import FLOAT, INT, STR, TABLE, ModelError, ModelInfo, Option
from iot_sim.devices.scheduled_device import LATE_S_MAX
from iot_sim.devices.signals import HOUR_S, Signal, random_wait
from iot_sim.models import environment, machine, meter, tracker
from iot_sim.payloads.layouts import CBOR, JSON
from iot_sim.payloads.schema import DOUBLE, LONG, Field

CHILDREN: Final[Mapping[str, ModelInfo]] = {
    module.INFO.name: module.INFO for module in (environment, meter, machine, tracker)
}
_CHILDREN_DEFAULT: Final = 20


class Child:
    """A device behind the gateway, with its radio link."""

    __slots__ = ("attached", "device", "lost", "next_at", "rng", "root")

    def __init__(self, device: Device, rng: Random) -> None:
        self.device = device
        self.rng = rng
        self.root = device.spec.topic + "/"
        self.attached = False  # connected to the gateway
        self.lost = False  # the radio link is down
        self.next_at = math.inf  # its entry in the heap; entries with other times are stale


class Gateway(DeviceModel):
    MODEL = "gateway"
    FIELDS: ClassVar = (
        Field("children", LONG, help="children connected to the gateway"),
        Field("buffered", LONG, help="messages in its buffer"),
        Field("processor", DOUBLE, "%", digits=1),
        Field("temperature", DOUBLE, "°C", digits=1),
        Field("uplink", LONG, "dBm"),
        Field("uptime", LONG, "s"),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        spec, start = self.spec, self.spec.started_at
        self._processor = Signal(
            self.rng, 14.0, start, wander=5.0, wander_s=300, noise=1.0, low=0.5, high=100
        )
        self._uplink = Signal(self.rng, -71.0, start, wander=5.0, wander_s=900, low=-115, high=-40)
        model = CHILDREN[options["child_model"]]
        try:
            child_options = model.complete_options(options["child_options"])
        except ModelError as error:
            key = "options.child_options." + error.key.removeprefix("options.")
            raise ModelError(key, error.text) from None
        self.children: list[Child] = []
        self._heap: list[tuple[float, int]] = []  # time of the next action, number of the child
        for number in range(options["children"]):
            name = f"c{number:03d}"
            own = replace(
                spec,
                fleet=f"{spec.fleet}/{spec.number}",
                number=number,
                client_id=f"{spec.client_id}-{name}",
                topic=f"{spec.topic}/{name}",
                options=child_options,
            )
            rng = Random(f"{spec.seed}:{own.fleet}:{number}:radio")
            child = Child(model.build(own), rng)
            self.children.append(child)
            child.device.on_connected(start, session_present=False)  # `births` repeats its births
            child.attached = True
            self._schedule_child(number)
        self._by_root = {child.root: at for at, child in enumerate(self.children)}
        for number in range(len(self.children)):
            self._schedule_loss(number, start)

    def booted(self, now: float) -> list[Publication]:
        for number in range(len(self.children)):
            self._schedule_loss(number, now)
        return super().booted(now)

    def measure(self, t: float) -> Sequence[Any]:
        busy = self._processor.at(t)
        reached = sum(child.attached for child in self.children)
        return (
            reached,
            len(self.buffer),
            busy,
            38.0 + 0.25 * busy,
            int(self._uplink.at(t)),
            int(t - self.up_since),
        )

    # The contract with the fleet, for the gateway and its children.

    def subscriptions(self) -> list[Subscription]:
        own = super().subscriptions()
        return [*own, Subscription(self.spec.topic + "/+/cmd/+")] if own else []

    def births(self, now: float) -> list[Publication]:
        out = super().births(now)
        for child in self.children:
            if child.attached:
                out += child.device.on_connected(now, session_present=True)
            else:
                out += self._will_of(child, now)
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
        return [*before, *self.publish_or_buffer([*out, *self._update_child(number, now)])]

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
            # With the time at which it was due, at most LATE_S_MAX ago: older reports are skipped.
            if own <= due:
                out += super().act(max(own, now - LATE_S_MAX))
                continue
            _, number = heapq.heappop(self._heap)
            child = self.children[number]
            if child.next_at == due:
                child.next_at = math.inf
                t = max(due, now - LATE_S_MAX)
                publications = child.device.act(t)
                out += self.publish_or_buffer([*publications, *self._update_child(number, t)])

    def pace(self, factor: float, now: float) -> None:
        super().pace(factor, now)
        for number, child in enumerate(self.children):
            child.device.pace(factor, now)
            self._schedule_child(number)

    # The radio links to the children.

    def _update_child(self, number: int, now: float) -> list[Publication]:
        """Connect or disconnect a child after an event, and schedule its next action."""
        child = self.children[number]
        is_reachable = not child.lost and child.device.wants_link(now)
        out: list[Publication] = []
        if is_reachable and not child.attached:
            child.attached = True
            out = child.device.on_connected(now, session_present=True)
        elif child.attached and not is_reachable:
            child.attached = False
            out = self._will_of(child, now) if child.lost else child.device.goodbye(now)
            child.device.on_disconnected(now)
        self._schedule_child(number)
        return out

    def _schedule_child(self, number: int) -> None:
        child = self.children[number]
        at = child.device.next_at()
        if at != child.next_at:
            child.next_at = at
            heapq.heappush(self._heap, (at, number))

    @staticmethod
    def _will_of(child: Child, now: float) -> list[Publication]:
        """Return the child's will, which the gateway publishes as a message."""
        will = child.device.will(now)
        return [will] if will is not None else []

    def _schedule_loss(self, number: int, now: float) -> None:
        per_day: float = self.spec.options["losses_per_day"]
        child = self.children[number]
        if child.lost:  # since before a reboot of the gateway
            self.call_at(now + self._radio_gap(child), lambda when: self._on_found(number, when))
        elif per_day:
            gap = random_wait(child.rng.random, per_day)
            self.call_at(now + gap, lambda when: self._on_lost(number, when))

    def _radio_gap(self, child: Child) -> float:
        lost_s: float = self.spec.options["loss_s"]
        return lost_s * (0.5 + child.rng.random())

    def _on_lost(self, number: int, now: float) -> list[Publication]:
        child = self.children[number]
        child.lost = True
        self.call_at(now + self._radio_gap(child), lambda when: self._on_found(number, when))
        return self.publish_or_buffer(self._update_child(number, now))

    def _on_found(self, number: int, now: float) -> list[Publication]:
        self.children[number].lost = False
        out = self.publish_or_buffer(self._update_child(number, now))
        self._schedule_loss(number, now)
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
        "gateway: one connection for many children of another model, with radio losses",
        (
            Option("children", INT, _CHILDREN_DEFAULT, "devices behind the gateway", 1, 1_000),
            Option("child_model", STR, "environment", "model of a child", choices=tuple(CHILDREN)),
            Option("child_options", TABLE, {}, "options of the child model"),
            Option("losses_per_day", FLOAT, 2.0, "radio losses of a child per day", 0, 1e5),
            Option("loss_s", FLOAT, 2 * HOUR_S / 24, "mean duration of a radio loss", 0.1, 86_400),
        ),
        payloads=(JSON, CBOR),
        per_interval=lambda options: 1.0 + options.get("children", _CHILDREN_DEFAULT),
    ),
    published=_published,
)

"""A Sparkplug B edge node with its devices: births, data by alias, deaths, rebirth on command.

    spBv1.0/<group>/NBIRTH|NDATA|NDEATH|NCMD/<edge node>
    spBv1.0/<group>/DBIRTH|DDATA|DDEATH|DCMD/<edge node>/<device>

The edge node id is the client id; the group is an option, by default the fleet's name. The
scenario's topic root is not used: the specification defines the topics. The model follows
Sparkplug 3.0: a death certificate (the will) has the bdSeq of its birth, which grows by one at
every connect; the sequence number begins with 0 at a birth and wraps at 255; values measured
offline follow the births, marked historical. A response to a command is an addition of MQTT 5; it
is sent only if the command has a response topic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from iot_sim.devices.commands import CommandRefused
from iot_sim.devices.device import (
    BIRTH,
    COMMAND,
    DEATH,
    RESPONSE,
    TELEMETRY,
    Publication,
    Spec,
    Subscription,
)
from iot_sim.devices.model_info import (
    FLOAT,
    INT,
    INTERVAL_S_MAX,
    INTERVAL_S_MIN,
    STR,
    Command,
    ModelError,
    ModelInfo,
    Option,
)
from iot_sim.devices.scheduled_device import OPTIONS, ScheduledDevice
from iot_sim.devices.signals import HOUR_S, Signal, random_wait
from iot_sim.payloads import sparkplug as spb
from iot_sim.payloads.layouts import SPARKPLUG
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, STRING, Field
from iot_sim.payloads.sparkplug import Metric

NAMESPACE: Final = "spBv1.0"
CONTENT_TYPE: Final = "application/x-protobuf"
REBIRTH: Final = "Node Control/Rebirth"
REBOOT: Final = "Node Control/Reboot"
SCAN_RATE: Final = "Node Control/Scan Rate"
SET_POINT: Final = "Outputs/Set Point"
_ALIASES_A_DEVICE: Final = 100
_SET_POINT_LOW: Final = -50.0
_SET_POINT_HIGH: Final = 400.0
_HEATING_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Tag:
    """A metric as a birth declares it."""

    name: str
    type: int
    unit: str = ""
    deadband: float = 0.0  # smallest change that is reported, with the option `deadband` = 1


NODE_TAGS: Final = (
    Tag("Supply Voltage", spb.FLOAT, "V", 0.05),
    Tag("Processor Load", spb.FLOAT, "%", 2.0),
    Tag("Uptime", spb.INT64, "s"),
)
DEVICE_TAGS: Final = (
    Tag("Inputs/Temperature", spb.DOUBLE, "°C", 0.2),
    Tag("Inputs/Pressure", spb.FLOAT, "bar", 0.02),
    Tag("Inputs/Flow", spb.DOUBLE, "l/min", 0.5),
    Tag("Inputs/Produced", spb.INT64),
    Tag("Inputs/Running", spb.BOOLEAN),
    Tag("Inputs/Mode", spb.STRING),
    Tag(SET_POINT, spb.DOUBLE, "°C"),
)
_SPARK: Final = {
    spb.FLOAT: DOUBLE, spb.DOUBLE: DOUBLE, spb.INT64: LONG, spb.BOOLEAN: BOOLEAN,
    spb.STRING: STRING,
}  # fmt: skip


def _fields(tags: tuple[Tag, ...]) -> tuple[Field, ...]:
    """Return the fields of a data message. All may be null: it has only changed values."""
    return (
        Field("seq", LONG),
        Field("ts", LONG, "ms"),
        *(Field(tag.name, _SPARK[tag.type], tag.unit, nullable=True) for tag in tags),
    )


def as_document(
    payload: spb.Payload, names: Mapping[int, str], tags: tuple[Tag, ...]
) -> dict[str, Any]:
    """Return a data message as a document, with the aliases resolved to the names of the birth."""
    document: dict[str, Any] = {"seq": payload.seq, "ts": payload.timestamp}
    document.update({tag.name: None for tag in tags})
    for metric in payload.metrics:
        name = metric.name if metric.alias is None else names[metric.alias]
        document[name] = metric.value
    return document


class MetricSet:
    """The metrics of the node or of one of its devices, with aliases and last published values."""

    __slots__ = ("_aliases", "_deadbands", "_last_values", "alive", "name", "tags")

    def __init__(self, name: str, tags: tuple[Tag, ...], first_alias: int, deadband: float) -> None:
        self.name = name
        self.tags = tags
        self.alive = True
        self._aliases = [first_alias + at for at in range(len(tags))]
        self._deadbands = [tag.deadband * deadband for tag in tags]
        self._last_values: list[Any] = [None] * len(tags)

    def birth(self, values: list[Any], ts: int) -> list[Metric]:
        self._last_values = values
        return [
            Metric(
                tag.name,
                value,
                tag.type,
                alias,
                ts,
                properties={"engUnit": tag.unit} if tag.unit else {},
            )
            for tag, alias, value in zip(self.tags, self._aliases, values, strict=True)
        ]

    def changes(self, values: list[Any], ts: int, historical: bool) -> list[bytes]:
        """Encode the values that left the deadband around their last published value."""
        when = spb.encode_varint(ts)
        out = []
        for at, value in enumerate(values):
            last = self._last_values[at]
            deadband = self._deadbands[at]
            if value == last or (deadband and last is not None and abs(value - last) < deadband):
                continue
            self._last_values[at] = value
            alias = spb.encode_varint(self._aliases[at])
            out.append(spb.encode_reading(alias, when, historical, self.tags[at].type, value))
        return out


class Process:
    """The process that a device measures: a heated vessel with a pump and a product."""

    __slots__ = ("_at", "_draw", "_flow", "_heat", "_pressure", "_temperature", "mode", "produced",
                 "running", "set_point")  # fmt: skip

    def __init__(self, node: ScheduledDevice, start: float) -> None:
        rng = node.rng
        self._draw = rng.random
        self._temperature = Signal(rng, 0.0, start, wander=1.5, wander_s=400, noise=0.1)
        self._pressure = Signal(rng, 2.2, start, wander=0.08, wander_s=200, noise=0.01, low=0.1)
        self._flow = Signal(rng, 42.0, start, wander=4.0, wander_s=120, noise=0.4, low=0)
        self._at = start
        self._heat = self.set_point = 70.0 + 20.0 * rng.random()
        self.produced = 0.0
        self.running = True
        self.mode = "auto"

    def read(self, t: float) -> list[Any]:
        gap = max(0.0, t - self._at)
        self._at = t
        self._heat += (self.set_point - self._heat) * (1.0 - math.exp(-gap / _HEATING_S))
        # The pump stops for about one minute in ten.
        if self._draw() < 1.0 - math.exp(-gap / (540.0 if self.running else 60.0)):
            self.running = not self.running
        temperature = self._heat + self._temperature.at(t)
        flow = self._flow.at(t)
        if self.running:
            self.produced += gap * flow / 60.0
        return [
            round(temperature, 2),
            round(self._pressure.at(t, 0.01 * (temperature - 80.0)), 3),
            round(flow, 1) if self.running else 0.0,
            int(self.produced),
            self.running,
            self.mode,
            self.set_point,
        ]


class SparkplugNode(ScheduledDevice):
    MODEL: Final = "sparkplug_node"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        options = spec.options
        group = options["group"] or spec.fleet
        _check_id("options.group", group)
        _check_id("client_id", spec.client_id)
        self._root = f"{NAMESPACE}/{group}"
        self._node_id = spec.client_id
        start, rng = spec.started_at, self.rng
        self._volts = Signal(rng, 24.1, start, wander=0.1, wander_s=900, noise=0.01)
        self._load = Signal(rng, 22.0, start, wander=7.0, wander_s=240, noise=1.0, low=1, high=100)
        self._node = MetricSet("", NODE_TAGS, 10, options["deadband"])
        self._devices = [
            MetricSet(f"device{n}", DEVICE_TAGS, n * _ALIASES_A_DEVICE, options["deadband"])
            for n in range(1, options["devices"] + 1)
        ]
        self._processes = [Process(self, start) for _ in self._devices]
        self._bd_seq = -1
        self._seq = 0
        self._start_devices(start)

    # The contract with the fleet.

    def will(self, now: float) -> Publication | None:
        self._bd_seq = (self._bd_seq + 1) % 256
        return self._death(now)

    def subscriptions(self) -> list[Subscription]:
        return [
            Subscription(f"{self._root}/NCMD/{self._node_id}"),
            Subscription(f"{self._root}/DCMD/{self._node_id}/+"),
        ]

    def births(self, now: float) -> list[Publication]:
        """Return the node's birth, which restarts the sequence, and those of its live devices."""
        ts = self.clock.read_ms(now)
        self._seq = -1
        metrics = [
            Metric("bdSeq", self._bd_seq, spb.INT64, None, ts),
            Metric(REBIRTH, False, spb.BOOLEAN, 1, ts),
            Metric(REBOOT, False, spb.BOOLEAN, 2, ts),
            Metric(SCAN_RATE, int(self.interval * 1000), spb.INT64, 3, ts),
            Metric("Properties/Firmware", self.firmware, spb.STRING, 4, ts),
            *self._node.birth(self._read_node(now), ts),
        ]
        body = spb.encode_body(ts, [spb.encode_metric(metric) for metric in metrics])
        out = [self._next_message(self._topic("NBIRTH"), body, BIRTH)]
        for at, part in enumerate(self._devices):
            if part.alive:
                out.append(self._device_birth(at, now))
        return out

    def flush(self) -> list[Publication]:
        """Return the buffered publications, with sequence numbers that follow the births."""
        out = super().flush()
        for message in out:
            message.payload = spb.append_seq(message.payload, self._next_seq())
        return out

    def reports(self, t: float) -> list[Publication]:
        ts = self.clock.read_ms(t)
        out = []
        changes = self._node.changes(self._read_node(t), ts, not self.connected)
        if changes:
            out.append(self._data(self._topic("NDATA"), ts, changes))
        for part, process in zip(self._devices, self._processes, strict=True):
            values = process.read(t)
            changes = part.changes(values, ts, not self.connected) if part.alive else []
            if changes:
                out.append(self._data(self._topic("DDATA", part), ts, changes))
        return out

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        before = self.catch_up(now)
        if self.down or not message.topic.startswith(self._root):
            return before
        error = ""
        out: list[Publication] = []
        try:
            payload = spb.decode_payload(message.payload)
            kind, _, rest = message.topic[len(self._root) + 1 :].partition("/")
            if kind == "NCMD" and rest == self._node_id:
                out = self._execute_node_command(payload, now)
            elif kind == "DCMD" and rest.startswith(self._node_id + "/"):
                out = self._execute_device_command(rest[len(self._node_id) + 1 :], payload, now)
            else:
                return before
        except (CommandRefused, spb.SparkplugError) as refusal:
            error = str(refusal)
        to = message.response_topic
        if to and "+" not in to and "#" not in to:
            before.append(self._make_response(to, message.correlation, error, now))
        return [*before, *out]

    def goodbye(self, now: float) -> list[Publication]:
        return [self._death(now)]

    def booted(self, now: float) -> list[Publication]:
        self._start_devices(now)
        return []

    # Publications.

    def _topic(self, kind: str, part: MetricSet | None = None) -> str:
        topic = f"{self._root}/{kind}/{self._node_id}"
        return f"{topic}/{part.name}" if part is not None else topic

    def _next_seq(self) -> int:
        self._seq = (self._seq + 1) % 256
        return self._seq

    def _next_message(self, topic: str, body: bytes, kind: str) -> Publication:
        payload = spb.append_seq(body, self._next_seq())
        return Publication(topic, payload, 0, kind=kind, content_type=CONTENT_TYPE)

    def _data(self, topic: str, ts: int, changes: list[bytes]) -> Publication:
        body = spb.encode_body(ts, changes)
        if self.connected:
            body = spb.append_seq(body, self._next_seq())
        return Publication(topic, body, self.spec.qos, False, TELEMETRY, CONTENT_TYPE)

    def _death(self, now: float) -> Publication:
        ts = self.clock.read_ms(now)
        payload = spb.encode_payload(ts, [Metric("bdSeq", self._bd_seq, spb.INT64, None, ts)])
        return Publication(self._topic("NDEATH"), payload, 1, kind=DEATH, content_type=CONTENT_TYPE)

    def _device_birth(self, at: int, now: float) -> Publication:
        ts = self.clock.read_ms(now)
        part = self._devices[at]
        metrics = part.birth(self._processes[at].read(now), ts)
        body = spb.encode_body(ts, [spb.encode_metric(metric) for metric in metrics])
        return self._next_message(self._topic("DBIRTH", part), body, BIRTH)

    def _make_response(self, to: str, correlation: bytes, error: str, now: float) -> Publication:
        ts = self.clock.read_ms(now)
        metrics = [
            Metric("ok", not error, spb.BOOLEAN, None, ts),
            Metric("error", error or None, spb.STRING, None, ts),
        ]
        return Publication(
            to, spb.encode_payload(ts, metrics), 1, kind=RESPONSE, content_type=CONTENT_TYPE,
            correlation=correlation,
        )  # fmt: skip

    def _read_node(self, t: float) -> list[Any]:
        return [round(self._volts.at(t), 2), round(self._load.at(t), 1), int(t - self.up_since)]

    # Commands.

    def _execute_node_command(self, payload: spb.Payload, now: float) -> list[Publication]:
        """Execute a node command. The rebirth comes last, so that it has the new values."""
        asked = {_node_name(metric): metric.value for metric in payload.metrics}
        for name, value in asked.items():
            if name == SCAN_RATE:
                if not isinstance(value, int) or isinstance(value, bool):
                    raise CommandRefused(f"{name} must be a whole number of milliseconds")
                if not INTERVAL_S_MIN * 1000 <= value <= INTERVAL_S_MAX * 1000:
                    raise CommandRefused(
                        f"{name} must be {INTERVAL_S_MIN * 1000:g} ms to 31 days, not {value} ms"
                    )
                self.set_interval(value / 1000, now)
            elif name not in (REBIRTH, REBOOT):
                raise CommandRefused(f"no writable metric {name!r}")
        if asked.get(REBOOT) is True:
            self.reboot(now)
            return []
        if asked.get(REBIRTH) is True:
            return self.births(now)
        if SCAN_RATE not in asked:
            return []
        ts = self.clock.read_ms(now)
        when = spb.encode_varint(ts)
        value = int(self.interval * 1000)
        changed = spb.encode_reading(b"\x03", when, False, spb.INT64, value)
        return [self._data(self._topic("NDATA"), ts, [changed])]

    def _execute_device_command(
        self, name: str, payload: spb.Payload, now: float
    ) -> list[Publication]:
        at = next((n for n, part in enumerate(self._devices) if part.name == name), -1)
        if at < 0 or not self._devices[at].alive:
            raise CommandRefused(f"no device {name!r}")
        part, process = self._devices[at], self._processes[at]
        alias = (at + 1) * _ALIASES_A_DEVICE + len(DEVICE_TAGS) - 1
        for metric in payload.metrics:
            if metric.name != SET_POINT and metric.alias != alias:
                raise CommandRefused(f"no writable metric {metric.name or metric.alias!r}")
            value = metric.value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise CommandRefused(f"{SET_POINT} must be a number")
            if not _SET_POINT_LOW <= value <= _SET_POINT_HIGH:
                raise CommandRefused(
                    f"{SET_POINT} must be {_SET_POINT_LOW:g} to {_SET_POINT_HIGH:g}, not {value:g}"
                )
            process.set_point = float(value)
        ts = self.clock.read_ms(now)
        changes = part.changes(process.read(now), ts, historical=False)
        return [self._data(self._topic("DDATA", part), ts, changes)] if changes else []

    # Losses of devices.

    def _start_devices(self, now: float) -> None:
        for at, part in enumerate(self._devices):
            part.alive = True
            self._schedule_loss(at, now)

    def _schedule_loss(self, at: int, now: float) -> None:
        per_day: float = self.spec.options["losses_per_day"]
        if per_day:
            self.call_at(
                now + random_wait(self.event_rng.random, per_day),
                lambda when: self._on_lost(at, when),
            )

    def _on_lost(self, at: int, now: float) -> list[Publication]:
        part = self._devices[at]
        part.alive = False
        back = now + self.spec.options["loss_s"] * (0.5 + self.event_rng.random())
        self.call_at(back, lambda when: self._on_found(at, when))
        if not self.connected:  # the births of the next connection leave it out
            return []
        body = spb.encode_body(self.clock.read_ms(now), [])
        return [self._next_message(self._topic("DDEATH", part), body, DEATH)]

    def _on_found(self, at: int, now: float) -> list[Publication]:
        self._devices[at].alive = True
        self._schedule_loss(at, now)
        return [self._device_birth(at, now)] if self.connected else []


def _node_name(metric: Metric) -> str:
    if metric.name:
        return metric.name
    return {1: REBIRTH, 2: REBOOT, 3: SCAN_RATE}.get(metric.alias or 0, f"alias {metric.alias}")


def _check_id(key: str, name: str) -> None:
    if not name or set(name) & set("/+#"):
        raise ModelError(key, f"must be a Sparkplug id without /, + and #, not {name!r}")


def _make_command(spec: Spec, name: str, args: Mapping[str, Any]) -> Publication:
    """Make a command as a Sparkplug host application writes it."""
    root = f"{NAMESPACE}/{spec.options['group'] or spec.fleet}"
    topic = f"{root}/NCMD/{spec.client_id}"
    known = COMMANDS[name].example
    for key in args:
        if key not in known:
            expected = ", ".join(known) or "no arguments"
            raise ModelError(f"arguments.{key}", f"{name} takes {expected}")
    given = {**known, **args}
    if any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in given.values()
    ):
        raise ModelError("arguments", f"{name} takes numbers, not {dict(args)!r}")
    if name == "rebirth":
        metric = Metric(REBIRTH, True, spb.BOOLEAN)
    elif name == "reboot":
        metric = Metric(REBOOT, True, spb.BOOLEAN)
    elif name == "scan_rate":
        metric = Metric(SCAN_RATE, int(given["ms"]), spb.INT64)
    else:
        topic = f"{root}/DCMD/{spec.client_id}/device{int(given['device'])}"
        metric = Metric(SET_POINT, float(given["value"]), spb.DOUBLE)
    ts = int(spec.started_at * 1000)
    return Publication(topic, spb.encode_payload(ts, [metric]), 0, kind=COMMAND)


def _published(spec: Spec) -> tuple[str, ...]:
    root = f"{NAMESPACE}/{spec.options.get('group') or spec.fleet}"
    node = [f"{root}/{kind}/{spec.client_id}" for kind in ("NBIRTH", "NDATA", "NDEATH")]
    return (
        *node,
        *(f"{root}/{kind}/{spec.client_id}/+" for kind in ("DBIRTH", "DDATA", "DDEATH")),
    )


_DEVICES_DEFAULT: Final = 2

COMMANDS: Final[Mapping[str, Command]] = {
    "rebirth": Command("publishes all births again"),
    "reboot": Command("disconnects, boots and publishes its births"),
    "scan_rate": Command("sets the interval between measurements", {"ms": 1_000}),
    "set_point": Command("sets the temperature of a device's vessel", {"device": 1, "value": 75.0}),
}

INFO: Final = ModelInfo(
    name=SparkplugNode.MODEL,
    summary="Sparkplug B edge node: births, data by alias, deaths, rebirth by command",
    build=SparkplugNode,
    options=(
        Option("group", STR, "", "Sparkplug group id; empty: the fleet's name"),
        Option("devices", INT, _DEVICES_DEFAULT, "devices of the node", 0, 500),
        Option("deadband", FLOAT, 0.0, "factor of the deadbands; 0: report every change", 0, 1_000),
        Option("losses_per_day", FLOAT, 0.0, "losses of a device per day", 0, 1e5),
        Option("loss_s", FLOAT, HOUR_S / 12, "mean duration of a loss", 0.1, 86_400),
        *OPTIONS,
    ),
    payloads=(SPARKPLUG,),
    documents={"telemetry": _fields(DEVICE_TAGS), "NDATA": _fields(NODE_TAGS)},
    commands=COMMANDS,
    make_command=_make_command,
    published=_published,
    per_interval=lambda options: 1.0 + options.get("devices", _DEVICES_DEFAULT),
)

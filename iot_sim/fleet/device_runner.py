"""Connect a device model with its client: publications go out, events come back."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final, Protocol

from iot_sim.devices.device import RESPONSE, Device, Publication
from iot_sim.fleet.client import IDLE, Client
from iot_sim.fleet.context import FleetContext, Identity
from iot_sim.judge import stamps
from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import COMMANDER, DEVICE, NOBODY, OBSERVER, Flow
from iot_sim.scenarios.scenario import Fleet
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Publish

BEHIND_S: Final = 1.0  # further behind than this, a device is told the real time and may skip


class Schedule(Protocol):
    """The run that a device takes part in: its time, and when the device acts and connects."""

    @property
    def context(self) -> FleetContext: ...

    @property
    def speed(self) -> float: ...

    @property
    def reply_root(self) -> str: ...

    @property
    def schedule_lag(self) -> Histogram: ...

    @property
    def collecting(self) -> Container[DeviceRunner]:
        """The devices that connect at the end to fetch what waits for them."""

    def sim_now(self) -> float: ...

    def schedule(self, due: float, runner: DeviceRunner) -> None: ...

    def want_connection(self, runner: DeviceRunner) -> None: ...

    def is_observed(self, topic: str) -> bool: ...


class DeviceRunner:
    """The runner of one device, which owns its client."""

    __slots__ = ("_flows", "_last", "_run", "client", "device", "fleet", "is_broken",
                 "is_queued", "is_started", "number", "version")  # fmt: skip

    def __init__(self, run: Schedule, fleet: Fleet, number: int, device: Device) -> None:
        self._run = run
        self.fleet = fleet
        self.number = number
        self.device = device
        identity = Identity(
            device.spec.client_id,
            fleet.version,
            fleet.keep_alive_s,
            fleet.session_expiry_s,
            topic_alias=fleet.topic_alias,
            backoff_min_s=fleet.backoff_min_s,
            backoff_max_s=fleet.backoff_max_s,
            jitter=fleet.jitter,
        )
        self.client = Client(run.context, identity, self)
        self.version = 0  # of its place in the schedule
        self.is_started = False  # the load shape wants it
        self.is_queued = False  # it waits for its turn to connect
        self.is_broken = False  # its model made a mistake
        self._last = device.spec.started_at
        self._flows: dict[tuple[str, str, int], Flow] = {}

    # The device's time.

    def _now(self, at: float | None = None) -> float:
        """Return the simulated time, never before the last one that the device was given."""
        now = self._run.sim_now() if at is None else at
        if now > self._last:
            self._last = now
        return self._last

    def act(self, due: float, sim_now: float) -> None:
        """Let the device act at `due`; the difference to `sim_now` is the lag of the schedule."""
        behind_s = (sim_now - due) / self._run.speed
        self._run.schedule_lag.record(int(behind_s * 1e6))
        now = self._now(due if behind_s < BEHIND_S else sim_now)
        try:
            for publication in self.device.act(now):
                self._say(publication)
        except Exception as error:
            self._break(error)
        self.settle()

    def pace(self, factor: float) -> None:
        try:
            self.device.pace(factor, self._now())
        except Exception as error:
            self._break(error)
        self.settle()

    def settle(self) -> None:
        """Look what the device wants next: when to act, and whether to be connected."""
        if self.is_broken or not self.is_started:
            return
        due = self.device.next_at()
        if due < math.inf:
            self.version += 1
            self._run.schedule(due, self)
        client = self.client
        if self.device.wants_link(self._last):
            if client.state == IDLE and not client.is_waiting:
                self._run.want_connection(self)
        elif client.is_online:
            self._part()

    def _break(self, error: Exception) -> None:
        """Report an exception of the model and end this device's run; the others go on."""
        spec = self.device.spec
        self._run.context.error(
            "device_errors",
            f"{spec.client_id} ({self.fleet.model}): {type(error).__name__}: {error}",
        )
        self.is_broken = True
        self.client.leave_now()

    # The load and the end.

    def start(self) -> None:
        self.is_started = True
        self.settle()

    def stop(self, *, for_good: bool) -> None:
        """Say goodbye, if it is there."""
        self.is_started = False
        self.version += 1
        self.client.ends_session = for_good
        if self.client.is_online:
            self._part()

    def _part(self) -> None:
        try:
            for publication in self.device.goodbye(self._now()):
                self._say(publication)
        except Exception as error:
            self._break(error)
        self.client.leave()

    # What the client asks and tells.

    def will(self) -> tuple[Publication, int] | None:
        now = self._now()
        try:
            will = self.device.will(now)
            return None if will is None else (will, self.device.will_delay_s())
        except Exception as error:
            self._break(error)
            return None

    def wants_link(self) -> bool:
        if self.is_broken:
            return False
        if self in self._run.collecting:
            return True
        return self.is_started and self.device.wants_link(self._now())

    def on_online(self, session_present: bool) -> None:
        now = self._now()
        try:
            if not session_present or self.client.lacks_suback:
                wanted = self.device.subscriptions()
                if wanted:
                    self.client.subscribe(wanted)
            for publication in self.device.on_connected(now, session_present=session_present):
                self._say(publication)
        except Exception as error:
            self._break(error)
        self.settle()

    def on_offline(self) -> None:
        try:
            self.device.on_disconnected(self._now())
        except Exception as error:
            self._break(error)
        self.settle_later()

    def settle_later(self) -> None:
        """Schedule the device's next act, which may have changed. The client reconnects itself."""
        if self.is_started and not self.is_broken:
            due = self.device.next_at()
            if due < math.inf:
                self.version += 1
                self._run.schedule(due, self)

    def on_message(self, run: Publish, payload: bytes, now_us: int) -> None:
        text = stamps.from_properties(run.properties)
        if text is None and (found := stamps.from_payload(payload)) is not None:
            text, payload = found
        if text is not None and not run.retain:
            self._run.context.ledger.on_delivered(
                text, payload, run.topic, run.qos, run.dup, DEVICE, now_us
            )
        told = run.properties
        message = Publication(
            run.topic,
            payload,
            run.qos,
            run.retain,
            content_type=told.text(prop.CONTENT_TYPE) or "",
            response_topic=told.text(prop.RESPONSE_TOPIC) or "",
            correlation=told.binary(prop.CORRELATION_DATA) or b"",
            user=tuple(pair for pair in told.user if pair[0] != stamps.PROPERTY),
        )
        try:
            for publication in self.device.on_message(message, self._now()):
                self._say(publication)
        except Exception as error:
            self._break(error)
        self.settle()

    # Publishing.

    def _say(self, publication: Publication) -> None:
        client = self.client
        qos = publication.qos
        if qos > client.outbound.qos_max:
            qos = client.outbound.qos_max
        key = (publication.topic, publication.kind, qos)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = self._open(*key)
        client.publish(flow, publication)

    def _open(self, topic: str, kind: str, qos: int) -> Flow:
        run = self._run
        if kind == RESPONSE and topic.startswith(run.reply_root):
            judge = COMMANDER
        elif self.fleet.is_observed and run.is_observed(topic):
            judge = OBSERVER
        else:
            judge = NOBODY
        return run.context.ledger.open(
            self.device.spec.client_id, kind, topic, qos, len(self._flows), judge
        )

"""Connect a device model to its MQTT client: pass on publications, events and messages."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final, Protocol

from iot_sim.devices.device import RESPONSE, Device, Publication
from iot_sim.fleet.client import IDLE, Client
from iot_sim.fleet.context import ClientOptions, FleetContext
from iot_sim.judge import stamps
from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import COMMANDER, DEVICE, NO_RECEIVER, OBSERVER, Flow
from iot_sim.scenarios.scenario import Fleet
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Publish

BEHIND_S: Final = 1.0  # a device further behind gets the current time, and may skip reports


class FleetRun(Protocol):
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
        """The devices that reconnect at the end to get their queued messages."""

    def sim_now(self) -> float: ...

    def schedule(self, due: float, runner: DeviceRunner) -> None: ...

    def want_connection(self, runner: DeviceRunner) -> None: ...

    def is_observed(self, topic: str) -> bool: ...


class DeviceRunner:
    """The runner of one device, which owns its client."""

    __slots__ = ("_flows", "_last", "_run", "client", "device", "fleet", "has_failed",
                 "is_queued", "is_started", "number", "version")  # fmt: skip

    def __init__(self, run: FleetRun, fleet: Fleet, number: int, device: Device) -> None:
        self._run = run
        self.fleet = fleet
        self.number = number
        self.device = device
        options = ClientOptions(
            device.spec.client_id,
            fleet.version,
            fleet.keep_alive_s,
            fleet.session_expiry_s,
            topic_alias=fleet.topic_alias,
            backoff_min_s=fleet.backoff_min_s,
            backoff_max_s=fleet.backoff_max_s,
            jitter=fleet.jitter,
        )
        self.client = Client(run.context, options, self)
        self.version = 0  # of its entry in the schedule; older entries are stale
        self.is_started = False  # the load shape includes this device
        self.is_queued = False  # in the queue of devices that want to connect
        self.has_failed = False  # the model raised an exception
        self._last = device.spec.started_at
        self._flows: dict[tuple[str, str, int], Flow] = {}

    # The device's time.

    def _now(self, at: float | None = None) -> float:
        """Return the simulated time, which never runs backwards for the device."""
        now = self._run.sim_now() if at is None else at
        if now > self._last:
            self._last = now
        return self._last

    def act(self, due: float, sim_now: float) -> None:
        """Let the device act at `due`; the difference to `sim_now` is the lag of the schedule."""
        behind_s = (sim_now - due) / self._run.speed
        self._run.schedule_lag.record(int(behind_s * 1e6))
        now = self._now(due if behind_s < BEHIND_S else sim_now)
        due_us = self._run.context.engine.clock.now_us() - int(behind_s * 1e6)
        try:
            for publication in self.device.act(now):
                self._publish(publication, due_us)
        except Exception as error:
            self._fail(error)
        self.reschedule()

    def pace(self, factor: float) -> None:
        try:
            self.device.pace(factor, self._now())
        except Exception as error:
            self._fail(error)
        self.reschedule()

    def reschedule(self) -> None:
        """Schedule the device's next action; connect or disconnect as it wants."""
        if self.has_failed or not self.is_started:
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
            self._disconnect()

    def _fail(self, error: Exception) -> None:
        """Report an exception of the model and stop this device; the others continue."""
        spec = self.device.spec
        self._run.context.error(
            "device_errors",
            f"{spec.client_id} ({self.fleet.model}): {type(error).__name__}: {error}",
        )
        self.has_failed = True
        self.client.disconnect_now()

    # The load and the end.

    def start(self) -> None:
        self.is_started = True
        self.reschedule()

    def stop(self, *, for_good: bool) -> None:
        """Stop the device, and disconnect it if it is online."""
        self.is_started = False
        self.version += 1
        self.client.ends_session = for_good
        if self.client.is_online:
            self._disconnect()

    def _disconnect(self) -> None:
        try:
            for publication in self.device.goodbye(self._now()):
                self._publish(publication)
        except Exception as error:
            self._fail(error)
        self.client.disconnect()

    # Called by the client.

    def will(self) -> tuple[Publication, int] | None:
        now = self._now()
        try:
            will = self.device.will(now)
            return None if will is None else (will, self.device.will_delay_s())
        except Exception as error:
            self._fail(error)
            return None

    def wants_link(self) -> bool:
        if self.has_failed:
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
                self._publish(publication)
        except Exception as error:
            self._fail(error)
        self.reschedule()

    def on_offline(self) -> None:
        try:
            self.device.on_disconnected(self._now())
        except Exception as error:
            self._fail(error)
        self.reschedule_action()

    def reschedule_action(self) -> None:
        """Schedule the device's next action only: the client reconnects by itself."""
        if self.is_started and not self.has_failed:
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
                self._publish(publication)
        except Exception as error:
            self._fail(error)
        self.reschedule()

    # Publishing.

    def _publish(self, publication: Publication, due_us: int = 0) -> None:
        client = self.client
        qos = publication.qos
        if qos > client.outbound.qos_max:
            qos = client.outbound.qos_max
        key = (publication.topic, publication.kind, qos)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = self._open(*key)
        client.publish(flow, publication, due_us)

    def _open(self, topic: str, kind: str, qos: int) -> Flow:
        run = self._run
        if kind == RESPONSE and topic.startswith(run.reply_root):
            receiver = COMMANDER
        elif self.fleet.is_observed and run.is_observed(topic):
            receiver = OBSERVER
        else:
            receiver = NO_RECEIVER
        return run.context.ledger.open(
            self.device.spec.client_id, kind, topic, qos, len(self._flows), receiver
        )

"""The simulator's own clients: observers, which feed the ledger, and the commander."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from iot_sim.devices.device import COMMAND, Publication, Subscription
from iot_sim.fleet.client import Client
from iot_sim.fleet.context import ClientOptions, FleetContext
from iot_sim.judge import stamps
from iot_sim.judge.ledger import COMMANDER, DEVICE, NO_RECEIVER, OBSERVER, Flow
from iot_sim.judge.outcome import CommandCounts
from iot_sim.models.catalogue import command as make_command
from iot_sim.scenarios.scenario import Command
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Publish

if TYPE_CHECKING:
    from iot_sim.fleet.device_runner import DeviceRunner

BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 2.0


class Observer:
    """Subscribes to the topics of devices and records what arrives in the ledger."""

    def __init__(
        self,
        context: FleetContext,
        options: ClientOptions,
        filters: list[str],
        on_presence: Callable[[], None],
    ) -> None:
        self._context = context
        self._on_presence = on_presence
        self._filters = filters
        self.client = Client(context, options, self)
        self.is_wanted = True

    @property
    def is_ready(self) -> bool:
        return self.client.is_online and not self.client.awaits_suback

    def will(self) -> tuple[Publication, int] | None:
        return None

    def wants_link(self) -> bool:
        return self.is_wanted

    def on_online(self, session_present: bool) -> None:
        self._on_presence()
        if not session_present or self.client.lacks_suback:
            wanted = [Subscription(text, 2) for text in self._filters]
            self.client.subscribe(wanted, with_retained=False)

    def on_offline(self) -> None:
        self._on_presence()  # the client reconnects by itself

    def on_message(self, run: Publish, payload: bytes, now_us: int) -> None:
        ledger = self._context.ledger
        if run.retain:  # a retained message: without Retain As Published, live ones have no flag
            ledger.retained += 1
            return
        text = None
        for name, value in run.properties.user:
            if name == stamps.PROPERTY:
                text = value
        if text is None:
            found = stamps.from_payload(payload)
            if found is None:
                ledger.unstamped += 1
                return
            text, payload = found
        ledger.on_delivered(text, payload, run.topic, run.qos, run.dup, OBSERVER, now_us)

    def leave(self) -> None:
        self.is_wanted = False
        self.client.ends_session = True
        self.client.disconnect_now()


class Commander:
    """Sends commands to devices and waits for their responses."""

    def __init__(self, context: FleetContext, options: ClientOptions, reply_root: str) -> None:
        self._context = context
        self._reply_to = f"{reply_root}/{options.client_id}"
        self.client = Client(context, options, self)
        self.counts = CommandCounts()
        self.is_wanted = True
        self._numbers = itertools.count(1)
        self._pending: dict[bytes, int] = {}  # correlation data -> send time in us
        self._flows: dict[tuple[str, int], Flow] = {}
        self.flows_of: dict[DeviceRunner, list[Flow]] = {}

    @property
    def is_ready(self) -> bool:
        return self.client.is_online and not self.client.awaits_suback

    @property
    def pending(self) -> int:
        return len(self._pending)

    def send(self, runner: DeviceRunner, command: Command, *, is_kept: bool) -> None:
        """Send a command to a device; `is_kept`: its session queues it while it is offline."""
        is_reachable = runner.client.is_online or is_kept
        if not self.client.is_online or not is_reachable or runner.client.may_lack_subscriptions:
            self.counts.unsent += 1
            return
        spec = runner.device.spec
        publication = make_command(runner.fleet.model, spec, command.command, command.arguments)
        correlation = next(self._numbers).to_bytes(8, "big")
        publication.kind = COMMAND
        publication.qos = min(command.qos, self.client.outbound.qos_max)
        publication.response_topic = self._reply_to
        publication.correlation = correlation
        key = (publication.topic, publication.qos)
        flow = self._flows.get(key)
        if flow is None:
            # Without a session that queues it, the command may be lost legitimately.
            receiver = DEVICE if is_kept else NO_RECEIVER
            flow = self._context.ledger.open(
                self.client.options.client_id, COMMAND, key[0], key[1], len(self._flows), receiver
            )
            self._flows[key] = flow
            self.flows_of.setdefault(runner, []).append(flow)
        engine = self._context.engine
        self._pending[correlation] = engine.clock.now_us()
        self.counts.sent += 1
        self.client.publish(flow, publication)
        engine.after(command.timeout_s, lambda: self._expire(correlation))

    def _expire(self, correlation: bytes) -> None:
        if self._pending.pop(correlation, None) is not None:
            self.counts.unanswered += 1

    def expire_all(self) -> None:
        """Count the commands still without a response at the end of the run."""
        self.counts.unanswered += len(self._pending)
        self._pending.clear()

    def has_undelivered(self, runner: DeviceRunner) -> bool:
        """Tell whether the broker still has a command to deliver to this device."""
        return any(
            flow.qos and flow.receiver == DEVICE and flow.acked.difference_count(flow.delivered)
            for flow in self.flows_of.get(runner, ())
        )

    def will(self) -> tuple[Publication, int] | None:
        return None

    def wants_link(self) -> bool:
        return self.is_wanted

    def on_online(self, session_present: bool) -> None:
        if not session_present or self.client.lacks_suback:
            self.client.subscribe([Subscription(self._reply_to, 2)], with_retained=False)

    def on_offline(self) -> None:
        """Do nothing: the client reconnects by itself."""

    def on_message(self, run: Publish, payload: bytes, now_us: int) -> None:
        text = stamps.from_properties(run.properties)
        if text is not None and not run.retain:
            self._context.ledger.on_delivered(
                text, payload, run.topic, run.qos, run.dup, COMMANDER, now_us
            )
        correlation = run.properties.binary(prop.CORRELATION_DATA)
        sent_us = None if correlation is None else self._pending.pop(correlation, None)
        if sent_us is not None:
            self.counts.answered += 1
            self.counts.latency.record(now_us - sent_us)
            if is_refusal(payload):
                self.counts.refused += 1

    def leave(self) -> None:
        self.is_wanted = False
        self.client.ends_session = True
        self.client.disconnect_now()


def is_refusal(payload: bytes) -> bool:
    """Tell whether a response in JSON or CBOR has `ok` = false."""
    return b'"ok":false' in payload or b"\x62ok\xf4" in payload

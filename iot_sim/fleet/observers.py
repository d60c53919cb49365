"""The simulator's own clients: observers, who keep the ledger, and the commander."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from iot_sim.devices.device import COMMAND, Publication, Subscription
from iot_sim.fleet.client import Client
from iot_sim.fleet.context import FleetContext, Identity
from iot_sim.judge import stamps
from iot_sim.judge.ledger import COMMANDER, DEVICE, NOBODY, OBSERVER, Flow
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
    """Subscribes to what devices publish and tells the ledger. Its session outlives its links."""

    def __init__(
        self,
        context: FleetContext,
        identity: Identity,
        filters: list[str],
        tell_heard: Callable[[], None],
    ) -> None:
        self._context = context
        self._tell_heard = tell_heard
        self._filters = filters
        self.client = Client(context, identity, self)
        self.is_wanted = True

    @property
    def is_ready(self) -> bool:
        return self.client.is_online and not self.client.awaits_suback

    def will(self) -> tuple[Publication, int] | None:
        return None

    def wants_link(self) -> bool:
        return self.is_wanted

    def on_online(self, session_present: bool) -> None:
        self._tell_heard()
        if not session_present or self.client.lacks_suback:
            wanted = [Subscription(text, 2) for text in self._filters]
            self.client.subscribe(wanted, with_retained=False)

    def on_offline(self) -> None:
        self._tell_heard()  # its client comes back by itself

    def on_message(self, run: Publish, payload: bytes, now_us: int) -> None:
        ledger = self._context.ledger
        if run.retain:  # a replay: our subscriptions do not keep the flag of live messages
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
        self.client.leave_now()


class Commander:
    """Tells devices what to do and waits for their answers."""

    def __init__(self, context: FleetContext, identity: Identity, reply_root: str) -> None:
        self._context = context
        self._reply_to = f"{reply_root}/{identity.client_id}"
        self.client = Client(context, identity, self)
        self.counts = CommandCounts()
        self.is_wanted = True
        self._numbers = itertools.count(1)
        self._pending: dict[bytes, int] = {}  # correlation -> sent at, in us
        self._flows: dict[tuple[str, int], Flow] = {}
        self.flows_of: dict[DeviceRunner, list[Flow]] = {}

    @property
    def is_ready(self) -> bool:
        return self.client.is_online and not self.client.awaits_suback

    @property
    def pending(self) -> int:
        return len(self._pending)

    def send(self, runner: DeviceRunner, command: Command, *, is_kept: bool) -> None:
        """Tell one device; `is_kept`: its session keeps what comes while it is away."""
        is_there = runner.client.is_online or is_kept
        if not self.client.is_online or not is_there or runner.client.is_deaf:
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
            # What a session does not outlive may be gone with it, by right.
            judge = DEVICE if is_kept else NOBODY
            flow = self._context.ledger.open(
                self.client.identity.client_id, COMMAND, key[0], key[1], len(self._flows), judge
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

    def give_up(self) -> None:
        """Count the commands that are still unanswered at the end of the run."""
        self.counts.unanswered += len(self._pending)
        self._pending.clear()

    def owes(self, runner: DeviceRunner) -> bool:
        """Tell whether the broker still holds a command for this device."""
        return any(
            flow.qos and flow.judge == DEVICE and flow.acked.count_without(flow.delivered)
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
        self.client.leave_now()


def is_refusal(payload: bytes) -> bool:
    """Tell whether an answer in JSON or CBOR has `ok` = false."""
    return b'"ok":false' in payload or b"\x62ok\xf4" in payload

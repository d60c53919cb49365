"""The clients of one process.

A publisher sends by the clock: a message that is due while the window is full, or while this
program is busy, is sent late, and its duration counts from the time at which it was due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from iot_sim.bench.counts import Counts, Sample
from iot_sim.bench.plan import PUBLISH, SUBSCRIBE, Plan
from iot_sim.fleet.engine import Clock, Engine, Link, Target
from mqtt_broker.client.other_protocols import other_protocol
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import (
    ID_BYTES,
    PINGREQ_BYTES,
    encode_ack,
    encode_connect,
    encode_disconnect,
    encode_subscribe,
    publish_head,
)
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqtt_broker.codec.properties import Properties
from mqtt_broker.codec.strings import encode_string
from qos import Sender, WrongAck

STAMP: Final = b"fmqb"  # then eight bytes: when the message was due, in us since the epoch
STAMP_BYTES: Final = len(STAMP) + 8
CONNECT_S: Final = 10.0
RECONNECT_S: Final = 1.0
WAITING_MAX: Final = 10_000  # messages of a publisher that are due and not sent
UNSENT_BYTES_MAX: Final = 1_048_576
GOODBYE_S: Final = 2.0


class Load:
    """The share of a run that one process has."""

    def __init__(
        self,
        plan: Plan,
        target: Target,
        address: tuple[int, Any],
        on_sample: Callable[[Sample], None],
        share: tuple[int, int] = (0, 1),
        clock: Clock | None = None,
    ) -> None:
        self.plan = plan
        self.target = target
        self.address = address
        self.engine = Engine(clock)
        self.counts = Counts()
        self.online = 0
        self.is_over = False
        self._on_sample = on_sample
        self._index, self._processes = share
        self._second = 0
        self._late_us = 0
        self._finished = 0
        self._gone = 0
        self._clients: list[LoadClient] = []

    def stop(self) -> None:
        """End the run after this turn."""
        self.is_over = True

    def finished(self) -> None:
        """Note that a publisher has sent all it had to send."""
        self._finished += 1

    def gone(self) -> None:
        """Note that a client has no connection and makes none again; without clients, stop."""
        self._gone += 1
        if self._gone == len(self._clients):
            self.stop()

    def run(self) -> None:
        """Serve until the time is over, all is sent, or `stop`."""
        plan, engine = self.plan, self.engine
        start = engine.clock.now()
        numbers = range(plan.first + self._index, plan.first + plan.clients, self._processes)
        for place, number in enumerate(numbers):
            client = LoadClient(self, number)
            self._clients.append(client)
            due = start + (place * self._processes + self._index) / plan.connect_rate
            engine.at(due, client.connect)
        if plan.duration_s:
            engine.at(start + plan.duration_s, self.stop)
        next_second = start + 1.0
        while not self.is_over:
            due = min(next_second, engine.next_timer())
            engine.turn(next_second)
            now = engine.clock.now()
            self._late_us = max(self._late_us, round(1e6 * (now - due)))
            while now >= next_second:
                self._report()
                next_second += 1.0
            if plan.messages and self._finished == len(self._clients):
                self.stop()
        self._await_acknowledgements()
        self._report()
        self._say_goodbye()
        engine.close()

    def _report(self) -> None:
        self._on_sample(Sample(self._second, self.online, self.counts, self._late_us))
        self._second += 1
        self._late_us = 0
        self.counts = Counts()

    def _await_acknowledgements(self) -> None:
        stop = self.engine.clock.now() + GOODBYE_S
        while self.engine.clock.now() < stop and any(one.is_busy for one in self._clients):
            self.engine.turn(stop)

    def _say_goodbye(self) -> None:
        """Disconnect in order, so that no will is published and no session kept."""
        for client in self._clients:
            client.disconnect()
        stop = self.engine.clock.now() + GOODBYE_S
        while self.engine.links and self.engine.clock.now() < stop:
            self.engine.turn(stop)


class LoadClient:
    """A client: CONNECT, then what the plan says."""

    __slots__ = (
        "_decoder",
        "_due",
        "_epoch",
        "_left",
        "_link",
        "_load",
        "_number",
        "_online",
        "_received_ids",
        "_sender",
        "_started",
        "_topic",
        "_waiting",
    )

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._number = number
        self._topic = load.plan.topic_of(number)
        self._left = load.plan.messages
        self._link: Link | None = None
        self._online = False
        self._epoch = 0  # counts connections, so that old timers do nothing
        self._started = 0
        self._due = 0.0
        self._decoder = Decoder(from_server=True, version=load.plan.version)
        self._sender: Sender[int] = Sender()  # when each message was due, in us
        self._waiting: deque[int] = deque()
        self._received_ids: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Tell whether a message has no acknowledgement yet."""
        return self._online and len(self._sender) > 0

    # The connection.

    def connect(self) -> None:
        load = self._load
        self._epoch += 1
        self._decoder = Decoder(from_server=True, version=load.plan.version)
        self._sender = Sender(load.plan.inflight)
        self._received_ids.clear()
        self._started = load.engine.clock.now_us()
        try:
            self._link = load.engine.connect(load.target, load.address, self)
        except OSError as error:
            self._failed(f"cannot connect: {error}")
            return
        load.engine.after(CONNECT_S, partial(self._check_connected, self._epoch))

    def _check_connected(self, epoch: int) -> None:
        if epoch == self._epoch and not self._online and self._link is not None:
            self._close()
            self._failed(f"no CONNACK within {CONNECT_S:g} s")

    def _failed(self, what: str) -> None:
        load = self._load
        load.counts.error(what)
        self._link = None
        if load.plan.reconnects and not load.is_over:
            load.engine.after(RECONNECT_S, self.connect)
        elif not load.is_over:
            if load.plan.action == PUBLISH and self._left >= 0:
                self._left = -1
                load.finished()
            load.gone()

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._online:
            self._online = False
            self._load.online -= 1

    def disconnect(self) -> None:
        self._epoch += 1
        if self._link is None:
            return
        if self._online:
            self._online = False
            self._load.online -= 1
            self._link.write_last(encode_disconnect(self._load.plan.version))
        else:
            self._link.close()

    def on_open(self, link: Link) -> None:
        plan = self._load.plan
        properties = Properties()
        if plan.version == V5 and plan.session_expiry_s:
            properties[prop.SESSION_EXPIRY_INTERVAL] = plan.session_expiry_s
        link.write(
            encode_connect(
                Connect(
                    plan.version,
                    plan.client_id(self._number),
                    plan.clean_start,
                    plan.keep_alive_s,
                    properties,
                    username=plan.user_of(self._number),
                    password=plan.password,
                )
            )
        )

    def on_end(self, link: Link, why: str) -> None:
        if self._load.is_over:
            return
        was_online = self._online
        self._close()
        if was_online:
            self._load.counts.lost += 1
        self._failed(f"connection lost: {why}" if why else self._closed_text(was_online))

    def _closed_text(self, was_online: bool) -> str:
        text = "connection closed by the broker"
        if was_online:
            return text
        has_tls = self._load.target.tls is not None
        return f"{text} before CONNACK" + ("" if has_tls else "; perhaps its port wants TLS")

    def on_data(self, link: Link, data: bytes) -> None:
        if not self._online and (other := other_protocol(data)):
            self._close()
            self._failed(other)
            return
        try:
            for packet in self._decoder.feed(data):
                self._on_packet(link, packet)
                if self._link is None:
                    return
        except (Violation, WrongAck) as error:
            self._close()
            self._failed(f"the broker broke the protocol: {error}")

    def _on_packet(self, link: Link, packet: object) -> None:
        if isinstance(packet, Publish):
            self._on_publish(link, packet)
        elif isinstance(packet, Ack):
            self._on_ack(link, packet)
        elif isinstance(packet, Connack):
            self._on_connack(link, packet)
        elif isinstance(packet, Suback):
            for code in packet.reasons:
                if code >= reasons.UNSPECIFIED_ERROR:
                    self._load.counts.error(f"not subscribed: {reasons.name(code)}")
        elif isinstance(packet, Disconnect):
            self._close()
            self._load.counts.lost += 1
            self._failed(f"disconnected by the broker: {reasons.name(packet.reason)}")
        elif isinstance(packet, Violation):
            raise packet

    def _on_connack(self, link: Link, packet: Connack) -> None:
        load, plan = self._load, self._load.plan
        if packet.reason:
            self._close()
            name = reasons.name(packet.reason) if plan.version == V5 else str(packet.reason)
            self._failed(f"connection refused: {name}")
            return
        self._online = True
        load.online += 1
        load.counts.connected += 1
        load.counts.connect.record(load.engine.clock.now_us() - self._started)
        keep_alive_s = packet.properties.number(prop.SERVER_KEEP_ALIVE, plan.keep_alive_s)
        if keep_alive_s:
            load.engine.after(keep_alive_s / 2, partial(self._ping, self._epoch, keep_alive_s / 2))
        allowed = packet.properties.number(prop.RECEIVE_MAXIMUM, plan.inflight)
        self._sender.limit = min(plan.inflight, allowed)
        if plan.action == SUBSCRIBE:
            request = SubscriptionRequest(self._topic, plan.qos)
            link.write(encode_subscribe(plan.version, Subscribe(1, [request])))
        elif plan.action == PUBLISH and self._left >= 0:
            self._due = load.engine.clock.now()
            self._publish_due(self._epoch)

    def _ping(self, epoch: int, pause_s: float) -> None:
        if epoch == self._epoch and self._link is not None:
            self._link.write(PINGREQ_BYTES)
            self._load.engine.after(pause_s, partial(self._ping, epoch, pause_s))

    # Publishing.

    def _publish_due(self, epoch: int) -> None:
        """Send what is due by now, and come back when the next message is."""
        load, plan = self._load, self._load.plan
        if epoch != self._epoch or not self._online or load.is_over:
            return
        now = load.engine.clock.now()
        while self._due <= now and (self._left > 0 or not plan.messages):
            if plan.messages:
                self._left -= 1
            self._waiting.append(load.engine.clock.base_us + round(self._due * 1e6))
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                load.counts.error("messages not sent: the broker is slower than the rate")
            self._due += plan.interval_s
        self._send_waiting()
        if self._left > 0 or self._waiting or not plan.messages:
            load.engine.at(max(self._due, now), partial(self._publish_due, epoch))

    def _send_waiting(self) -> None:
        link, plan, sender = self._link, self._load.plan, self._sender
        assert link is not None
        waiting = self._waiting
        while waiting and link.unsent < UNSENT_BYTES_MAX and not self._load.is_over:
            if plan.qos and sender.room < 1:
                return
            due_us = waiting.popleft()
            packet_id = sender.admit_one(due_us, plan.qos) if plan.qos else 0
            link.write(self._encoded(due_us, packet_id))
            self._load.counts.sent += 1
        if plan.messages and not self._left and not waiting and not len(sender):
            self._left = -1
            self._load.finished()

    def _encoded(self, due_us: int, packet_id: int) -> bytes:
        plan = self._load.plan
        payload = plan.payload
        if payload is None:
            payload = STAMP + due_us.to_bytes(8, "big")
            payload += bytes(max(0, plan.payload_bytes - len(payload)))
        middle = ID_BYTES[packet_id] if plan.qos else b""
        if plan.version == V5:
            middle += b"\0"
        topic = encode_string(self._topic)
        head = publish_head(topic, plan.qos, plan.retain, False, len(middle) + len(payload))
        return head + middle + payload

    def _on_ack(self, link: Link, packet: Ack) -> None:
        counts, sender = self._load.counts, self._sender
        if packet.packet_type == PUBREL:
            for packet_id in packet.packet_ids:
                self._received_ids.discard(packet_id)
                link.write(encode_ack(PUBCOMP, packet_id))
            return
        if packet.packet_type == PUBCOMP:
            sender.on_pubcomp(packet.packet_ids)
        elif packet.reason >= reasons.UNSPECIFIED_ERROR:
            counts.error(f"not published: {reasons.name(packet.reason)}")
            for packet_id in packet.packet_ids:
                sender.forget(packet_id)
        else:
            self._on_accepted(link, packet)
        self._send_waiting()

    def _on_accepted(self, link: Link, packet: Ack) -> None:
        counts, ids = self._load.counts, packet.packet_ids
        if packet.packet_type == PUBACK:
            done = self._sender.on_puback(ids)
        else:
            done, _ = self._sender.on_pubrec(ids)
            for packet_id in ids:
                link.write(encode_ack(PUBREL, packet_id))
        now_us = self._load.engine.clock.now_us()
        counts.acknowledged += len(done)
        for due_us in done:
            counts.acknowledgement.record(now_us - due_us)

    # Receiving.

    def _on_publish(self, link: Link, run: Publish) -> None:
        counts = self._load.counts
        payloads = run.payloads()
        if run.qos == 1:
            link.write(b"".join(encode_ack(PUBACK, one) for one in run.packet_ids()))
        elif run.qos == 2:
            ids = run.packet_ids()
            link.write(b"".join(encode_ack(PUBREC, one) for one in ids))
            payloads = [
                payload
                for packet_id, payload in zip(ids, payloads, strict=True)
                if packet_id not in self._received_ids
            ]
            self._received_ids.update(ids)
        counts.received += len(payloads)
        now_us = self._load.engine.clock.now_us()
        for payload in payloads:
            if payload.startswith(STAMP) and not run.retain:
                due_us = int.from_bytes(payload[len(STAMP) : STAMP_BYTES], "big")
                counts.delivery.record(now_us - due_us)

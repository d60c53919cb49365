"""The outbound half of a client: each publication up to the broker's last acknowledgement.

It outlives connections, like the Session State. After a reconnect it sends unacknowledged QoS 1
and 2 messages again. If the broker has lost the session, it publishes QoS 1 messages anew and
abandons QoS 2 messages, which must not arrive twice.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from iot_sim.devices.device import Publication
from iot_sim.fleet.context import ClientOptions, FleetContext
from iot_sim.fleet.encoding import Message, encode_message
from iot_sim.fleet.engine import Link
from iot_sim.judge.ledger import Flow
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBREC, PUBREL, RECEIVE_MAXIMUM_DEFAULT, V5
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack
from mqtt_broker.codec.properties import Properties
from qos import Sender

BACKLOG_MAX: Final = 1000  # messages that wait for the broker's Receive Maximum
UNSENT_BYTES_MAX: Final = 4_194_304  # a link with more unsent bytes drops QoS 0
OVERHEAD_BYTES: Final = 1024  # upper bound of topic, stamp and header of our packets


class Outbound:
    """The outbound half of one client at the three QoS levels."""

    __slots__ = (
        "_alias_max",
        "_aliases",
        "_backlog",
        "_context",
        "_link",
        "_options",
        "_packet_bytes_max",
        "_retain_ok",
        "_sender",
        "has_sent",
        "qos_max",
    )  # fmt: skip

    def __init__(self, context: FleetContext, options: ClientOptions) -> None:
        self._context = context
        self._options = options
        self._link: Link | None = None
        self._sender: Sender[Message] | None = None
        self._backlog: deque[tuple[Flow, Publication, int]] | None = None
        self._aliases: dict[str, int] | None = None
        self._alias_max = 0
        self._packet_bytes_max = 0
        self._retain_ok = True
        self.qos_max = 2
        self.has_sent = False  # since the last keep alive check

    def start(self, link: Link, connack: Properties) -> None:
        """Start on a new connection, within the limits of the properties of its CONNACK."""
        options = self._options
        self._link = link
        self._alias_max = connack.number(prop.TOPIC_ALIAS_MAXIMUM) if options.topic_alias else 0
        self._packet_bytes_max = connack.number(prop.MAXIMUM_PACKET_SIZE)
        self._retain_ok = connack.number(prop.RETAIN_AVAILABLE, 1) == 1
        self.qos_max = connack.number(prop.MAXIMUM_QOS, 2)
        limit = connack.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM_DEFAULT)
        if self._sender is not None:
            self._sender.limit = limit
        elif limit != RECEIVE_MAXIMUM_DEFAULT:
            self._sender = Sender(limit)

    def stop(self) -> None:
        """Stop at the end of a connection; its aliases end with it."""
        self._link = None
        self._aliases = None

    @property
    def unacknowledged(self) -> int:
        """Messages that the broker has not acknowledged."""
        found = len(self._sender) if self._sender is not None else 0
        return found + (len(self._backlog) if self._backlog else 0)

    def is_busy(self, packet_id: int) -> bool:
        sender = self._sender
        return sender is not None and (packet_id in sender.unacked or packet_id in sender.releasing)

    def publish(self, flow: Flow, publication: Publication, due_us: int = 0) -> None:
        """Send it, or keep it until the broker's Receive Maximum permits.

        `due_us` is when it was due, on the engine's clock; 0: now.
        """
        if not flow.qos:
            link = self._link
            assert link is not None
            if link.unsent < UNSENT_BYTES_MAX:
                self._send(flow, publication, due_us)
            else:
                self._context.counters["backlog_dropped"] += 1
            return
        backlog = self._backlog
        if backlog or (self._sender is not None and self._sender.room <= 0):
            if backlog is None:
                backlog = self._backlog = deque()
            due_us = due_us or self._context.engine.clock.now_us()
            backlog.append((flow, publication, due_us))
            if len(backlog) > BACKLOG_MAX:
                backlog.popleft()
                self._context.counters["backlog_dropped"] += 1
            return
        self._send(flow, publication, due_us)

    def pump(self) -> None:
        """Send waiting messages, up to the broker's Receive Maximum."""
        backlog = self._backlog
        while backlog and (self._sender is None or self._sender.room > 0):
            self._send(*backlog.popleft())

    def _send(self, flow: Flow, publication: Publication, due_us: int) -> None:
        link = self._link
        assert link is not None
        payload_bytes = len(publication.payload)
        if self._packet_bytes_max and payload_bytes + OVERHEAD_BYTES > self._packet_bytes_max:
            self._context.counters["too_large"] += 1
            return
        sequence = flow.sent
        flow.sent = sequence + 1
        tally = flow.tally
        tally.sent += 1
        now_us = self._context.engine.clock.now_us()
        message = Message(
            flow,
            sequence,
            now_us,
            publication,
            self._options.version,
            publication.retain and self._retain_ok,
            now_us - due_us if due_us else 0,
        )
        self.has_sent = True
        if message.retain:
            self._context.retained.add(flow.topic)
        if flow.qos:
            sender = self._sender
            if sender is None:
                sender = self._sender = Sender()
            packet_id = sender.admit_one(message, flow.qos)
            link.write(encode_message(message, packet_id, False, *self._alias(flow.topic)))
            return
        if link.is_half_open or not self._context.are_observers_online:
            self._context.ledger.on_cut(flow, sequence)
        if not link.is_half_open:
            link.write(encode_message(message, 0, False, *self._alias(flow.topic)))

    def _alias(self, topic: str) -> tuple[int, bool]:
        """Return the Topic Alias, or 0, and whether the broker knows it."""
        if not self._alias_max:
            return 0, False
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        alias = aliases.get(topic, 0)
        if alias:
            return alias, True
        if len(aliases) < self._alias_max:
            alias = aliases[topic] = len(aliases) + 1
        return alias, False

    def resend(self, *, session_present: bool) -> None:
        """Send again what was in flight when the last connection ended. [MQTT-4.4.0-1]"""
        sender, link = self._sender, self._link
        assert link is not None
        if sender is None:
            return
        ledger = self._context.ledger
        if session_present:
            for packet_id, message, _ in sender.resend():
                ledger.on_resent(message.flow, message.sequence)
                link.write(encode_message(message, packet_id, True, *self._alias(message.topic)))
            for packet_id in sender.releasing:
                link.write(encode_ack(PUBREL, packet_id))
            return
        fresh: Sender[Message] = Sender(sender.limit)
        self._sender = fresh
        for _, message, qos in sender.resend():
            if qos == 2:
                message.flow.tally.abandoned += 1
                continue
            ledger.on_resent(message.flow, message.sequence)
            packet_id = fresh.admit_one(message, 1)
            link.write(encode_message(message, packet_id, False, *self._alias(message.topic)))

    def forget(self) -> None:
        """Forget what is in flight: the device has lost its state."""
        if self._sender is not None:
            for _, message, _ in self._sender.resend():
                message.flow.tally.abandoned += 1
        self._sender = None
        self._backlog = None

    def on_ack(self, packet: Ack, now_us: int) -> None:
        """Act on PUBACK, PUBREC or PUBCOMP. Raises WrongAck."""
        sender, link = self._sender, self._link
        assert link is not None
        if sender is None:
            return
        ids = packet.packet_ids
        if packet.reason >= 0x80:
            self._on_refusal(sender, packet)
        elif packet.packet_type == PUBACK:
            for message in sender.on_puback(ids):
                self._acked(message, now_us)
        elif packet.packet_type == PUBREC:
            done, unknown = sender.on_pubrec(ids)
            for message in done:
                self._acked(message, now_us)
            for packet_id in ids:
                reason = 0
                if packet_id in unknown and self._options.version == V5:
                    reason = reasons.PACKET_IDENTIFIER_NOT_FOUND
                link.write(encode_ack(PUBREL, packet_id, reason))
        else:
            sender.on_pubcomp(ids)
        self.pump()

    def _acked(self, message: Message, now_us: int) -> None:
        waited_us = now_us - message.sent_us
        self._context.ledger.on_acked(message.flow, message.sequence, waited_us, message.late_us)

    def _on_refusal(self, sender: Sender[Message], packet: Ack) -> None:
        packet_id = packet.packet_ids[0]
        message: Message | None = None
        if packet.packet_type == PUBACK:
            message = next(iter(sender.on_puback([packet_id])), None)
        elif packet.packet_type == PUBREC:
            message = sender.on_pubrec_error(packet_id)
        else:
            sender.on_pubcomp([packet_id])
        if message is not None:
            message.flow.tally.refused += 1
            self._context.ledger.note(
                "refused", f"{message.flow.key}{message.sequence}: {reasons.name(packet.reason)}"
            )

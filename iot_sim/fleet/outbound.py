"""The outbound half of a client: what it publishes, up to the broker's last acknowledgement.

It outlives connections, as the Session State does. What was promised at QoS 1 or 2 is sent again
after a reconnect; when the broker lost the session, QoS 1 is published anew and QoS 2, which may
not come twice, is given up.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from iot_sim.devices.device import Publication
from iot_sim.fleet.context import FleetContext, Identity
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
UNSENT_BYTES_MAX: Final = 4_194_304  # beyond this QoS 0 is not added to a link
OVERHEAD_BYTES: Final = 1024  # more than topic, stamp and header of our packets


class Outbound:
    """The outbound half of one client at the three QoS levels."""

    __slots__ = ("_alias_max", "_aliases", "_backlog", "_context", "_link", "_packet_bytes_max",
                 "_retain_ok", "_sender", "_who", "qos_max", "wrote")  # fmt: skip

    def __init__(self, context: FleetContext, identity: Identity) -> None:
        self._context = context
        self._who = identity
        self._link: Link | None = None
        self._sender: Sender[Message] | None = None
        self._backlog: deque[tuple[Flow, Publication]] | None = None
        self._aliases: dict[str, int] | None = None
        self._alias_max = 0
        self._packet_bytes_max = 0
        self._retain_ok = True
        self.qos_max = 2
        self.wrote = False  # since the keep alive looked last

    def start(self, link: Link, told: Properties) -> None:
        """Start on a new connection; `told` is what CONNACK allows."""
        self._link = link
        self._alias_max = told.number(prop.TOPIC_ALIAS_MAXIMUM) if self._who.topic_alias else 0
        self._packet_bytes_max = told.number(prop.MAXIMUM_PACKET_SIZE)
        self._retain_ok = told.number(prop.RETAIN_AVAILABLE, 1) == 1
        self.qos_max = told.number(prop.MAXIMUM_QOS, 2)
        limit = told.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM_DEFAULT)
        if self._sender is not None:
            self._sender.limit = limit
        elif limit != RECEIVE_MAXIMUM_DEFAULT:
            self._sender = Sender(limit)

    def stop(self) -> None:
        """Stop at the end of a connection; its aliases end with it."""
        self._link = None
        self._aliases = None

    @property
    def unfinished(self) -> int:
        """Messages the broker has not taken yet."""
        found = len(self._sender) if self._sender is not None else 0
        return found + (len(self._backlog) if self._backlog else 0)

    def is_busy(self, packet_id: int) -> bool:
        sender = self._sender
        return sender is not None and (packet_id in sender.unacked or packet_id in sender.releasing)

    def publish(self, flow: Flow, publication: Publication) -> None:
        if not flow.qos:
            link = self._link
            assert link is not None
            if link.unsent < UNSENT_BYTES_MAX:
                self._send(flow, publication)
            else:
                self._context.counters["backlog_dropped"] += 1
            return
        backlog = self._backlog
        if backlog or (self._sender is not None and self._sender.room <= 0):
            if backlog is None:
                backlog = self._backlog = deque()
            backlog.append((flow, publication))
            if len(backlog) > BACKLOG_MAX:
                backlog.popleft()
                self._context.counters["backlog_dropped"] += 1
            return
        self._send(flow, publication)

    def pump(self) -> None:
        """Send what waited, as far as the broker lets us."""
        backlog = self._backlog
        while backlog and (self._sender is None or self._sender.room > 0):
            self._send(*backlog.popleft())

    def _send(self, flow: Flow, publication: Publication) -> None:
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
        message = Message(
            flow,
            sequence,
            self._context.engine.clock.now_us(),
            publication,
            self._who.version,
            publication.retain and self._retain_ok,
        )
        self.wrote = True
        if flow.qos:
            sender = self._sender
            if sender is None:
                sender = self._sender = Sender()
            packet_id = sender.admit_one(message, flow.qos)
            link.write(encode_message(message, packet_id, False, *self._alias(flow.topic)))
            return
        if link.is_deaf or not self._context.is_heard:
            self._context.ledger.on_cut(flow, sequence)
        if not link.is_deaf:
            link.write(encode_message(message, 0, False, *self._alias(flow.topic)))

    def _alias(self, topic: str) -> tuple[int, bool]:
        """Return (alias, whether the broker knows it); alias 0: none."""
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
        """Forget what is in flight: the device has lost its memory."""
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
        ledger = self._context.ledger
        if packet.reason >= 0x80:
            self._on_refusal(sender, packet)
        elif packet.packet_type == PUBACK:
            for message in sender.on_puback(ids):
                ledger.on_acked(message.flow, message.sequence, now_us - message.sent_us)
        elif packet.packet_type == PUBREC:
            done, unknown = sender.on_pubrec(ids)
            for message in done:
                ledger.on_acked(message.flow, message.sequence, now_us - message.sent_us)
            for packet_id in ids:
                reason = 0
                if packet_id in unknown and self._who.version == V5:
                    reason = reasons.PACKET_IDENTIFIER_NOT_FOUND
                link.write(encode_ack(PUBREL, packet_id, reason))
        else:
            sender.on_pubcomp(ids)
        self.pump()

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

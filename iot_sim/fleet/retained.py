"""Clear at the end of a run what its devices have retained, so that it does not outlive the run.

An empty retained message to each topic, at QoS 1, so that it is known what was cleared.
"""

from __future__ import annotations

from typing import Final

from iot_sim.fleet.context import FleetContext
from iot_sim.fleet.engine import Link
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import RECEIVE_MAXIMUM_DEFAULT, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import ID_BYTES, encode_connect, encode_disconnect, publish_head
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Ack, Connack, Connect, Disconnect
from mqtt_broker.codec.strings import encode_string
from qos import Sender, WrongAck

KEEP_ALIVE_S: Final = 60
_NO_PROPERTIES: Final = b"\0"


class RetainedCleaner:
    """A client that clears topics, and knows which it could not clear."""

    def __init__(self, context: FleetContext, client_id: str) -> None:
        self.is_over = False
        self.problem = ""  # why topics are left, if some are
        self._context = context
        self._client_id = client_id
        self._waiting = sorted(context.retained, reverse=True)
        self._sender: Sender[str] = Sender()
        self._decoder = Decoder(from_server=True, version=V5)

    @property
    def left(self) -> list[str]:
        """Return the topics that are not cleared."""
        return sorted(self._context.retained)

    def connect(self) -> None:
        try:
            self._context.engine.connect(self._context.target, self._context.address, self)
        except OSError as error:
            self._finish(f"cannot connect: {error}")

    def _finish(self, problem: str = "") -> None:
        self.is_over = True
        self.problem = self.problem or problem

    def on_open(self, link: Link) -> None:
        target = self._context.target
        packet = Connect(V5, self._client_id, True, KEEP_ALIVE_S,
                         username=target.username, password=target.password)  # fmt: skip
        link.write(encode_connect(packet))

    def on_end(self, link: Link, why: str) -> None:
        self._finish(why or "the broker closed the connection")

    def on_data(self, link: Link, data: bytes) -> None:
        try:
            for packet in self._decoder.feed(data):
                if isinstance(packet, Violation):
                    raise packet
                if not self.is_over:
                    self._on_packet(link, packet)
        except (Violation, WrongAck) as error:
            self._finish(f"the broker broke the protocol: {error}")
            link.close()

    def _on_packet(self, link: Link, packet: object) -> None:
        if isinstance(packet, Connack):
            if packet.reason:
                self._finish(f"connection refused: {reasons.name(packet.reason)}")
                link.close()
                return
            limit = packet.properties.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM_DEFAULT)
            self._sender = Sender(limit)
        elif isinstance(packet, Ack):
            self._on_ack(packet)
        elif isinstance(packet, Disconnect):
            self._finish(f"disconnected by the broker: {reasons.name(packet.reason)}")
            link.close()
            return
        self._send(link)

    def _on_ack(self, packet: Ack) -> None:
        topics = self._sender.on_puback(packet.packet_ids)
        if packet.reason >= reasons.UNSPECIFIED_ERROR:
            self.problem = f"refused: {reasons.name(packet.reason)}"
        else:
            self._context.retained.difference_update(topics)

    def _send(self, link: Link) -> None:
        while self._waiting and self._sender.room > 0:
            topic = self._waiting.pop()
            rest = ID_BYTES[self._sender.admit_one(topic, 1)] + _NO_PROPERTIES
            link.write(publish_head(encode_string(topic), 1, True, False, len(rest)) + rest)
        if not self._waiting and not len(self._sender):
            self._finish()
            link.write_last(encode_disconnect(V5))

"""A client for tests of faults: says one thing after the other and waits for the answer.

    with Talker(broker.address, "one") as one:
        one.subscribe("a/#", 2)
        one.publish("a/b", b"x", qos=2)
        assert [m.payload for m in one.take(1)] == [b"x"]

It acknowledges nothing by itself. What comes while it waits for an answer is kept in order.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import (
    PINGREQ_BYTES,
    encode_ack,
    encode_from_client,
    encode_publish,
)
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties

PATIENCE_S: Final = 120.0
HOUR_S: Final = 3600
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties


Item = Packet | Message


class Silence(Exception):
    """What was waited for did not come."""


class Talker:
    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        *,
        clean: bool = False,
        expiry: int = HOUR_S,
        receive_maximum: int = 65_535,
        will: Will | None = None,
    ) -> None:
        self._sock = socket.create_connection(address, PATIENCE_S)
        self._decoder = Decoder(from_server=True, version=V5)
        self._kept: deque[Item] = deque()
        self._last_id = 0
        found = Properties()
        if expiry:
            found[prop.SESSION_EXPIRY_INTERVAL] = expiry
        if receive_maximum < 65_535:
            found[prop.RECEIVE_MAXIMUM] = receive_maximum
        try:
            self.send(encode_from_client(V5, Connect(V5, client_id, clean, 0, found, will)))
            answer = self._expect(Connack)
        except BaseException:
            self._sock.close()
            raise
        assert answer.reason == 0, answer
        self.present = answer.session_present

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    def drop(self) -> None:
        """Gone without a word."""
        self._sock.close()

    def disconnect(self) -> None:
        """Gone in order; back when the broker knows."""
        self.send(encode_from_client(V5, Disconnect(0)))
        self._sock.shutdown(socket.SHUT_WR)
        while self._sock.recv(65_536):
            pass
        self._sock.close()

    # Bytes.

    def send(self, *data: bytes) -> None:
        self._sock.sendall(b"".join(data))

    def _next(self, deadline: float) -> Item:
        """The next packet from the wire; what came with it is kept."""
        while True:
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._sock.recv(262_144)
            except TimeoutError:
                raise Silence from None
            if not data:
                raise EOFError("the broker closed the connection")
            for packet in self._decoder.feed(data):
                assert not isinstance(packet, Violation), packet
                self._kept.extend(_singles(packet) if isinstance(packet, Publish) else [packet])
            if self._kept:
                return self._kept.popleft()

    def _expect(self, kind: type[Kind], seconds: float = PATIENCE_S) -> Kind:
        """The next packet of this kind; what comes before it is kept."""
        deadline = time.monotonic() + seconds
        before: list[Item] = []
        try:
            while True:
                packet = self._kept.popleft() if self._kept else self._next(deadline)
                if isinstance(packet, kind):
                    return packet
                before.append(packet)
        finally:
            self._kept.extendleft(reversed(before))

    def ack(self, packet_type: int, seconds: float = PATIENCE_S) -> Ack:
        """The next acknowledgement, which has to be of this type."""
        packet = self._expect(Ack, seconds)
        assert packet.packet_type == packet_type, packet
        return packet

    # Publishing.

    def start_publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """Send it and do not wait; its packet id."""
        if qos and not packet_id:
            self._last_id = packet_id = self._last_id + 1
        self.send(
            encode_publish(
                V5,
                topic,
                payload,
                qos=qos,
                retain=retain,
                dup=dup,
                packet_id=packet_id,
                properties=properties,
            )
        )
        return packet_id

    def finish_publish(self, packet_id: int, qos: int, seconds: float = PATIENCE_S) -> int:
        """Through all the acknowledgements; the first one's reason code."""
        answer = self.ack(PUBACK if qos == 1 else PUBREC, seconds)
        assert answer.packet_ids == [packet_id], answer
        if qos == 2:
            self.send(encode_ack(PUBREL, packet_id))
            assert self.ack(PUBCOMP, seconds).packet_ids == [packet_id]
        return answer.reason

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        packet_id = self.start_publish(
            topic, payload, qos=qos, retain=retain, properties=properties
        )
        if qos:
            assert self.finish_publish(packet_id, qos) < 0x80

    # Subscribing.

    def start_subscribe(
        self, text: str, qos: int = 2, *, identifier: int = 0, **options: bool | int
    ) -> None:
        request = SubscriptionRequest(text, qos)
        for name, value in options.items():
            setattr(request, name, value)
        found = NO_PROPERTIES
        if identifier:
            found = Properties({prop.SUBSCRIPTION_IDENTIFIER: [identifier]})
        self._last_id += 1
        self.send(encode_from_client(V5, Subscribe(self._last_id, [request], found)))

    def subscribe(
        self, text: str, qos: int = 2, *, identifier: int = 0, **options: bool | int
    ) -> None:
        self.start_subscribe(text, qos, identifier=identifier, **options)
        assert self._expect(Suback).reasons == [qos]

    def unsubscribe(self, text: str) -> None:
        self._last_id += 1
        self.send(encode_from_client(V5, Unsubscribe(self._last_id, [text])))
        assert self._expect(Unsuback).reasons == [0]

    # Messages.

    def take(self, count: int, seconds: float = PATIENCE_S) -> list[Message]:
        """The next so many messages, not acknowledged."""
        return [self._expect(Message, seconds) for _ in range(count)]

    def accept(self, messages: list[Message]) -> list[Message]:
        """Acknowledge them to the end; the same messages."""
        exact = [message.packet_id for message in messages if message.qos == 2]
        self.send(*(encode_ack(PUBACK, m.packet_id) for m in messages if m.qos == 1))
        self.send(*(encode_ack(PUBREC, packet_id) for packet_id in exact))
        released: list[int] = []
        while len(released) < len(exact):
            released += self.ack(PUBREL).packet_ids
        assert released == exact
        self.send(*(encode_ack(PUBCOMP, packet_id) for packet_id in exact))
        return messages

    def payloads(self, count: int) -> list[bytes]:
        return [message.payload for message in self.accept(self.take(count))]

    def answers(self) -> list[Item]:
        """What came and was not asked for yet."""
        return list(self._kept)

    def has_nothing_more(self) -> None:
        """Nothing stands in front of the answer to a ping."""
        self.send(PINGREQ_BYTES)
        self._expect(Pingresp)
        assert not self._kept, self._kept


def _singles(run: Publish) -> list[Message]:
    ids = run.packet_ids() if run.qos else [0] * run.count
    return [
        Message(run.topic, payload, run.qos, run.retain, run.dup, packet_id, run.properties)
        for packet_id, payload in zip(ids, run.payloads(), strict=True)
    ]

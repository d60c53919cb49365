"""A broker that lies or breaks the protocol: the client ends the connection and says why."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from typing import Final

import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from mqtt_broker.client.blocking import Address, Client, Deadline
from mqtt_broker.client.protocol import (
    ClientProtocol,
    Closed,
    Connected,
    Event,
    Message,
    RequestAcknowledged,
)
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK, V5, V311
from mqtt_broker.codec.encode import (
    PINGRESP_BYTES,
    encode_ack,
    encode_auth,
    encode_connack,
    encode_disconnect,
    encode_publish,
    encode_suback,
    encode_unsuback,
)
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from tests.server.running import PATIENCE_S

FILTERS: Final = [SubscriptionRequest("a", 1), SubscriptionRequest("b/#", 2)]


def client(version: int) -> ClientProtocol:
    asked = {prop.TOPIC_ALIAS_MAXIMUM: 2, prop.RECEIVE_MAXIMUM: 5} if version == V5 else {}
    return ClientProtocol(Connect(version, "me", keep_alive=10, properties=Properties(asked)))


def answer(kind: int, version: int, codes: list[int]) -> bytes:
    properties = b"\0" if version == V5 else b""
    body = (1).to_bytes(2, "big") + properties + bytes(codes)
    return bytes([kind << 4, len(body)]) + body


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("codes", [[], [1], [0, 1, 2], [1, 3], [0, 0x7F], [0] * 100])
def test_a_suback_has_a_reason_code_for_each_filter(version: int, codes: list[int]) -> None:
    """One without is no subscription: nobody may take it for one."""
    me = client(version)
    me.receive(encode_connack(version, False, 0))
    me.subscribe(FILTERS)
    [event] = me.receive(answer(SUBACK, version, codes))
    assert isinstance(event, Closed) and "broke the protocol" in event.text


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("codes", [[0], [0, 0, 0], [0, 2]])
def test_an_unsuback_has_a_reason_code_for_each_filter(version: int, codes: list[int]) -> None:
    me = client(version)
    me.receive(encode_connack(version, False, 0))
    me.unsubscribe(["a", "b/#"])
    [event] = me.receive(answer(UNSUBACK, version, codes))
    assert isinstance(event, Closed) and "broke the protocol" in event.text


@pytest.mark.parametrize("version", [V311, V5])
def test_right_answers_are_taken(version: int) -> None:
    me = client(version)
    me.receive(encode_connack(version, False, 0))
    me.subscribe(FILTERS)
    [event] = me.receive(answer(SUBACK, version, [2, 0x80]))
    assert isinstance(event, RequestAcknowledged) and event.reasons == [2, 0x80]


# Anything at all.


def broker_packets(version: int) -> list[bytes]:
    alias = Properties({prop.TOPIC_ALIAS: 1}) if version == V5 else NO_PROPERTIES
    told = Properties({prop.RECEIVE_MAXIMUM: 2, prop.TOPIC_ALIAS_MAXIMUM: 1})
    packets = [
        encode_connack(version, True, 0, told if version == V5 else NO_PROPERTIES),
        encode_publish(version, "a", b"0"),
        encode_publish(version, "a", b"1", qos=1, packet_id=7, properties=alias),
        encode_publish(version, "b/c", b"2", qos=2, packet_id=8, retain=True),
        encode_ack(PUBREL, 8),
        *(encode_ack(kind, number) for kind in (PUBACK, PUBREC, PUBCOMP) for number in (1, 2, 3)),
        encode_suback(version, 1, [1, 2]),
        encode_unsuback(version, 2, [0]),
        PINGRESP_BYTES,
    ]
    if version == V5:
        packets.append(encode_publish(version, "", b"3", properties=alias))
        packets.append(encode_auth(0x18, NO_PROPERTIES))
        packets.append(encode_disconnect(version, 0x8B))
    return packets


def changed(wire: bytes, rng: random.Random) -> bytes:
    data = bytearray(wire)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
                data += b"\0"
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
    return bytes(data)


def use(me: ClientProtocol, events: list[Event], rng: random.Random) -> None:
    """Do what a caller does with what it is told."""
    for event in events:
        if isinstance(event, Message) and rng.random() < 0.7:
            me.acknowledge(event)
    if me.connected and not me.closed:
        for qos in (0, 1, 2):
            if rng.random() < 0.3:
                me.publish("t", b"x", qos=qos)
        if rng.random() < 0.3:
            me.subscribe(FILTERS)
        if rng.random() < 0.2:
            me.unsubscribe(["a"])


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_broker_sends_is_an_event_or_the_end(seed: int, version: int) -> None:
    """Whole or in pieces; after the end it says nothing more, and no packet makes an exception."""
    rng = random.Random(seed)
    packets = broker_packets(version)
    for _ in range(100):
        me = client(version)
        script = [packets[0]] * rng.choice((0, 1, 1, 1)) + rng.choices(packets, k=12)
        ended = False
        for packet in script:
            wire = changed(packet, rng)
            cut = rng.randrange(len(wire) + 1)
            for piece in (wire[:cut], wire[cut:]):
                events = me.receive(piece)
                assert not (ended and events)
                assert not any(isinstance(event, Closed) for event in events[:-1])
                ended = ended or any(isinstance(event, Closed) for event in events)
                assert me.closed or not ended
                use(me, events, rng)
        assert len(me.take_output(0.0)) < 10_000


# The same below MQTT.


def frame(first: int, data: bytes) -> bytes:
    """A frame of a server: `first` holds FIN, the reserved bits and the opcode."""
    return bytes([first, len(data)]) + data


@contextlib.contextmanager
def websocket_broker(sent: bytes) -> Iterator[Client]:
    """A client of somebody who sends this for its CONNECT, and keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                protocol = ServerProtocol(subprotocols=[Subprotocol("mqtt")])
                requests: list[object] = []
                while not requests:
                    protocol.receive_data(link.recv(65_536))
                    requests = list(protocol.events_received())
                [request] = requests
                assert isinstance(request, Request)
                protocol.send_response(protocol.accept(request))
                link.sendall(b"".join(protocol.data_to_send()))
                link.recv(65_536)  # CONNECT
                link.sendall(sent)
                while link.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        address = Address("127.0.0.1", listener.getsockname()[1], websocket_path="/mqtt")
        with Client(address, Connect(V5, "me")) as client:
            yield client
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


CONNACK: Final = frame(0x82, encode_connack(V5, False, 0))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(0x81, PINGRESP_BYTES), "text"),
        (frame(0x01, b"x") + frame(0x80, PINGRESP_BYTES), "text"),
        (frame(0x80, PINGRESP_BYTES), "continuation"),
        (frame(0xC2, PINGRESP_BYTES), "reserved bits"),
        (frame(0x09, b"x"), "fragmented control frame"),
        (frame(0x8F, b""), "opcode"),
        (b"\x82\x82" + bytes(4) + PINGRESP_BYTES, "mask"),
        (b"\x82\x7f" + (1 << 62).to_bytes(8, "big"), "limit"),
        (b"\x82\x7f" + (300_000_000).to_bytes(8, "big"), "limit"),
    ],
)
def test_a_frame_that_is_none_ends_the_connection(sent: bytes, why: str) -> None:
    """At once: neither kept while it grows, nor waited for until a ping goes unanswered."""
    with websocket_broker(CONNACK + sent) as client:
        deadline = Deadline(PATIENCE_S)
        events: list[Event] = []
        while not any(isinstance(event, Closed) for event in events):
            deadline.check()
            events += client.step(0.1)[0]
        first, *_, last = events
        assert isinstance(first, Connected)  # what came before counts
        assert isinstance(last, Closed) and last.text.startswith("the broker broke the WebSocket")
        assert why in last.text
        assert client.step(0.0)[0] == []

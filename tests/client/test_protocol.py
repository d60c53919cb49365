"""The client's state machine, fed with what a broker would send. No socket, no clock."""

from __future__ import annotations

import pytest

from mqtt_broker.client.errors import Unsendable
from mqtt_broker.client.protocol import (
    ClientProtocol,
    Closed,
    Connected,
    Event,
    Message,
    Published,
    RequestAcknowledged,
)
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
)
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import (
    PINGREQ_BYTES,
    PINGRESP_BYTES,
    encode_ack,
    encode_auth,
    encode_connack,
    encode_disconnect,
    encode_publish,
    encode_suback,
    encode_unsuback,
)
from mqtt_broker.codec.packets import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from mqtt_broker.codec.properties import Properties


class Peer:
    """The broker's end: reads what the client writes, and checks it with the codec."""

    def __init__(self, version: int = V5, **asked: int) -> None:
        keys = {prop.NAMES[name.replace("_", "-")]: value for name, value in asked.items()}
        connect = Connect(version, "me", keep_alive=10, properties=Properties(keys))
        self.client = ClientProtocol(connect)
        self._decoder = Decoder()
        self.version = version

    def sent(self, now: float = 0.0) -> list[Packet]:
        packets: list[Packet] = []
        for packet in self._decoder.feed(self.client.take_output(now)):
            assert not isinstance(packet, Exception), packet
            packets.append(packet)
        return packets

    def connack(self, **told: int) -> list[Event]:
        keys = {prop.NAMES[name.replace("_", "-")]: value for name, value in told.items()}
        self.sent()
        return self.client.receive(encode_connack(self.version, False, 0, Properties(keys)))


def connected(version: int = V5, **told: int) -> Peer:
    peer = Peer(version)
    assert isinstance(peer.connack(**told)[0], Connected)
    return peer


def ids(packets: list[Packet]) -> list[int]:
    return [one for packet in packets if isinstance(packet, Publish) for one in packet.packet_ids()]


def payloads(packets: list[Packet]) -> list[bytes]:
    return [one for packet in packets if isinstance(packet, Publish) for one in packet.payloads()]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_it_connects_in_every_version(version: int) -> None:
    peer = Peer(version)
    [connect] = peer.sent()
    assert isinstance(connect, Connect)
    assert connect.version == version
    [event] = peer.client.receive(encode_connack(version, version > V31, 0))
    assert isinstance(event, Connected)
    assert event.session_present is (version > V31)
    assert peer.client.connected


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        (V5, reasons.NOT_AUTHORIZED, "Not authorized (0x87)"),
        (V311, 5, "not authorized (5)"),
        (V31, 1, "unacceptable protocol version (1)"),
    ],
)
def test_a_refusal_is_named(version: int, code: int, words: str) -> None:
    peer = Peer(version)
    [event] = peer.client.receive(encode_connack(version, False, code))
    text = f"the broker refused the connection: {words}"
    assert event == Closed(text, code, by_broker=True)
    assert peer.client.closed


def test_the_reason_string_is_passed_on() -> None:
    told = Properties({prop.REASON_STRING: "come back later"})
    [event] = Peer().client.receive(encode_connack(V5, False, reasons.SERVER_BUSY, told))
    assert isinstance(event, Closed)
    assert event.text == "the broker refused the connection: Server busy (0x89): come back later"


def test_qos_0_leaves_at_once_and_is_never_unfinished() -> None:
    peer = connected()
    peer.client.publish("a", b"1")
    assert peer.client.unfinished == 0
    [packet] = peer.sent()
    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.qos) == ("a", b"1", 0)


def test_qos_1_ends_with_puback() -> None:
    peer = connected()
    peer.client.publish("a", b"1", qos=1)
    [packet_id] = ids(peer.sent())
    assert peer.client.unfinished == 1
    assert peer.client.receive(encode_ack(PUBACK, packet_id)) == [Published("a")]
    assert peer.client.unfinished == 0


def test_qos_2_ends_with_pubcomp() -> None:
    peer = connected()
    peer.client.publish("a", b"1", qos=2)
    [packet_id] = ids(peer.sent())
    assert peer.client.receive(encode_ack(PUBREC, packet_id)) == [Published("a")]
    assert peer.sent() == [Ack(PUBREL, [packet_id])]
    assert peer.client.unfinished == 1
    assert peer.client.receive(encode_ack(PUBCOMP, packet_id)) == []
    assert peer.client.unfinished == 0


@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
def test_a_refused_message_is_over(qos: int, answer: int) -> None:
    peer = connected()
    peer.client.publish("a", b"1", qos=qos)
    [packet_id] = ids(peer.sent())
    refusal = encode_ack(answer, packet_id, reasons.QUOTA_EXCEEDED)
    assert peer.client.receive(refusal) == [Published("a", reasons.QUOTA_EXCEEDED)]
    assert peer.client.unfinished == 0
    assert peer.sent() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum_of_the_broker_is_honoured(qos: int) -> None:
    peer = connected(receive_maximum=2)
    for number in range(5):
        peer.client.publish("a", b"%d" % number, qos=qos)
    first = ids(peer.sent())
    assert len(first) == 2
    assert peer.client.unfinished == 5
    if qos == 1:
        peer.client.receive(encode_ack(PUBACK, first[0]))
    else:
        peer.client.receive(encode_ack(PUBREC, first[0]))
        assert ids(peer.sent()) == []  # the quota is free again with PUBCOMP
        peer.client.receive(encode_ack(PUBCOMP, first[0]))
    assert len(ids(peer.sent())) == 1


def test_receive_maximum_of_the_client_is_enforced() -> None:
    peer = Peer(receive_maximum=1)
    peer.connack()
    burst = b"".join(encode_publish(V5, "a", b"1", qos=1, packet_id=n) for n in (1, 2))
    events = peer.client.receive(burst)
    assert isinstance(events[-1], Closed)
    assert peer.sent() == [Disconnect(reasons.RECEIVE_MAXIMUM_EXCEEDED)]


def test_a_message_is_acknowledged_when_it_is_accepted() -> None:
    peer = connected()
    wire = encode_publish(V5, "a", b"1", qos=1, packet_id=7) + encode_publish(
        V5, "b", b"2", qos=2, packet_id=7
    )
    one, two = peer.client.receive(wire)
    assert isinstance(one, Message)
    assert isinstance(two, Message)
    assert peer.sent() == []
    peer.client.acknowledge(one)
    assert peer.sent() == [Ack(PUBACK, [7])]
    peer.client.acknowledge(two)
    assert peer.sent() == [Ack(PUBREC, [7])]
    peer.client.receive(encode_ack(PUBREL, 7))
    assert peer.sent() == [Ack(PUBCOMP, [7])]


def test_a_repeated_qos_2_message_arrives_once() -> None:
    peer = connected()
    wire = encode_publish(V5, "a", b"1", qos=2, packet_id=7)
    [message] = peer.client.receive(wire)
    assert isinstance(message, Message)
    peer.client.acknowledge(message)
    peer.sent()
    assert peer.client.receive(encode_publish(V5, "a", b"1", qos=2, dup=True, packet_id=7)) == []
    assert peer.sent() == [Ack(PUBREC, [7])]


@pytest.mark.parametrize(
    ("version", "code"), [(V5, reasons.PACKET_IDENTIFIER_NOT_FOUND), (V311, 0)]
)
def test_an_unknown_pubrel_gets_its_pubcomp(version: int, code: int) -> None:
    peer = connected(version)
    assert peer.client.receive(encode_ack(PUBREL, 9)) == []
    assert peer.sent() == [Ack(PUBCOMP, [9], code)]


def test_an_unknown_pubrec_gets_its_pubrel() -> None:
    peer = connected()
    assert peer.client.receive(encode_ack(PUBREC, 9)) == []
    assert peer.sent() == [Ack(PUBREL, [9], reasons.PACKET_IDENTIFIER_NOT_FOUND)]


def test_the_acknowledgement_of_the_other_qos_is_a_protocol_error() -> None:
    peer = connected()
    peer.client.publish("a", b"1", qos=2)
    [packet_id] = ids(peer.sent())
    [event] = peer.client.receive(encode_ack(PUBACK, packet_id))
    assert isinstance(event, Closed)
    assert peer.sent() == [Disconnect(reasons.PROTOCOL_ERROR)]


@pytest.mark.parametrize("version", [V311, V5])
def test_subscribe_and_unsubscribe(version: int) -> None:
    peer = connected(version)
    peer.client.subscribe([SubscriptionRequest("a/#", 1), SubscriptionRequest("b", 2)])
    peer.client.unsubscribe(["c"])
    subscribe, unsubscribe = peer.sent()
    assert isinstance(subscribe, Subscribe)
    assert isinstance(unsubscribe, Unsubscribe)
    assert subscribe.packet_id != unsubscribe.packet_id
    answer = encode_suback(version, subscribe.packet_id, [1, 0x80])
    [event] = peer.client.receive(answer)
    assert event == RequestAcknowledged(subscribe, [1, 0x80])
    [event] = peer.client.receive(encode_unsuback(version, unsubscribe.packet_id, [0]))
    assert event == RequestAcknowledged(unsubscribe, [0] if version == V5 else [])


def test_requests_and_messages_never_share_a_packet_id() -> None:
    peer = connected()
    peer.client.publish("a", b"1", qos=1)
    peer.client.subscribe([SubscriptionRequest("a")])
    peer.client.publish("a", b"2", qos=1)
    publish, subscribe = peer.sent()
    assert isinstance(publish, Publish)
    assert isinstance(subscribe, Subscribe)
    assert publish.packet_id != subscribe.packet_id
    peer.client.receive(encode_suback(V5, subscribe.packet_id, [0]))
    [second] = ids(peer.sent())
    assert second != publish.packet_id


def test_an_answer_to_nothing_is_a_protocol_error() -> None:
    peer = connected()
    [event] = peer.client.receive(encode_suback(V5, 5, [0]))
    assert isinstance(event, Closed)
    assert peer.sent() == [Disconnect(reasons.PROTOCOL_ERROR)]


def test_keep_alive_pings_and_gives_up_without_an_answer() -> None:
    peer = connected()
    client = peer.client
    client.publish("a", b"")
    client.take_output(100.0)
    assert client.next_tick == 110.0
    assert client.tick(109.9) == []
    assert client.take_output(109.9) == b""
    assert client.tick(110.0) == []
    assert client.take_output(110.0) == PINGREQ_BYTES
    client.receive(PINGRESP_BYTES)
    assert client.next_tick == 120.0
    client.tick(120.0)
    client.take_output(120.0)
    [event] = client.tick(130.0)
    assert event == Closed("the broker did not answer PINGREQ")


def test_server_keep_alive_replaces_ours() -> None:
    peer = connected(server_keep_alive=3)
    peer.client.publish("a", b"")
    peer.client.take_output(50.0)
    assert peer.client.next_tick == 53.0


def test_keep_alive_0_never_pings() -> None:
    client = ClientProtocol(Connect(V5, "me", keep_alive=0))
    client.receive(encode_connack(V5, False, 0))
    assert client.next_tick is None
    assert client.tick(1e9) == []


def test_what_the_broker_does_not_take_is_not_sent() -> None:
    peer = connected(maximum_packet_size=20, maximum_qos=1, retain_available=0)
    client = peer.client
    client.publish("abc", b"x" * 12)  # 2 + 2 + 3 + 1 + 12 bytes
    with pytest.raises(Unsendable, match="21 bytes"):
        client.publish("abc", b"x" * 13)
    with pytest.raises(Unsendable, match="QoS 2"):
        client.publish("a", b"", qos=2)
    with pytest.raises(Unsendable, match="retained"):
        client.publish("a", b"", retain=True)
    assert len(peer.sent()) == 1


def test_a_packet_larger_than_we_allow_closes() -> None:
    peer = Peer(maximum_packet_size=30)
    peer.connack()
    [event] = peer.client.receive(encode_publish(V5, "a", b"x" * 40))
    assert isinstance(event, Closed)
    assert peer.sent() == [Disconnect(reasons.PACKET_TOO_LARGE)]


@pytest.mark.parametrize("is_enforced", [True, False])
def test_more_than_receive_maximum(is_enforced: bool) -> None:
    connect = Connect(V5, "me", properties=Properties({prop.RECEIVE_MAXIMUM: 1}))
    client = ClientProtocol(connect, enforces_receive_maximum=is_enforced)
    client.receive(encode_connack(V5, False, 0))
    wire = b"".join(encode_publish(V5, "a", b"", qos=1, packet_id=number) for number in (1, 2))
    last = client.receive(wire)[-1]
    assert isinstance(last, Closed if is_enforced else Message)
    assert client.closed is is_enforced


def test_topic_aliases_of_the_broker() -> None:
    peer = Peer(topic_alias_maximum=2)
    peer.connack()
    alias = Properties({prop.TOPIC_ALIAS: 2})
    wire = encode_publish(V5, "a", b"1", properties=alias)
    wire += encode_publish(V5, "", b"2", properties=alias)
    events = peer.client.receive(wire)
    assert [(e.topic, e.payload) for e in events if isinstance(e, Message)] == [
        ("a", b"1"),
        ("a", b"2"),
    ]
    beyond = encode_publish(V5, "a", b"", properties=Properties({prop.TOPIC_ALIAS: 3}))
    assert isinstance(peer.client.receive(beyond)[0], Closed)


def test_what_came_before_a_violation_still_counts() -> None:
    peer = connected()
    message, closed = peer.client.receive(encode_publish(V5, "a", b"1") + b"\xf1\x00")
    assert isinstance(message, Message)
    assert isinstance(closed, Closed)
    assert peer.client.receive(encode_publish(V5, "a", b"2")) == []


def test_a_disconnect_of_the_broker_is_named() -> None:
    peer = connected()
    [event] = peer.client.receive(encode_disconnect(V5, reasons.SESSION_TAKEN_OVER))
    assert event == Closed(
        "the broker disconnected: Session taken over (0x8E)", 0x8E, by_broker=True
    )
    assert peer.sent() == []


@pytest.mark.parametrize(
    "wire",
    [encode_publish(V5, "a", b""), encode_connack(V5, False, 0) * 2, encode_auth(0, Properties())],
)
def test_packets_out_of_turn_close(wire: bytes) -> None:
    assert isinstance(Peer().client.receive(wire)[-1], Closed)


def test_the_assigned_client_id_is_taken() -> None:
    told = Properties({prop.ASSIGNED_CLIENT_IDENTIFIER: "auto-1"})
    peer = Peer()
    [event] = peer.client.receive(encode_connack(V5, False, 0, told))
    assert isinstance(event, Connected)
    assert event.client_id == peer.client.client_id == "auto-1"


def test_a_burst_arrives_the_same_in_any_pieces() -> None:
    wire = encode_connack(V5, False, 0) + b"".join(
        encode_publish(V5, f"a/{n % 3}", b"%d" % n, qos=n % 3, packet_id=n) for n in range(1, 40)
    )
    whole = Peer().client.receive(wire)
    piecemeal = Peer().client
    assert [e for at in range(len(wire)) for e in piecemeal.receive(wire[at : at + 1])] == whole
    assert len(whole) == 40


# What answers is no MQTT broker.


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n", "answers in HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "a TLS port"),
        (b"SSH-2.0-x\r\n", "answers in SSH"),
    ],
)
def test_another_protocol_is_named(said: bytes, words: str) -> None:
    [event] = Peer().client.receive(said)
    assert isinstance(event, Closed) and words in event.text


# A session over more than one connection.


def again(before: Peer, present: bool) -> Peer:
    """The same session on a new connection."""
    peer = Peer()
    peer.client = ClientProtocol(Connect(V5, "me", keep_alive=10), session=before.client.session)
    peer.sent()
    [event] = peer.client.receive(encode_connack(V5, present, 0))
    assert isinstance(event, Connected)
    return peer


def test_a_resumed_session_sends_again_what_has_no_acknowledgement() -> None:
    first = connected()
    for payload in (b"1", b"2", b"3"):
        first.client.publish("a", payload, qos=2)
    one, two, three = ids(first.sent())
    first.client.receive(encode_ack(PUBREC, one))
    second = again(first, present=True)
    sent = second.sent()
    assert payloads(sent) == [b"2", b"3"]
    assert all(packet.dup for packet in sent if isinstance(packet, Publish))
    assert ids(sent) == [two, three]
    [release] = [packet for packet in sent if isinstance(packet, Ack)]
    assert (release.packet_type, release.packet_ids) == (PUBREL, [one])


def test_a_new_session_sends_as_new_what_has_no_acknowledgement() -> None:
    first = connected(receive_maximum=2)
    for payload in (b"1", b"2", b"3"):
        first.client.publish("a", payload, qos=1)
    first.sent()
    second = again(first, present=False)
    sent = second.sent()
    assert payloads(sent) == [b"1", b"2", b"3"]
    assert not any(packet.dup for packet in sent if isinstance(packet, Publish))


@pytest.mark.parametrize("present", [True, False])
def test_a_repeated_qos_2_message_is_the_same_only_in_the_same_session(present: bool) -> None:
    first = connected()
    [message] = first.client.receive(encode_publish(V5, "a", b"x", qos=2, packet_id=9))
    assert isinstance(message, Message)
    second = again(first, present)
    events = second.client.receive(encode_publish(V5, "a", b"x", qos=2, packet_id=9, dup=present))
    assert len(events) == (0 if present else 1)

"""Each packet, in each version and direction: what is encoded is decoded as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import constants as c
from mqtt_broker.codec import encode
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, without
from mqtt_broker.codec.strings import decode_varint, encode_varint
from tests.codec.examples import (
    CHECK,
    VERSIONS,
    acks,
    auths,
    connacks,
    connects,
    disconnects,
    encode_ack,
    packet_ids,
    properties_of,
    publish_fields,
    subacks,
    subscribes,
    unsubscribes,
)


def decode(data: bytes, version: int, *, from_server: bool = False) -> Packet:
    (packet,) = Decoder(from_server=from_server, version=version).feed(data)
    assert not isinstance(packet, Exception), packet
    return packet


@given(connects())
@CHECK
def test_connect(packet: Connect) -> None:
    decoder = Decoder()
    assert decoder.feed(encode.encode_connect(packet)) == [packet]
    assert decoder.version == packet.version


@given(st.sampled_from(VERSIONS), st.booleans(), st.data())
@CHECK
def test_publish(version: int, server: bool, data: st.DataObject) -> None:
    fields = data.draw(publish_fields(version, server=server))
    wire = encode.encode_publish(version, **fields)
    packet = decode(wire, version, from_server=server)
    assert isinstance(packet, Publish)
    for name, value in fields.items():
        assert getattr(packet, name) == value, name
    assert (packet.count, packet.size, packet.raw) == (1, len(wire), wire)
    assert list(packet.properties) == list(fields["properties"])  # their order is kept


@given(st.sampled_from(VERSIONS), st.booleans(), st.data())
@CHECK
def test_ack(version: int, server: bool, data: st.DataObject) -> None:
    ack = data.draw(acks(version))
    assert decode(encode_ack(ack), version, from_server=server) == ack


@given(packet_ids, st.sampled_from([c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP]))
@CHECK
@pytest.mark.rule("MQTT-3.4.2-1", "MQTT-3.6.1-1")
def test_ack_is_short(packet_id: int, kind: int) -> None:
    wire = encode.encode_ack(kind, packet_id)
    assert len(wire) == 4
    assert wire[0] == kind << 4 | (2 if kind == c.PUBREL else 0)


@given(st.sampled_from(VERSIONS), st.data())
@CHECK
def test_from_client(version: int, data: st.DataObject) -> None:
    packet = data.draw(
        st.one_of(
            subscribes(version), unsubscribes(version), disconnects(version), st.just(Pingreq())
        )
    )
    assert decode(encode.encode_from_client(version, packet), version) == packet


@given(auths(), st.booleans())
@CHECK
def test_auth(packet: Packet, server: bool) -> None:
    wire = encode.encode_from_client(c.V5, packet)
    assert decode(wire, c.V5, from_server=server) == packet


@given(st.sampled_from(VERSIONS), st.data())
@CHECK
def test_connack(version: int, data: st.DataObject) -> None:
    packet = data.draw(connacks(version))
    wire = encode.encode_connack(version, packet.session_present, packet.reason, packet.properties)
    assert decode(wire, version, from_server=True) == packet


@given(st.sampled_from(VERSIONS), st.data())
@CHECK
def test_suback_and_unsuback(version: int, data: st.DataObject) -> None:
    packet = data.draw(subacks(version))
    make = encode.encode_suback if isinstance(packet, Suback) else encode.encode_unsuback
    wire = make(version, packet.packet_id, packet.reasons, packet.properties)
    assert decode(wire, version, from_server=True) == packet


@given(st.sampled_from([0, 0x81, 0x8E]), properties_of(c.DISCONNECT))
@CHECK
def test_disconnect_from_a_server(reason: int, properties: Properties) -> None:
    wire = encode.encode_disconnect(c.V5, reason, properties)
    assert decode(wire, c.V5, from_server=True) == Disconnect(reason, properties)


def test_ping() -> None:
    assert decode(encode.PINGREQ_BYTES, c.V5) == Pingreq()
    assert decode(encode.PINGRESP_BYTES, c.V5, from_server=True) == Pingresp()


@given(st.integers(0, c.REMAINING_LENGTH_MAX))
@CHECK
@pytest.mark.rule("MQTT-1.5.5-1")
def test_varint(value: int) -> None:
    wire = encode_varint(value)
    assert decode_varint(wire, 0, len(wire)) == (value, len(wire))
    assert len(wire) == 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_varint_at_its_edges(value: int) -> None:
    wire = encode_varint(value)
    assert decode_varint(b"\xff" + wire, 1, len(wire) + 1) == (value, len(wire) + 1)


@pytest.mark.rule("MQTT-3.1.3-10", "MQTT-3.3.2-18")
def test_properties_keep_their_order_on_the_wire() -> None:
    """Also user properties among others: what came is what goes on."""
    section = bytes.fromhex(
        "1a 26 0001 6b 0001 76  03 0001 74  26 0001 6b 0001 77  01 01  08 0001 72"
    )
    section = bytes([len(section) - 1]) + section[1:]
    body = b"\x00\x01t" + section + b"x"
    packet = decode(bytes([0x30, len(body)]) + body, c.V5)
    assert isinstance(packet, Publish)
    assert packet.section == section
    assert without(section, frozenset()) == section[1:]
    assert without(section, frozenset({0x26})) == bytes.fromhex("03 0001 74  01 01  08 0001 72")


def test_nothing_is_the_shared_nothing() -> None:
    """Packets without properties share one object, so nothing may be written to it."""
    packet = decode(bytes.fromhex("3005 0001 74 00 78"), c.V5)
    assert isinstance(packet, Publish)
    assert packet.properties is NO_PROPERTIES
    ack = decode(bytes.fromhex("4004 0001 00 00"), c.V5)
    assert isinstance(ack, Ack)
    assert ack.properties is NO_PROPERTIES

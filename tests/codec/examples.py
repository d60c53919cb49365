"""Hypothesis strategies for packets, and what a stream of packets says when runs are undone."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from mqtt_broker.codec import constants as c
from mqtt_broker.codec import encode, reasons
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, TABLE, USER_PROPERTY, Kind, Properties
from tests.property_examples import examples

# The same examples every time, on every machine.
CHECK: Final = examples(120)

VERSIONS: Final = (c.V31, c.V311, c.V5)
versions = st.sampled_from(VERSIONS)
packet_ids = st.integers(1, 65_535)

_NO_CHARACTERS: Final = "".join(map(chr, [*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF]))
text = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=_NO_CHARACTERS), max_size=12
)
filters = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=_NO_CHARACTERS),
    min_size=1,
    max_size=12,
)
topics = filters.map(lambda topic: topic.replace("+", "p").replace("#", "h"))
binary = st.binary(max_size=20)

_VALUES: Final[dict[Kind, st.SearchStrategy[Any]]] = {
    Kind.VARINT: st.lists(st.integers(1, 268_435_455), min_size=1, max_size=1),
    Kind.BINARY: binary,
    Kind.STRING: text,
    Kind.PAIR: st.lists(st.tuples(text, text), min_size=1, max_size=3),
}
_BYTES: Final = {Kind.BYTE: 0xFF, Kind.TWO: 0xFFFF, Kind.FOUR: 0xFFFF_FFFF}


@st.composite
def properties_of(draw: st.DrawFn, packet: int, *, server: bool = False) -> Properties:
    """Lawful properties of a packet, in any order."""
    allowed = [key for key, row in TABLE.items() if packet in row.packets]
    if packet == c.PUBLISH and not server:
        allowed.remove(0x0B)
    found = Properties()
    for key in draw(st.lists(st.sampled_from(allowed), unique=True, max_size=4)):
        row = TABLE[key]
        if row.kind in _VALUES:
            found[key] = draw(_VALUES[row.kind])
        else:
            found[key] = draw(st.integers(row.low, min(row.high, _BYTES[row.kind])))
    if packet == c.PUBLISH and found.get(0x23) == 0:
        found[0x23] = 1
    if packet in (c.PUBLISH, c.WILL) and 0x08 in found:
        found[0x08] = draw(topics)
    if packet == c.CONNECT and 0x16 in found:
        found.setdefault(0x15, draw(text))
    return found or NO_PROPERTIES


def _properties(draw: st.DrawFn, version: int, packet: int, *, server: bool = False) -> Properties:
    return draw(properties_of(packet, server=server)) if version == c.V5 else NO_PROPERTIES


@st.composite
def connects(draw: st.DrawFn, version: int | None = None) -> Connect:
    v = draw(versions) if version is None else version
    will = None
    if draw(st.booleans()):
        will = Will(
            draw(topics),
            draw(binary),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            _properties(draw, v, c.WILL),
        )
    username = draw(st.none() | text)
    password = draw(st.none() | binary)
    if username is None and v < c.V5:
        password = None
    return Connect(
        v,
        draw(text),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        _properties(draw, v, c.CONNECT),
        will,
        username,
        password,
    )


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    v5 = version == c.V5
    request = st.builds(
        SubscriptionRequest,
        filters,
        st.integers(0, 2),
        st.booleans() if v5 else st.just(False),
        st.booleans() if v5 else st.just(False),
        st.integers(0, 2) if v5 else st.just(0),
    )
    return Subscribe(
        draw(packet_ids),
        draw(st.lists(request, min_size=1, max_size=4)),
        _properties(draw, version, c.SUBSCRIBE),
    )


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> Unsubscribe:
    return Unsubscribe(
        draw(packet_ids),
        draw(st.lists(filters, min_size=1, max_size=4)),
        _properties(draw, version, c.UNSUBSCRIBE),
    )


def codes_of(packet: int) -> st.SearchStrategy[int]:
    return st.sampled_from(
        sorted(code for code in reasons.TABLE if reasons.may_carry(packet, code))
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack:
    kind = draw(st.sampled_from([c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP]))
    code = draw(codes_of(kind)) if version == c.V5 and draw(st.booleans()) else 0
    found = _properties(draw, version, kind) if code else NO_PROPERTIES
    return Ack(kind, [draw(packet_ids)], code, found)


@st.composite
def disconnects(draw: st.DrawFn, version: int) -> Disconnect:
    if version < c.V5:
        return Disconnect()
    return Disconnect(draw(codes_of(c.DISCONNECT)), draw(properties_of(c.DISCONNECT)))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    return Auth(draw(codes_of(c.AUTH)), draw(properties_of(c.AUTH)))


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    return Connack(
        draw(st.booleans()), draw(st.integers(0, 255)), _properties(draw, version, c.CONNACK)
    )


@st.composite
def subacks(draw: st.DrawFn, version: int) -> Suback | Unsuback:
    codes = draw(st.lists(st.integers(0, 255), min_size=1, max_size=5))
    if draw(st.booleans()):
        return Suback(draw(packet_ids), codes, _properties(draw, version, c.SUBACK))
    if version < c.V5:
        return Unsuback(draw(packet_ids), [])
    return Unsuback(draw(packet_ids), codes, draw(properties_of(c.UNSUBACK)))


@st.composite
def publish_fields(draw: st.DrawFn, version: int, *, server: bool = False) -> dict[str, Any]:
    qos = draw(st.integers(0, 2))
    return {
        "topic": draw(topics),
        "payload": draw(st.binary(max_size=40)),
        "qos": qos,
        "retain": draw(st.booleans()),
        "dup": qos > 0 and draw(st.booleans()),
        "packet_id": draw(packet_ids) if qos else 0,
        "properties": _properties(draw, version, c.PUBLISH, server=server),
    }


def encode_ack(ack: Ack) -> bytes:
    return b"".join(
        encode.encode_ack(ack.packet_type, packet_id, ack.reason, ack.properties)
        for packet_id in ack.packet_ids
    )


@st.composite
def wires(draw: st.DrawFn, version: int) -> bytes:
    """One packet that a client sends past CONNECT, as bytes. Few shapes, so that runs happen."""
    kind = draw(st.sampled_from(["same", "same", "ack", "publish", "other"]))
    if kind == "same":
        qos = draw(st.integers(0, 2))
        topic, payload = (
            draw(st.sampled_from(["t", "a/b"])),
            draw(st.sampled_from([b"1", b"2", b""])),
        )
        return encode.encode_publish(
            version, topic, payload, qos=qos, packet_id=draw(st.integers(1, 3)) if qos else 0
        )
    if kind == "ack":
        return encode_ack(draw(acks(version)))
    if kind == "publish":
        return encode.encode_publish(version, **draw(publish_fields(version)))
    choice: list[st.SearchStrategy[Any]] = [
        subscribes(version),
        unsubscribes(version),
        st.just(Pingreq()),
    ]
    return encode.encode_from_client(version, draw(st.one_of(choice)))


def flat(packets: list[Packet | Violation]) -> list[object]:
    """What was said, with runs undone: one entry a message, one an acknowledged id."""
    out: list[object] = []
    for packet in packets:
        if isinstance(packet, Publish):
            assert packet.count * packet.size == len(packet.raw)
            ids = packet.packet_ids() if packet.qos else [0] * packet.count
            payloads = packet.payloads()
            assert len(ids) == len(payloads) == packet.count
            assert packet.payload == payloads[0]
            assert packet.packet_id == ids[0]
            head = (packet.topic, packet.qos, packet.retain, packet.dup, packet.properties)
            out += [(*head, one, payload) for one, payload in zip(ids, payloads, strict=True)]
        elif isinstance(packet, Ack):
            assert packet.packet_ids
            out += [
                (packet.packet_type, one, packet.reason, packet.properties)
                for one in packet.packet_ids
            ]
        elif isinstance(packet, Violation):
            out.append(("violation", packet.reason, packet.silent))
        else:
            out.append(packet)
    return out


__all__ = ["CHECK", "USER_PROPERTY", "VERSIONS", "flat"]

"""Bytes that are nearly packets, and what the specification says of them.

attack   a client sends packets that were changed, out of place, or in a wrong order
judge    what a broker may and must do with one such packet
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.limits.settings import Settings
from tests.fuzz.broker import values, wire
from tests.fuzz.broker.decisions import Decisions
from tests.fuzz.broker.facts import Door
from tests.fuzz.broker.wire import Packet

if TYPE_CHECKING:
    from tests.fuzz.broker.actor import Actor
    from tests.fuzz.broker.world import World

INTERESTING: Final = (0, 1, 0x7F, 0x80, 0xFF)


@dataclass
class Verdict:
    packet: Packet | None = None  # what it is, if it is one
    must_close: bool = False
    may_close: bool = False
    reasons: frozenset[int] = field(default_factory=frozenset)
    why: str = ""
    only: int = 0  # the one reason that has to be told
    answer: bytes | None = None  # to a CONNECT that is wrong: all that is written


def judge(door: Door, raw: bytes, settings: Settings, *, is_whole: bool) -> Verdict:
    too_large = len(raw) > settings.packet_bytes_max
    reasons = wire.MALFORMED | {0x95}
    if not is_whole:
        # A broker may wait for the rest, or see already that it is wrong.
        return Verdict(may_close=True, reasons=reasons, why="a piece of a packet")
    if too_large:
        return Verdict(must_close=True, may_close=True, reasons=reasons, why="too large")
    try:
        packet = wire.read(door.version, raw, from_server=False)
    except wire.Bad as bad:
        answer = bad.answer if raw[0] == 0x10 else None
        return Verdict(
            must_close=True, may_close=True, reasons=frozenset(bad.reasons), why=str(bad),
            only=bad.only, answer=answer,
        )  # fmt: skip
    return _judge_packet(door, packet, settings)


def _judge_packet(door: Door, packet: Packet, settings: Settings) -> Verdict:
    """A packet that may be sent, if not here and now."""
    kind = packet.kind
    if kind == wire.CONNECT:
        is_second = door.connect is not None
        return Verdict(
            packet,
            must_close=is_second,
            may_close=True,
            reasons=wire.MALFORMED,
            why="CONNECT twice",
        )
    if not (door.has_connack or door.waits):
        return Verdict(must_close=False, may_close=True, reasons=wire.MALFORMED)
    if kind == wire.AUTH:
        return Verdict(must_close=True, may_close=True, reasons=wire.MALFORMED, why="AUTH unasked")
    if kind == wire.PUBLISH:
        alias = packet.number(wire.ALIAS)
        reasons = wire.MALFORMED | {0x93, 0x94, 0x90}
        if alias > settings.topic_alias_maximum:
            return Verdict(must_close=True, may_close=True, reasons=reasons, why="Topic Alias")
        if alias and not packet.topic and alias not in door.aliases_in:
            return Verdict(must_close=True, may_close=True, reasons=reasons, why="unknown alias")
        # Its window may be full, and its ids in use.
        return Verdict(packet, may_close=packet.qos == 2, reasons=reasons)
    if kind in (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP):
        # Of the other QoS, or with a reason code that is none.
        return Verdict(packet, may_close=True, reasons=wire.MALFORMED)
    if kind == wire.DISCONNECT:
        asked = 0 if door.connect is None else door.connect.number(wire.SESSION_EXPIRY)
        if packet.number(wire.SESSION_EXPIRY) and not asked:
            return Verdict(must_close=True, may_close=True, reasons=wire.MALFORMED, why="expiry")
    return Verdict(packet, reasons=frozenset({0x95}))


def attack(world: World, actor: Actor, c: Decisions) -> None:
    """On a connection of its own, or on one that is in."""
    link = actor.link
    data = b""
    if link is None or link.is_closed or c.chance(0.3):
        if link is not None:
            world.lose(link)
        actor.lost()
        link = actor.link = world.open(actor)
        expiry: wire.Properties = [(wire.SESSION_EXPIRY, 30)] if actor.version == wire.V5 else []
        connect = Packet(
            wire.CONNECT, version=actor.version, client=actor.client, clean=c.chance(0.5),
            props=expiry if c.below(2) else values.properties(c, wire.CONNECT, frozenset()),
        )  # fmt: skip
        if actor.version < wire.V5:
            connect.props = []
        elif c.chance(0.3):
            connect.will = wire.Will(
                world.subject.topic(c), values.binary(c), c.below(3), c.chance(0.3),
                values.properties(c, wire.WILL, frozenset()),
            )  # fmt: skip
        data = wire.connect(connect)
        if c.below(3):  # let it in: what follows is spoilt
            world.send_piece(link, data)
            data = b""
    packets = wire.cut(data)[0] + [packet(world, actor.version, c) for _ in range(1 + c.below(4))]
    for _ in range(c.below(4)):
        place = c.below(len(packets))
        kind = c.below(8)
        if kind == 0:
            packets.insert(place, packets[c.below(len(packets))])
        elif kind == 1:
            other = c.below(len(packets))
            packets[place], packets[other] = packets[other], packets[place]
        elif packets[place]:
            packets[place] = spoil(packets[place], c)
    if not link.is_closed:
        world.send_piece(link, b"".join(packets))
    if not link.is_closed and c.chance(0.7):
        world.lose(link)


def packet(world: World, version: int, c: Decisions) -> bytes:
    """Any packet of a client, in or out of place."""
    kind = c.weigh(
        ((wire.PUBLISH, 6), (wire.SUBSCRIBE, 3), (wire.UNSUBSCRIBE, 1), (wire.PUBACK, 3),
         (wire.DISCONNECT, 1), (wire.AUTH, 1), (wire.PINGREQ, 1))
    )  # fmt: skip
    key = values.number(c, 1, 65_535)
    props: wire.Properties = []
    if version == wire.V5:
        props = values.properties(c, kind, frozenset())
    if kind == wire.PUBLISH:
        one = Packet(
            kind, id=key, topic=world.subject.topic(c), qos=c.below(3), retain=c.chance(0.2)
        )
        world.serial += 1  # so that no two look alike
        one.payload = b"m%d" % world.serial + values.binary(c)
        one.props = props
        return wire.publish(version, one)
    if kind == wire.SUBSCRIBE:
        one = Packet(kind, id=key, props=props)
        one.asked = [
            wire.Asked(world.subject.topic_filter(c), c.below(3)) for _ in range(1 + c.below(3))
        ]
        return wire.subscribe(version, one)
    if kind == wire.UNSUBSCRIBE:
        one = Packet(kind, id=key, props=props, filters=[world.subject.topic_filter(c)])
        return wire.unsubscribe(version, one)
    if kind == wire.PUBACK:
        kind += c.below(4)
        return wire.ack(kind, key, c.pick((0, 0, 0x10, 0x80, 0x92)) if version == wire.V5 else 0)
    if kind == wire.PINGREQ:
        return b"\xc0\x00"
    if kind == wire.DISCONNECT:
        return wire.disconnect(version, c.pick((0, 4)), props)
    return wire.framed(0xF0, bytes([c.pick((0x18, 0x19))]) + wire.packed(props))


def spoil(raw: bytes, c: Decisions) -> bytes:
    """Flip, cut, insert, double, splice; then with a length that is right, or not."""
    data = bytearray(raw)
    at = c.number(len(data) - 1)
    kind = c.below(6)
    if kind == 0:
        data[at] = c.pick(INTERESTING)
    elif kind == 1:
        data[at] ^= 1 << c.below(8)
    elif kind == 2:
        del data[at : at + 1 + c.below(4)]
    elif kind == 3:
        data[at:at] = bytes(c.pick(INTERESTING) for _ in range(1 + c.below(3)))
    elif kind == 4:
        data[at:at] = data[max(0, at - 5) : at]
    else:
        data[1:1] = bytes([c.pick(INTERESTING)])
        return bytes(data)
    if len(data) < 2 or c.chance(0.2):
        return bytes(data)
    place = 1
    while place < min(len(data) - 1, 4) and data[place] & 0x80:
        place += 1
    return wire.framed(data[0], bytes(data[place + 1 :]))

"""Clients that come once, with a packet that is wrong in one field, and are told so.

A packet is a list of fields, each with its wire type, and one of them is spoilt: its value by its
type, its length, or the packet ends in it. What is due for it says `wire.read`. No stranger leaves
anything behind, so a play goes on as if it had not come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import Kind
from tests.fuzz.broker import mutation, values, wire
from tests.fuzz.broker.actor import Actor
from tests.fuzz.broker.decisions import Decisions
from tests.fuzz.broker.wire import Packet

if TYPE_CHECKING:
    from tests.fuzz.broker.links import Link
    from tests.fuzz.broker.world import World

CLIENT: Final = b"stranger"
NAMES: Final = (*wire.LEVELS, b"", b"MQT", b"mqtt")
# No text may hold these; the last three are no topic either.
NO_TEXT: Final = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"a\xf4\x90\x80\x80", b"\0", b"a\x1f", b"\x7f",
    b"\xc2\x80", b"", b"a/+", b"#",
)  # fmt: skip
_REQUESTS: Final = (wire.SUBSCRIBE, wire.PUBLISH, wire.UNSUBSCRIBE, wire.DISCONNECT, wire.PUBACK)


@dataclass
class Field:
    kind: str  # byte, bytes, text, binary
    value: bytes

    def pack(self) -> bytes:
        return wire.blob(self.value) if self.kind in ("text", "binary") else self.value


def visit(world: World, c: Decisions) -> None:
    """Mostly nobody comes."""
    kind = c.weigh((("", 5), ("connect", 2), ("property", 1)))
    if kind == "connect":
        _come(world, c.pick((wire.V5, wire.V5, wire.V311, wire.V31)), c)
    elif kind == "property":
        _ask(world, c)


def _come(world: World, version: int, c: Decisions) -> None:
    """A CONNECT with one fault."""
    fields = _fields(version, c)
    place = c.below(len(fields))
    wrong = fields[place]
    kind = c.below(4)
    body = b"".join(one.pack() for one in fields[:place])
    behind = b"".join(one.pack() for one in fields[place + 1 :])
    if kind < 2:
        wrong.value = _spoilt(wrong, place, c)
        body += wrong.pack() + behind
    elif kind == 2:
        body += wrong.pack()[: c.below(len(wrong.pack()))]
    elif wrong.kind in ("text", "binary"):
        length = values.number(c, 0, values.LONGEST)
        body += wire.u16(length) + wrong.value + behind
    raw = wire.framed(wire.CONNECT << 4, body)
    try:
        wire.read(0, raw, from_server=False)
    except wire.Bad:
        link = world.open(Actor(world, CLIENT, version))
        world.send_piece(link, raw)
        world.lose(link)


def _fields(version: int, c: Decisions) -> list[Field]:
    """All the fields of a CONNECT with a will, a user name and a password."""
    flags = 0xC6 | c.below(3) << 3 | c.below(2) << 5
    name = next(name for name, levels in wire.LEVELS.items() if version in levels)
    found = [
        Field("text", name), Field("byte", bytes([version])), Field("byte", bytes([flags])),
        Field("bytes", wire.u16(values.number(c, 0, 0xFFFF))),
    ]  # fmt: skip
    if version == wire.V5:
        found.append(_section(wire.CONNECT, c))
    found.append(Field("text", CLIENT))
    if version == wire.V5:
        found.append(_section(wire.WILL, c))
    return [
        *found, Field("text", values.topic(c)), Field("binary", values.binary(c)),
        Field("text", values.text(c)), Field("binary", values.binary(c)),
    ]  # fmt: skip


def _section(packet: int, c: Decisions) -> Field:
    props = values.properties(c, packet, frozenset({wire.METHOD, wire.AUTH_DATA}))
    return Field("bytes", wire.packed(props))


def _spoilt(field: Field, place: int, c: Decisions) -> bytes:
    """Another value of the same type: at its ends, beside it, with the highest bit changed."""
    if field.kind == "byte":
        value = field.value[0]
        return bytes([c.pick((value ^ 0x80, value - 1, value + 1, 0, 0x7F, 0x80, 0xFF)) & 0xFF])
    if field.kind == "text" and not place:
        return c.pick(NAMES)
    if field.kind == "text":
        return c.pick(NO_TEXT)
    return field.value[: c.below(len(field.value) + 1)]


def _ask(world: World, c: Decisions) -> None:
    """It is let in, and sends a packet with a property whose value fits its type alone."""
    kind = c.pick(_REQUESTS)
    rows = [key for key, (_, packets) in wire.PROPERTIES.items() if kind in packets]
    key = c.pick(rows)
    raw = _request(world, kind, [(key, _value(key, c))], c)
    try:
        wire.read(wire.V5, raw, from_server=False)
    except wire.Bad:
        link = world.open(Actor(world, CLIENT, wire.V5))
        who = Packet(wire.CONNECT, version=wire.V5, client=CLIENT, clean=True)
        world.send(link, wire.connect(who))
        world.rest()
        world.send_piece(link, raw)
        world.lose(link)


def _value(key: int, c: Decisions) -> values.Value:
    kind = prop.TABLE[key].kind
    if kind is Kind.PAIR:
        return values.text(c), c.pick(NO_TEXT)
    if kind in (Kind.STRING, Kind.BINARY):
        return c.pick(NO_TEXT)
    high = values.VARINT_BOUNDS[-1] if kind is Kind.VARINT else (1 << 8 * kind.value) - 1
    return c.pick((0, high, values.number(c, 0, high)))


def _request(world: World, kind: int, props: wire.Properties, c: Decisions) -> bytes:
    one = Packet(kind, id=1, topic=world.subject.topic(c), qos=c.below(3), props=props)
    text = world.subject.topic(c)
    if kind == wire.PUBLISH:
        return wire.publish(wire.V5, one)
    if kind == wire.SUBSCRIBE:
        one.asked = [wire.Asked(text, one.qos)]
        return wire.subscribe(wire.V5, one)
    if kind == wire.UNSUBSCRIBE:
        one.filters = [text]
        return wire.unsubscribe(wire.V5, one)
    if kind == wire.DISCONNECT:
        return wire.disconnect(wire.V5, 4, props)
    return wire.ack(kind, one.id, 0x10, props)


def check_told(world: World, link: Link, verdict: mutation.Verdict) -> None:
    """Whoever sent what is wrong is told what is due, before the close."""
    if verdict.answer is not None:
        shown = f"a CONNECT with {verdict.why}: {link.unread.hex()}, not {verdict.answer.hex()}"
        world.model.check(bytes(link.unread) == verdict.answer, "answer", shown)
        link.unread.clear()
    elif verdict.only and link.door.has_connack and link.door.version == wire.V5:
        packets, _ = wire.cut(bytes(link.unread))
        last = packets[-1] if packets else b""
        right = last[:1] == b"\xe0" and len(last) > 2 and last[2] == verdict.only
        right = right or 0 in link.door.may_close  # its Maximum Packet Size is tiny
        shown = f"{verdict.why}: told {last.hex()}, not 0x{verdict.only:02X}"
        world.model.check(right, "answer", shown)

"""MQTT packets written and read a second time, from the specification alone.

A judge shares no code with the accused: what clients send is written and judged here, and what
the broker writes is read here. `read` is strict: `Bad` says that no such packet may be sent.

    cut          whole packets from the front of a stream
    read         one packet
    connect ...  one packet of a client, as bytes
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.broker.values import Value

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
WILL: Final = 16
V31, V311, V5 = 3, 4, 5

# Property: its type, and the packets it may stand in.
_REASONED: Final = {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}
PROPERTIES: Final[dict[int, tuple[str, set[int]]]] = {
    0x01: ("bool", {PUBLISH, WILL}),
    0x02: ("u32", {PUBLISH, WILL}),
    0x03: ("text", {PUBLISH, WILL}),
    0x08: ("text", {PUBLISH, WILL}),
    0x09: ("binary", {PUBLISH, WILL}),
    0x0B: ("varint", {PUBLISH, SUBSCRIBE}),
    0x11: ("u32", {CONNECT, CONNACK, DISCONNECT}),
    0x12: ("text", {CONNACK}),
    0x13: ("u16", {CONNACK}),
    0x15: ("text", {CONNECT, CONNACK, AUTH}),
    0x16: ("binary", {CONNECT, CONNACK, AUTH}),
    0x17: ("bool", {CONNECT}),
    0x18: ("u32", {WILL}),
    0x19: ("bool", {CONNECT}),
    0x1A: ("text", {CONNACK}),
    0x1C: ("text", {CONNACK, DISCONNECT}),
    0x1F: ("text", _REASONED),
    0x21: ("u16", {CONNECT, CONNACK}),
    0x22: ("u16", {CONNECT, CONNACK}),
    0x23: ("u16", {PUBLISH}),
    0x24: ("bool", {CONNACK}),
    0x25: ("bool", {CONNACK}),
    0x26: ("pair", _REASONED | {CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE}),
    0x27: ("u32", {CONNECT, CONNACK}),
    0x28: ("bool", {CONNACK}),
    0x29: ("bool", {CONNACK}),
    0x2A: ("bool", {CONNACK}),
}
NOT_ZERO: Final = {0x0B, 0x21, 0x27}
FORMAT, EXPIRY, RESPONSE, SUB_ID, SESSION_EXPIRY, METHOD, AUTH_DATA = (
    0x01, 0x02, 0x08, 0x0B, 0x11, 0x15, 0x16,
)  # fmt: skip
WILL_DELAY, RECEIVE_MAXIMUM, ALIAS_MAXIMUM, ALIAS, PACKET_MAXIMUM = 0x18, 0x21, 0x22, 0x23, 0x27
# Of one hop: what is not passed on to subscribers as it came.
HOP: Final = {EXPIRY, SUB_ID, ALIAS, WILL_DELAY}

Properties = list[tuple[int, Value]]
MALFORMED: Final = frozenset({0x81, 0x82})
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")


class Bad(Exception):
    """No such packet may be sent. `reasons`: what its sender may be told; `only`: must be told.

    `answer`: all that is written before the close, where the specification or the documentation
    leaves no choice.
    """

    def __init__(self, text: str, *reasons: int, only: int = 0) -> None:
        super().__init__(text)
        self.only = only
        self.reasons = frozenset({only}) if only else MALFORMED | set(reasons)
        self.answer: bytes | None = None


class CutShort(Bad):
    """A field is longer than what is left of its packet."""


@dataclass
class Will:
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    props: Properties = field(default_factory=list)


@dataclass(eq=False)
class Asked:
    """One filter of one SUBSCRIBE."""

    filter: bytes
    qos: int
    no_local: bool = False
    as_published: bool = False
    handling: int = 0


@dataclass
class Packet:
    """Any packet; the fields that its type has."""

    kind: int
    id: int = 0
    reason: int = 0
    props: Properties = field(default_factory=list)
    topic: bytes = b""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    version: int = 0
    client: bytes = b""
    clean: bool = False
    keep_alive: int = 0
    will: Will | None = None
    present: bool = False
    codes: list[int] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    filters: list[bytes] = field(default_factory=list)
    size: int = 0

    def number(self, key: int, default: int = 0) -> int:
        return number(self.props, key, default)


def number(props: Properties, key: int, default: int = 0) -> int:
    for other, value in props:
        if other == key and isinstance(value, int):
            return value
    return default


def has(props: Properties, key: int) -> bool:
    return any(other == key for other, _ in props)


# Written.


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def blob(raw: bytes) -> bytes:
    return u16(len(raw)) + raw


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def packed(props: Properties) -> bytes:
    out = bytearray()
    for key, value in props:
        kind = PROPERTIES[key][0]
        out.append(key)
        if isinstance(value, tuple):
            out += blob(value[0]) + blob(value[1])
        elif isinstance(value, bytes):
            out += blob(value)
        elif kind == "varint":
            out += varint(value)
        else:
            out += value.to_bytes({"bool": 1, "u16": 2, "u32": 4}[kind], "big")
    return varint(len(out)) + bytes(out)


def framed(first: int, body: bytes) -> bytes:
    return bytes([first]) + varint(len(body)) + body


def connect(packet: Packet, username: bytes | None = None, password: bytes | None = None) -> bytes:
    name = b"MQIsdp" if packet.version == V31 else b"MQTT"
    will = packet.will
    flags = packet.clean << 1
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
    if username is not None:
        flags |= 0x80
    if password is not None:
        flags |= 0x40
    body = blob(name) + bytes([packet.version, flags]) + u16(packet.keep_alive)
    if packet.version == V5:
        body += packed(packet.props)
    body += blob(packet.client)
    if will is not None:
        if packet.version == V5:
            body += packed(will.props)
        body += blob(will.topic) + blob(will.payload)
    for text in (username, password):
        if text is not None:
            body += blob(text)
    return framed(0x10, body)


def publish(version: int, packet: Packet) -> bytes:
    body = blob(packet.topic)
    if packet.qos:
        body += u16(packet.id)
    if version == V5:
        body += packed(packet.props)
    first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
    return framed(first, body + packet.payload)


def ack(kind: int, packet_id: int, reason: int = 0, props: Properties | None = None) -> bytes:
    body = u16(packet_id)
    if reason or props:
        body += bytes([reason])
    if props:
        body += packed(props)
    return framed(kind << 4 | (2 if kind == PUBREL else 0), body)


def subscribe(version: int, packet: Packet) -> bytes:
    body = u16(packet.id) + (packed(packet.props) if version == V5 else b"")
    for one in packet.asked:
        options = one.qos | one.no_local << 2 | one.as_published << 3 | one.handling << 4
        body += blob(one.filter) + bytes([options])
    return framed(0x82, body)


def unsubscribe(version: int, packet: Packet) -> bytes:
    body = u16(packet.id) + (packed(packet.props) if version == V5 else b"")
    return framed(0xA2, body + b"".join(map(blob, packet.filters)))


def disconnect(version: int, reason: int, props: Properties) -> bytes:
    if version < V5 or not (reason or props):
        return b"\xe0\x00"
    return framed(0xE0, bytes([reason]) + (packed(props) if props else b""))


# Read.


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole packets, and what is left. A length that is none is left over too."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        length = shift = 0
        place = at + 1
        while place < len(data) and shift < 28:
            length |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:
                break
        else:
            break
        if place + length > len(data):
            break
        found.append(data[at : place + length])
        at = place + length
    return found, data[at:]


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def is_over(self) -> bool:
        return self.at == len(self.data)

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise CutShort("cut short")
        self.at += count
        return found

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def id(self) -> int:
        found = self.u16()
        if not found:
            raise Bad("packet id 0")
        return found

    def blob(self) -> bytes:
        return self.take(self.u16())

    def text(self, *reasons: int) -> bytes:
        raw = self.blob()
        try:
            if _CONTROL.search(raw.decode()):
                raise Bad("a control character", *reasons)
        except UnicodeDecodeError:
            raise Bad("not UTF-8", *reasons) from None
        return raw

    def varint(self) -> int:
        found = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise Bad("an integer that is longer than it has to be")
                return found
        raise Bad("an integer of five bytes")

    def props(self, packet: int) -> Properties:
        length = self.varint()
        inner = Reader(self.take(length))
        found: Properties = []
        while not inner.is_over:
            key = inner.varint()
            if key not in PROPERTIES or packet not in PROPERTIES[key][1]:
                raise Bad(f"property 0x{key:02X}")
            may_repeat = key == 0x26 or (key == SUB_ID and packet == PUBLISH)
            if has(found, key) and not may_repeat:
                raise Bad(f"property 0x{key:02X} twice")
            found.append((key, inner.value(key)))
        return found

    def value(self, key: int) -> Value:
        kind = PROPERTIES[key][0]
        if kind == "pair":
            return self.text(), self.text()
        if kind == "text":
            return self.text()
        if kind == "binary":
            return self.blob()
        found = (
            self.varint()
            if kind == "varint"
            else int.from_bytes(self.take({"bool": 1, "u16": 2, "u32": 4}[kind]), "big")
        )
        if (kind == "bool" and found > 1) or (key in NOT_ZERO and not found):
            raise Bad(f"property 0x{key:02X} is {found}", only=0x82)  # a Protocol Error, each
        return found

    def topic(self) -> bytes:
        found = self.text(0x90)
        if b"+" in found or b"#" in found:
            raise Bad("a wildcard in a Topic Name", 0x90)
        return found


_FROM_SERVER: Final = {
    CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH,
}  # fmt: skip
_FROM_CLIENT: Final = {
    CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT,
    AUTH,
}  # fmt: skip
_FLAGS: Final = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}


def read(version: int, raw: bytes, *, from_server: bool) -> Packet:
    """One whole packet; `version` 0: CONNECT is yet to come."""
    kind, flags = raw[0] >> 4, raw[0] & 15
    reader = Reader(raw)
    reader.at = 1
    reader.varint()
    packet = Packet(kind, version=version, size=len(raw))
    if kind not in (_FROM_SERVER if from_server else _FROM_CLIENT):
        raise Bad(f"packet type {kind}")
    if (kind == CONNECT) != (version == 0) and not from_server:
        raise Bad("CONNECT is the first packet, once")
    if kind == AUTH and version < V5:
        raise Bad("AUTH before MQTT 5")
    if kind == PUBLISH:
        _read_publish(packet, reader, flags, version, from_server=from_server)
        return packet
    if kind == CONNECT:
        is_v31 = raw[reader.at :].startswith(b"\0\6MQIsdp")  # which allows any flags
    else:
        is_v31 = version == V31 and kind in _FLAGS and flags == _FLAGS[kind] | 8  # DUP
    if flags != _FLAGS.get(kind, 0) and not is_v31:
        raise Bad("flags")
    if kind == CONNECT:
        _read_connect(packet, reader)
    elif kind == CONNACK:
        packet.present, packet.reason = bool(reader.u8() & 1), reader.u8()
        if version == V5 and not reader.is_over:
            packet.props = reader.props(CONNACK)
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        packet.id = reader.id()
        if version == V5 and not reader.is_over:
            packet.reason = reader.u8()
            if not reader.is_over:
                packet.props = reader.props(kind)
    elif kind in (SUBSCRIBE, UNSUBSCRIBE):
        _read_asked(packet, reader, version)
    elif kind in (SUBACK, UNSUBACK):
        packet.id = reader.id()
        if version == V5:
            packet.props = reader.props(kind)
        if version == V5 or kind == SUBACK:
            packet.codes = list(reader.rest())
    elif kind in (DISCONNECT, AUTH) and version == V5 and not reader.is_over:
        packet.reason = reader.u8()
        if not reader.is_over:
            packet.props = reader.props(kind)
    if not reader.is_over:
        raise Bad("bytes behind the end")
    return packet


def _read_publish(
    packet: Packet, reader: Reader, flags: int, version: int, *, from_server: bool
) -> None:
    packet.dup, packet.qos, packet.retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    if packet.qos == 3 or (packet.dup and not packet.qos):
        raise Bad("flags")
    packet.topic = reader.topic()
    if packet.qos:
        packet.id = reader.id()
    if version == V5:
        packet.props = reader.props(PUBLISH)
    if not from_server and has(packet.props, SUB_ID):
        raise Bad("a Subscription Identifier of a client")
    if has(packet.props, ALIAS) and not packet.number(ALIAS):
        raise Bad("Topic Alias 0", 0x94)
    if not packet.topic and not has(packet.props, ALIAS):
        raise Bad("no topic", 0x90)
    _check_response(packet.props)
    packet.payload = reader.rest()


def _check_response(props: Properties) -> None:
    for key, value in props:
        if key == RESPONSE and isinstance(value, bytes):
            if not value or b"+" in value or b"#" in value:
                raise Bad("a Response Topic that is none", 0x90)


LEVELS: Final = {b"MQTT": (V311, V5), b"MQIsdp": (V31,)}  # of each protocol name
_OF_OLD: Final = (V31, V311, 0x80 | V31, 0x80 | V311)  # of 3.x, or of a bridge of 3.x
REFUSED_OF_OLD: Final = b"\x20\x02\x00\x01"  # Unacceptable Protocol Version, as 3.x reads it
REFUSED: Final = b"\x20\x03\x00\x84\x00"  # Unsupported Protocol Version


def _read_connect(packet: Packet, reader: Reader) -> None:
    """CONNECT; a fault that has one answer only has it with it."""
    name = reader.blob()
    level = reader.u8()
    if level not in LEVELS.get(name, ()):
        bad = Bad("a protocol that nobody speaks", 0x84, 0x01)
        bad.answer = REFUSED_OF_OLD if level in _OF_OLD else REFUSED
        if name not in LEVELS:
            bad.answer = b""
        raise bad
    packet.version = level
    try:
        _read_who_connects(packet, reader)
    except Bad as bad:
        if bad.only:
            bad.answer = bytes((0x20, 3, 0, bad.only, 0)) if level == V5 else b""
        raise


def _read_who_connects(packet: Packet, reader: Reader) -> None:
    version = packet.version
    flags = reader.u8()
    packet.clean, packet.keep_alive = bool(flags & 2), reader.u16()
    qos = flags >> 3 & 3
    if (flags & 1 and version != V31) or qos == 3 or (flags & 0x38 and not flags & 4):
        raise Bad("connect flags")
    if flags & 0xC0 == 0x40 and version < V5:
        raise Bad("a password alone")
    if version == V5:
        packet.props = reader.props(CONNECT)
        if has(packet.props, AUTH_DATA) and not has(packet.props, METHOD):
            raise Bad("authentication data without a method")
    packet.client = reader.text(0x85, 0x02)
    if flags & 4:
        try:
            props = reader.props(WILL) if version == V5 else []
        except CutShort as bad:
            raise Bad(f"will: {bad}", only=0x81) from None
        _check_response(props)
        try:
            topic = reader.topic()
            payload = reader.blob()
        except Bad as bad:
            raise Bad(f"will: {bad}", only=0x81) from None
        if not topic:
            raise Bad("no will topic", only=0x81)
        packet.will = Will(topic, payload, qos, bool(flags & 0x20), props)
    if flags & 0x80:
        reader.text(0x86)
    if flags & 0x40:
        reader.blob()


def _read_asked(packet: Packet, reader: Reader, version: int) -> None:
    packet.id = reader.id()
    if version == V5:
        packet.props = reader.props(packet.kind)
    while not reader.is_over:
        text = reader.text(0x8F)
        if packet.kind == UNSUBSCRIBE:
            packet.filters.append(text)
        else:
            options = reader.u8()
            if options & (0xC0 if version == V5 else 0xFC) or 3 in (options & 3, options >> 4):
                raise Bad("subscription options")
            one = Asked(text, options & 3, bool(options & 4), bool(options & 8), options >> 4 & 3)
            packet.asked.append(one)
            if split_share(text) is not None and one.no_local:
                raise Bad("No Local of a group")
        check_filter(text, is_strict=packet.kind == SUBSCRIBE)
    if not packet.asked and not packet.filters:
        raise Bad("nothing is asked for")


# Topics.


def split_share(text: bytes) -> tuple[bytes, bytes] | None:
    parts = text.split(b"/", 2)
    if parts[0] != b"$share":
        return None
    name, inner = (*parts[1:], b"", b"")[:2]
    return name, inner


def check_filter(text: bytes, *, is_strict: bool = True) -> None:
    shared = split_share(text)
    if shared is not None and is_strict:
        name, text = shared
        if not name or b"+" in name or b"#" in name:
            raise Bad("a share name", 0x8F)
    levels = text.split(b"/")
    for place, level in enumerate(levels):
        if b"#" in level and (level != b"#" or place != len(levels) - 1):
            raise Bad("# is not the last level", 0x8F)
        if b"+" in level and level != b"+":
            raise Bad("+ is not alone", 0x8F)
    if not text or len(levels) > 201:
        raise Bad("an empty filter, or too deep a one", 0x8F)


def is_met(text: bytes, topic: bytes) -> bool:
    """Whether the Topic Filter matches, by a regular expression."""
    if topic[:1] == b"$" and text[:1] in (b"+", b"#"):
        return False
    if text == b"#":
        return True
    pattern = b"/".join(b"[^/]*" if level == b"+" else re.escape(level)
                        for level in text.removesuffix(b"/#").split(b"/"))  # fmt: skip
    if text.endswith(b"/#"):
        pattern += b"(/.*)?"
    return re.fullmatch(pattern, topic, re.DOTALL) is not None

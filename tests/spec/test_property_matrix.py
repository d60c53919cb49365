"""Every property number in every packet a client sends: once, twice, cut short, misplaced.

The table is typed from the specification (2.2.2.2) and knows nothing of the codec's: where
the two disagree, one of them is wrong. The codes are those other brokers answer with:
0x81 for what cannot be read and for a number that is no property, 0x82 for a property that
is repeated or does not belong, which in SUBSCRIBE and UNSUBSCRIBE is 0x81, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import pytest

from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from tests.spec import harness

MALFORMED, PROTOCOL = 0x81, 0x82
CLIENT = ("connect", "will", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe",
          "unsubscribe", "disconnect", "auth")  # fmt: skip
REASONED = "connack puback pubrec pubrel pubcomp suback unsuback disconnect auth"

# number: (example values, packets)
TABLE: Final[dict[int, tuple[list[bytes], set[str]]]] = {
    number: ([bytes.fromhex(value) for value in values.split()], set(packets.split()))
    for number, values, packets in [
        (0x01, "00 01", "publish will"),
        (0x02, "00000000 0000003c ffffffff", "publish will"),
        (0x03, "0000 000474657874", "publish will"),
        (0x08, "000172 0003612f62", "publish will"),
        (0x09, "0000 0002ff00", "publish will"),
        (0x0B, "01 7f 8001 ffff7f ffffff7f", "subscribe"),  # in PUBLISH it is the server's
        (0x11, "00000000 00000001 ffffffff", "connect connack disconnect"),
        (0x12, "000161", "connack"),
        (0x13, "0000 003c", "connack"),
        (0x15, "000178", "connect connack auth"),
        (0x16, "0000 0002ff00", "connect connack auth"),
        (0x17, "00 01", "connect"),
        (0x18, "00000000 0000003c", "will"),
        (0x19, "00 01", "connect"),
        (0x1A, "000161", "connack"),
        (0x1C, "0000 000161", "connack disconnect"),
        (0x1F, "0000 0003776879", REASONED),
        (0x21, "0001 ffff", "connect connack"),
        (0x22, "0000 ffff", "connect connack"),
        (0x23, "0001 000a", "publish"),
        (0x24, "00 01", "connack"),
        (0x25, "00 01", "connack"),
        (0x26, "00000000 00016b000176", REASONED + " connect will publish subscribe unsubscribe"),
        (0x27, "00000064 ffffffff", "connect connack"),
        (0x28, "00 01", "connack"),
        (0x29, "00 01", "connack"),
        (0x2A, "00 01", "connack"),
    ]
}
UNKNOWN: Final = [number for number in range(128) if number not in TABLE]


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def section(body: bytes) -> bytes:
    return varint(len(body)) + body


def packet(kind: str, properties: bytes) -> bytes:
    """A packet of the kind that is faultless but perhaps for the properties in it."""
    props = section(properties)
    first, body = {
        "connect": (0x10, b"\x00\x04MQTT\x05\x02\x00\x00" + props + b"\x00\x01p"),
        "will": (
            0x10,
            b"\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01p" + props + b"\x00\x01w\x00\x01x",
        ),
        "connack": (0x20, b"\x00\x00" + props),
        "publish": (0x32, b"\x00\x01t\x00\x01" + props + b"x"),
        "puback": (0x40, b"\x00\x01\x00" + props),
        "pubrec": (0x50, b"\x00\x01\x00" + props),
        "pubrel": (0x62, b"\x00\x01\x00" + props),
        "pubcomp": (0x70, b"\x00\x01\x00" + props),
        "subscribe": (0x82, b"\x00\x01" + props + b"\x00\x01t\x00"),
        "suback": (0x90, b"\x00\x01" + props + b"\x00"),
        "unsubscribe": (0xA2, b"\x00\x01" + props + b"\x00\x01t"),
        "unsuback": (0xB0, b"\x00\x01" + props + b"\x11"),
        "disconnect": (0xE0, b"\x00" + props),
        "auth": (0xF0, b"\x18" + props),
    }[kind]
    return bytes([first]) + section(body)


def misplaced(kind: str) -> int:
    return MALFORMED if kind in ("subscribe", "unsubscribe") else PROTOCOL


def expected(kind: str, number: int, *, twice: bool = False) -> int:
    """The reason code of the refusal; 0 when it is lawful."""
    if number not in TABLE:
        return MALFORMED
    if kind not in TABLE[number][1]:
        return misplaced(kind)
    if twice and number != 0x26:
        return PROTOCOL
    if kind == "connect" and number == 0x16:
        return PROTOCOL  # data without a method
    return 0


def once(kind: str) -> Iterator[tuple[bytes, int]]:
    for number, (values, _) in TABLE.items():
        for value in values:
            yield bytes([number]) + value, expected(kind, number)
    for number in UNKNOWN:
        for tail in (b"", b"\x00", b"\x00\x01x", b"\x00\x00\x00\x00"):
            yield bytes([number]) + tail, MALFORMED
    for number in (0x80, 0xFF, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 0xFFFFFFF):
        yield varint(number) + b"\x00", MALFORMED  # as a number of two to four bytes
    for number in TABLE:
        yield bytes([number | 0x80, 0x00]) + TABLE[number][0][0], MALFORMED  # over-long


def twice(kind: str) -> Iterator[tuple[bytes, int]]:
    for number, (values, _) in TABLE.items():
        for value in values:
            yield (bytes([number]) + value) * 2, expected(kind, number, twice=True)
            between = b"\x26\x00\x01k\x00\x01v"
            yield (
                bytes([number]) + value + between + bytes([number]) + value,
                expected(kind, number, twice=True),
            )


def cut(kind: str) -> Iterator[tuple[bytes, int]]:
    for number, (values, _) in TABLE.items():
        for value in values:
            for length in range(len(value)):
                if value[:length] in values:
                    continue
                yield bytes([number]) + value[:length], MALFORMED
                yield b"\x26\x00\x01k\x00\x01v" + bytes([number]) + value[:length], MALFORMED


def late(kind: str) -> Iterator[tuple[bytes, int]]:
    """Behind another property that is lawful."""
    for number, (values, _) in TABLE.items():
        yield b"\x26\x00\x00\x00\x00" + bytes([number]) + values[0], expected(kind, number)


FAMILIES: Final = {"once": once, "twice": twice, "cut": cut, "late": late}


def of_codec(kind: str, properties: bytes, *, from_server: bool = False) -> int:
    decoder = Decoder(from_server=from_server, version=0 if kind in ("connect", "will") else 5)
    (found,) = decoder.feed(packet(kind, properties))
    return found.reason if isinstance(found, Violation) else 0


@pytest.mark.rule("MQTT-2.2.2-1", "MQTT-1.5.5-1")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", CLIENT)
def test_codec(kind: str, family: str) -> None:
    wrong = []
    count = 0
    for properties, want in FAMILIES[family](kind):
        count += 1
        got = of_codec(kind, properties)
        if got != want:
            wrong.append(f"{properties.hex(' ')}: 0x{got:02X}, not 0x{want:02X}")
    assert count >= len(TABLE)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("kind", ["connack", "suback", "unsuback", "puback", "disconnect", "auth"])
def test_codec_from_a_server(kind: str) -> None:
    wrong = []
    for number, (values, packets) in TABLE.items():
        for value in values:
            got = of_codec(kind, bytes([number]) + value, from_server=True)
            want = 0 if kind in packets else PROTOCOL
            if got != want:
                wrong.append(f"0x{number:02X} {value.hex()}: 0x{got:02X}, not 0x{want:02X}")
    assert not wrong, "\n".join(wrong)


def answer(kind: str, properties: bytes) -> tuple[str, int]:
    """What the broker does: ("taken" | "closed" | ..., reason code)."""
    broker = Broker(Settings(sys_interval_s=0), now=0.0, rng=random.Random(1))
    link = harness.FakeLink("peer")
    connection = broker.accept(link, 0.0)
    if kind not in ("connect", "will"):
        dispatch.receive(connection, packet("connect", b"\x11\x00\x00\x00\x64"), 0.0)
        broker.flush(0.0)
        link.unread.clear()
    dispatch.receive(connection, packet(kind, properties), 0.0)
    broker.flush(0.0)
    out = bytes(link.unread)
    if not link.closed:
        dispatch.receive(connection, b"\xc0\x00", 0.0)
        broker.flush(0.0)
        assert link.unread.endswith(b"\xd0\x00")
        return "taken", 0
    if kind in ("connect", "will"):
        assert len(out) == 5
        assert out[:3] == b"\x20\x03\x00"
        assert out[4] == 0
        return "refused", out[3]
    if not out:
        return "closed", 0
    assert len(out) == 3
    assert out[:2] == b"\xe0\x01"
    return "thrown", out[2]


@pytest.mark.rule("MQTT-4.13.1-1", "MQTT-3.1.4-1", "MQTT-3.14.2-1")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", CLIENT[:-1])
def test_broker(kind: str, family: str) -> None:
    wrong = []
    for properties, want in FAMILIES[family](kind):
        got = answer(kind, properties)
        if kind in ("connect", "will"):
            if want == 0 and properties.find(b"\x15\x00\x01x") >= 0:
                good = ("refused", 0x8C)  # a method nobody knows
            else:
                good = ("refused", want) if want else ("taken", 0)
        elif kind == "disconnect":
            good = ("thrown", want) if want else ("closed", 0)
        else:
            good = ("thrown", want) if want else ("taken", 0)
        if got != good:
            wrong.append(f"{properties.hex(' ')}: {got}, not {good}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize(
    ("kind", "properties", "code"),
    [
        ("connect", "21 0000", PROTOCOL),
        ("connect", "27 00000000", PROTOCOL),
        ("connect", "17 02", PROTOCOL),
        ("connect", "17 ff", PROTOCOL),
        ("connect", "19 02", PROTOCOL),
        ("will", "01 02", PROTOCOL),
        ("will", "08 0000", PROTOCOL),
        ("will", "08 0001 23", PROTOCOL),
        ("publish", "01 02", PROTOCOL),
        ("publish", "08 0000", PROTOCOL),
        ("publish", "08 0003 612f2b", PROTOCOL),
        ("publish", "23 0000", 0x94),
        ("subscribe", "0b 00", PROTOCOL),
        ("subscribe", "0b 8000", MALFORMED),
        ("subscribe", "0b 8080808001", MALFORMED),
        ("publish", "0b 8000", MALFORMED),
        ("publish", "03 0001 00", MALFORMED),
        ("publish", "26 0001 00 0000", MALFORMED),
        ("puback", "1f 0001 ff", MALFORMED),
    ],
)
def test_values_out_of_range(kind: str, properties: str, code: int) -> None:
    assert of_codec(kind, bytes.fromhex(properties)) == code


@pytest.mark.parametrize("number", [0x24, 0x25, 0x28, 0x29, 0x2A])
def test_flags_of_connack_are_0_or_1(number: int) -> None:
    assert of_codec("connack", bytes([number, 2]), from_server=True) == PROTOCOL


@pytest.mark.rule("MQTT-3.3.4-4")
def test_a_server_may_repeat_subscription_identifiers() -> None:
    assert of_codec("publish", bytes.fromhex("0b 01 0b 8001"), from_server=True) == 0


@pytest.mark.parametrize("kind", CLIENT)
def test_no_packet_reads_past_its_property_section(kind: str) -> None:
    """The length says more than is there, in one to four bytes."""
    whole = packet(kind, b"")
    start = {"connect": 12, "will": 16, "publish": 7, "disconnect": 3, "auth": 3,
             "subscribe": 4, "unsubscribe": 4}.get(kind, 5)  # fmt: skip
    for length in (b"\x40", b"\xff\x01", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\x80"):
        body = whole[2:start] + length + whole[start + 1 :]
        decoder = Decoder(version=0 if kind in ("connect", "will") else 5)
        (found,) = decoder.feed(whole[:1] + section(body))
        assert isinstance(found, Violation), length
        assert found.reason == MALFORMED, length

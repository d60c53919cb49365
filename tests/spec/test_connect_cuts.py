"""CONNECT cut at every byte and with every byte changed: the answer is the one that fits.

A second reader of CONNECT, typed from the specification (3.1), says what is wrong first. What it
says is compared with what the broker does. On MQTT 5 a fault before the client is known is
answered with CONNACK, but for the fields where the close alone is the rule: the protocol's name
and level, the flags and the keep alive that are missing, and who comes (client identifier, user
name, password) cut short. On 3.1.1 and 3.1 the close alone.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from tests.spec import harness

CLOSE: Final = "close"
TAKEN: Final = "taken"
OWN: Final = "property"  # a section of properties was changed: test_property_values judges those
MALFORMED: Final = "0x81"
IDENTIFIER: Final = "0x85"
OLD_LEVEL: Final = "20020001"
NEW_LEVEL: Final = "2003008400"
SECTION: Final = bytes.fromhex("05 11 00000e10")
WILL_SECTION: Final = bytes.fromhex("0c 02 0000003c 18 00000005 01 01")


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def body_of(version: int, flags: int) -> bytes:
    """The body of a CONNECT that is right, with the fields that the flags ask for."""
    body = text(b"MQIsdp" if version == 3 else b"MQTT") + bytes([version, flags, 0, 60])
    body += SECTION if version == 5 else b""
    body += text(b"client")
    if flags & 4:
        body += (WILL_SECTION if version == 5 else b"") + text(b"will/topic") + text(b"gone")
    if flags & 0x80:
        body += text(b"user")
    if flags & 0x40:
        body += text(b"secret")
    return body


class Fault(Exception):
    """What is wrong first, as the answer it gets."""


class Reader:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int, answer: str) -> bytes:
        if self.at + count > len(self.body):
            raise Fault(answer)
        self.at += count
        return self.body[self.at - count : self.at]

    def field(self, answer: str) -> bytes:
        return self.take(int.from_bytes(self.take(2, answer), "big"), answer)

    def section(self, expected: bytes) -> None:
        """One that is as it was, or cut short; of any other only the properties' tests know."""
        rest = self.body[self.at :]
        if expected.startswith(rest) and len(rest) < len(expected):
            raise Fault(MALFORMED)
        if not rest.startswith(expected):
            raise Fault(OWN)
        self.at += len(expected)


def is_text(raw: bytes) -> bool:
    try:
        return not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in raw.decode())
    except UnicodeDecodeError:
        return False


def answer_to(body: bytes) -> str:
    """What the specification and docs/PROTOCOL.md say to this body of a CONNECT."""
    try:
        return read(Reader(body))
    except Fault as fault:
        return str(fault)


def read(reader: Reader) -> str:
    name = reader.field(CLOSE)
    if name not in (b"MQTT", b"MQIsdp"):
        return CLOSE
    level = reader.take(1, CLOSE)[0]
    if (name, level) not in ((b"MQTT", 4), (b"MQTT", 5), (b"MQIsdp", 3)):
        return OLD_LEVEL if level % 128 in (3, 4) else NEW_LEVEL
    is_v5 = level == 5
    malformed = MALFORMED if is_v5 else CLOSE
    flags, _, _ = reader.take(3, CLOSE)
    if flags & 1 and level != 3:
        return malformed
    if flags & 0x18 == 0x18 or (flags & 0x38 and not flags & 4):
        return malformed
    if flags & 0x40 and not flags & 0x80 and not is_v5:
        return CLOSE
    if is_v5:
        reader.section(SECTION)
    client_id = reader.field(CLOSE)
    if not is_text(client_id):
        return IDENTIFIER if is_v5 else CLOSE
    if flags & 4:
        if is_v5:
            reader.section(WILL_SECTION)
        topic = reader.field(malformed)
        if not topic or not is_text(topic) or set(topic) & set(b"+#"):
            return malformed
        payload = reader.field(malformed)
        if is_v5 and not is_utf8(payload):  # its Payload Format Indicator is 1
            raise Fault("0x99")
    if flags & 0x80 and not is_text(reader.field(CLOSE)):
        return CLOSE
    if flags & 0x40:
        reader.field(CLOSE)
    if reader.at != len(reader.body):
        return malformed
    if not client_id and not is_v5 and (level == 3 or not flags & 2):
        return "20020002"
    return TAKEN


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def answer_of_broker(body: bytes) -> str:
    """What the broker does with it: one CONNACK at most, and the close with all but 0x00."""
    broker = Broker(Settings(sys_interval_s=0), now=0.0, rng=random.Random(1))
    link = harness.FakeLink("peer")
    connection = broker.accept(link, 0.0)
    length = len(body)
    head = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    dispatch.receive(connection, b"\x10" + head + body, 0.0)
    broker.flush(0.0)
    packets, rest = harness.split_packets(bytes(link.unread))
    assert not rest and len(packets) <= 1, packets
    if not packets:
        assert link.closed
        return CLOSE
    (connack,) = packets
    assert connack[0] == 0x20 and link.closed == (connack[3] != 0), connack.hex()
    if connack[3] == 0:
        return TAKEN
    if len(connack) == 5 and connack[3] != 0x84:
        return f"0x{connack[3]:02X}"
    return connack.hex()


FLAGS: Final = [0x02, 0x06, 0x36, 0x82, 0xC2, 0xC6, 0xF6]


def check(bodies: list[bytes]) -> None:
    wrong = []
    for body in bodies:
        want, got = answer_to(body), answer_of_broker(body)
        if want == OWN:
            assert got in (TAKEN, CLOSE) or got in ("0x81", "0x82", "0x85", "0x8C", "0x99"), got
        elif got != want:
            wrong.append(f"{body.hex(' ')}: {got}, not {want}")
    assert not wrong, f"{len(wrong)} of {len(bodies)}:\n" + "\n".join(wrong[:40])


@pytest.mark.rule("MQTT-3.1.4-1", "MQTT-3.1.2-9", "MQTT-3.1.3-11", "MQTT-4.13.1-1")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_cut_at_every_byte(version: int) -> None:
    """With a Remaining Length that says so."""
    bodies = [body_of(version, flags) for flags in FLAGS]
    assert all(answer_to(body) == TAKEN for body in bodies)
    check([body[:length] for body in bodies for length in range(len(body) + 1)])


@pytest.mark.rule("MQTT-3.1.2-2", "MQTT-3.1.3-11", "MQTT-3.1.3-4")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_every_byte_changed(version: int) -> None:
    bodies = []
    for flags in FLAGS:
        whole = body_of(version, flags)
        for at, byte in enumerate(whole):
            others = {0, 1, 3, 4, 5, 0x1F, 0x23, 0x2B, 0x7F, 0x80, 0x83, 0x84, 0xC0, 0xFF, byte ^ 1}
            bodies += [whole[:at] + bytes([other]) + whole[at + 1 :] for other in sorted(others)]
    check(bodies)


@pytest.mark.rule("MQTT-3.1.2-2")
@pytest.mark.parametrize("name", [b"MQTT", b"MQIsdp"])
def test_every_level(name: bytes) -> None:
    check([text(name) + bytes([level]) + body_of(4, 2)[7:] for level in range(256) if level != 5])

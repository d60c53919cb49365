"""Every value a property can have on the wire, at its boundaries, in every packet, and its code.

The values follow from the wire types of the codec's table; what they may be is typed from the
specification. A value that cannot be read is 0x81. Then a property that does not belong is
0x82, in SUBSCRIBE and UNSUBSCRIBE 0x81. Then a value that the specification calls a Protocol
Error is 0x82, and the Topic Alias 0 is 0x94.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from mqtt_broker.codec.properties import TABLE, Kind
from tests.spec.test_property_matrix import (
    CLIENT,
    MALFORMED,
    PROTOCOL,
    answer,
    misplaced,
    of_codec,
    varint,
)
from tests.spec.test_property_matrix import TABLE as PLACES

ALIAS_INVALID: Final = 0x94


class Law(NamedTuple):
    """A value of a property that is forbidden."""

    number: int
    section: str
    is_forbidden: Callable[[int | bytes], bool]
    code: int = PROTOCOL


def above_1(value: int | bytes) -> bool:
    return isinstance(value, int) and value > 1


def is_0(value: int | bytes) -> bool:
    return value == 0


def is_no_topic_name(value: int | bytes) -> bool:
    return isinstance(value, bytes) and (not value or b"+" in value or b"#" in value)


LAWS: Final = [
    Law(0x01, "3.3.2.3.2", above_1),
    Law(0x08, "3.3.2.3.5", is_no_topic_name),
    Law(0x0B, "3.8.2.1.2", is_0),
    Law(0x17, "3.1.2.11.7", above_1),
    Law(0x19, "3.1.2.11.6", above_1),
    Law(0x21, "3.1.2.11.3", is_0),
    Law(0x23, "3.3.2.3.4", is_0, ALIAS_INVALID),
    Law(0x24, "3.2.2.3.4", above_1),
    Law(0x25, "3.2.2.3.5", above_1),
    Law(0x27, "3.1.2.11.4", is_0),
    Law(0x28, "3.2.2.3.11", above_1),
    Law(0x29, "3.2.2.3.12", above_1),
    Law(0x2A, "3.2.2.3.13", above_1),
]
BY_NUMBER: Final = {law.number: law for law in LAWS}

_TEXTS: Final = [b"", b"a", b"\xef\xbb\xbf", "ä€\U0001f600".encode(), b"a/+", b"#", b"x" * 65_535]
_NO_TEXTS: Final = [
    b"\x00", b"a\x00", b"\x01", b"\x1f", b"\x7f", b"\xc2\x9f", b"\xff", b"\xc0\x80",
    b"\xed\xa0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\xef\xbf\xbf", b"\xef\xb7\x90",
]  # fmt: skip
_NUMBERS: Final = [0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]
_WIDE: Final = [*_NUMBERS, 0x100, 0x7FFF, 0x8000, 0xFFFF]
_WIDEST: Final = [*_WIDE, 0x10000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]
_VARINTS: Final = [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1F_FFFF, 0x20_0000, 0xFFF_FFFF]


def text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def boundaries(kind: Kind) -> Iterator[tuple[bytes, int | bytes | None]]:
    """Bytes on the wire and the value that they are; None: none that can be read."""
    if kind is Kind.VARINT:
        yield from ((varint(number), number) for number in _VARINTS)
        for digits in ("8000", "808000", "80808000", "8080808001", "ffffffff7f", "80", "ffffff"):
            yield bytes.fromhex(digits), None
    elif kind is Kind.STRING:
        yield from ((text(raw), raw) for raw in _TEXTS)
        yield from ((text(raw), None) for raw in _NO_TEXTS)
        yield b"\xff\xff", None
    elif kind is Kind.BINARY:
        yield from ((text(raw), raw) for raw in (*_TEXTS, *_NO_TEXTS))
        yield b"\x00\x01", None
    elif kind is Kind.PAIR:
        yield from ((text(raw) + text(raw), raw) for raw in _TEXTS)
        for raw in _NO_TEXTS:
            yield text(raw) + text(b"v"), None
            yield text(b"k") + text(raw), None
        yield text(b"k"), None
    else:
        numbers = {1: _NUMBERS, 2: _WIDE, 4: _WIDEST}[kind.value]
        yield from ((number.to_bytes(kind.value, "big"), number) for number in numbers)
        yield bytes(kind.value - 1), None


def expected(kind: str, number: int, value: int | bytes | None) -> int:
    """The reason code; 0: the value is lawful there."""
    if value is None:
        return MALFORMED
    if kind not in PLACES[number][1] and (kind, number) != ("publish", 0x0B):
        return misplaced(kind)
    law = BY_NUMBER.get(number)
    if law is not None and law.is_forbidden(value):
        return law.code
    if (kind, number) == ("publish", 0x0B):  # a server's to send. [MQTT-3.3.4-6]
        return PROTOCOL
    if (kind, number) == ("connect", 0x16):  # data without a method: 3.1.2.11.10
        return PROTOCOL
    return 0


def cases(kind: str) -> Iterator[tuple[int, bytes, int]]:
    for number, row in TABLE.items():
        for raw, value in boundaries(row.kind):
            yield number, bytes([number]) + raw, expected(kind, number, value)


@pytest.mark.rule("MQTT-3.3.2-8", "MQTT-3.3.2-14", "MQTT-3.3.4-6", "MQTT-1.5.4-1", "MQTT-1.5.5-1")
@pytest.mark.parametrize("kind", CLIENT)
def test_codec(kind: str) -> None:
    wrong = []
    for number, properties, want in cases(kind):
        got = of_codec(kind, properties)
        if got != want:
            wrong.append(
                f"0x{number:02X} {properties[:12].hex(' ')}: 0x{got:02X}, not 0x{want:02X}"
            )
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("kind", ["connack", "suback", "unsuback", "publish"])
def test_codec_from_a_server(kind: str) -> None:
    """What a broker may not send is as wrong; only it sends Subscription Identifiers."""
    wrong = []
    for number, row in TABLE.items():
        for raw, value in boundaries(row.kind):
            got = of_codec(kind, bytes([number]) + raw, from_server=True)
            law = BY_NUMBER.get(number)
            if value is None:
                want = MALFORMED
            elif kind not in PLACES[number][1] and (kind, number) != ("publish", 0x0B):
                want = PROTOCOL
            else:
                want = law.code if law is not None and law.is_forbidden(value) else 0
            if got != want:
                wrong.append(f"0x{number:02X} {raw[:12].hex(' ')}: 0x{got:02X}, not 0x{want:02X}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.rule("MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", CLIENT[:-1])
def test_the_broker_says_the_code(kind: str) -> None:
    """In CONNACK before the session, in DISCONNECT after."""
    said = "refused" if kind in ("connect", "will") else "thrown"
    wrong = []
    for number, properties, want in cases(kind):
        if want and len(properties) < 100:
            got = answer(kind, properties)
            if got != (said, want):
                wrong.append(f"0x{number:02X} {properties.hex(' ')}: {got}, not 0x{want:02X}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("kind", CLIENT)
def test_twice(kind: str) -> None:
    """What may stand once is a Protocol Error twice, whatever its value. 2.2.2.2"""
    for number, row in TABLE.items():
        for raw, value in boundaries(row.kind):
            if expected(kind, number, value) == 0 and number != 0x26 and len(raw) < 100:
                properties = (bytes([number]) + raw) * 2
                assert of_codec(kind, properties) == PROTOCOL, properties.hex(" ")


def test_every_law_is_about_a_property_and_has_its_section() -> None:
    assert {law.number for law in LAWS} <= set(TABLE)
    assert all(law.section.startswith("3.") for law in LAWS)

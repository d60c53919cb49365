"""Packets of the kinds that broke decoders of other brokers: docs/SECURITY.md names the faults."""

from __future__ import annotations

import sys
from inspect import isdatadescriptor
from types import FrameType
from typing import Any, Final, Self

import pytest

from mqtt_broker.codec.constants import V5, V31, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.strings import encode_varint

PROPERTIES: Final = bytes.fromhex("26 0001 6b 0001 76")  # k: v
# Bodies of packets that a client sends, by the first byte; MQTT 5's have properties where they may.
BODIES_3: Final = (
    (0x30, "0001 74 70"), (0x32, "0001 74 0007 70"), (0x3D, "0001 74 0007 70"), (0x40, "0007"),
    (0x50, "0007"), (0x62, "0007"), (0x70, "0007"), (0x82, "0007 0001 61 01 0001 62 02"),
    (0xA2, "0007 0001 61 0001 62"), (0xC0, ""), (0xE0, ""),
)  # fmt: skip
BODIES_5: Final = (
    (0x30, "0001 74 07 P 70"), (0x32, "0001 74 0007 07 P 70"), (0x34, "0001 74 0007 00"),
    (0x30, "0000 0a 230001 P 70"), (0x40, "0007 10 07 P"), (0x50, "0007 00 07 P"),
    (0x62, "0007 92 07 P"), (0x70, "0007 92 07 P"), (0x82, "0007 09 0b05 P 0001 61 2d 0001 62 00"),
    (0xA2, "0007 07 P 0001 61 0001 62"), (0xC0, ""), (0xE0, "04 0c 1100000000 P"),
    (0xF0, "18 0b 15000161 P"),
)  # fmt: skip
CONNECTS: Final = {
    V31: "0006 4d5149736470 03 ce 000a 0001 63 0001 77 0001 70 0001 75 0001 70",
    V311: "0004 4d515454 04 ce 000a 0001 63 0001 77 0001 70 0001 75 0001 70",
    V5: "0004 4d515454 05 ce 000a 0c 1100000001 P 0001 63 0c 1800000001 P 0001 77 0001 70 0001 75 "
    "0001 70",
}
PINGREQ: Final = b"\xc0\x00"


def body(text: str) -> bytes:
    return bytes.fromhex(text.replace("P", PROPERTIES.hex()))


def packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + encode_varint(len(content)) + content


def decoded(version: int, wire: bytes) -> list[str]:
    """What a decoder makes of it, in words that say all of it."""
    return [described(one) for one in Decoder(version=version).feed(wire)]


def described(found: Any) -> str:
    if isinstance(found, Violation):
        return f"violation {found.reason} {found.rule}"
    names = [name for name, one in vars(type(found)).items() if isdatadescriptor(one)]
    fields = {name: getattr(found, name) for name in sorted(names) if name != "raw"}
    raw = found.raw.hex() if hasattr(found, "raw") else ""
    return f"{type(found).__name__} {fields} {raw}"


def every_packet() -> list[tuple[int, int, str]]:
    found = [(0, 0x10, CONNECTS[version]) for version in (V31, V311, V5)]
    found += [(version, *one) for version in (V31, V311) for one in BODIES_3]
    return [*found, *[(V5, *one) for one in BODIES_5]]


@pytest.mark.parametrize(("version", "first", "text"), every_packet())
def test_the_examples_are_packets(version: int, first: int, text: str) -> None:
    wire = packet(first, body(text))
    found = Decoder(version=version).feed(wire + (PINGREQ if version else b""))
    assert not any(isinstance(one, Violation) for one in found), described(found[-1])


@pytest.mark.parametrize(("version", "first", "text"), every_packet())
def test_a_packet_that_ends_early_reads_nothing_of_what_follows(
    version: int, first: int, text: str
) -> None:
    """Before its id, its options byte, its properties, anywhere: its length is what counts."""
    whole = body(text)
    for end in range(len(whole)):
        wire = packet(first, whole[:end])
        alone = decoded(version, wire)
        assert len(alone) == 1, "a packet, or a violation; never a wait"
        for behind in (whole[end:], b"\xff" * 40, b"\x00" * 40, PINGREQ * 20):
            assert decoded(version, wire + behind)[:1] == alone or is_run(alone, wire, behind)


def is_run(alone: list[str], wire: bytes, behind: bytes) -> bool:
    """A run of equal acknowledgements is one object: what follows may join it whole."""
    return alone[0].startswith("Ack") and behind.startswith(wire[:2])


FIVE: Final = (b"\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x00")
LONG: Final = (b"\x80\x00", b"\x81\x80\x00", b"\x8a\x80\x80\x00")
PLACES: Final = {
    "remaining length": (0xC0, "", ""),
    "length of properties": (0x82, "0007", "0001 61 00"),
    "length of CONNECT's properties": (0x10, "0004 4d515454 05 02 0000", "0001 63"),
    "length of a will's properties": (0x10, "0004 4d515454 05 06 0000 00 0001 63", "0001 77 0000"),
    "subscription identifier": (0x82, "0007 LENGTH 0b", "0001 61 00"),
    "number of a property": (0x82, "0007 LENGTH", "0000 0001 61 00"),
}


@pytest.mark.parametrize("number", [*FIVE, *LONG], ids=lambda raw: raw.hex())
@pytest.mark.parametrize("place", PLACES)
def test_integers_of_five_bytes_and_longer_than_they_need_be(place: str, number: bytes) -> None:
    first, before, after = PLACES[place]
    version = 0 if first == 0x10 else V5
    if place == "remaining length":
        wire = bytes((first,)) + number
    else:
        length = f"{len(number) + ('0b' in before):02x}"
        wire = packet(first, body(before.replace("LENGTH", length)) + number + body(after))
    for behind in (b"", b"\x00" * 300_000):
        (found,) = Decoder(version=version).feed(wire + behind)
        assert isinstance(found, Violation) and found.reason == 0x81, described(found)


class Steps:
    """Counts the calls of functions, in Python and in C."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *ignored: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


@pytest.mark.parametrize("first", [0x10, 0x30, 0x82, 0xA2, 0xE0, 0xF0, 0x40])
def test_user_properties_cost_in_proportion(first: int) -> None:
    heads = {
        0x10: ("0004 4d515454 05 02 0000", "0001 63"), 0x30: ("0001 74", ""),
        0x82: ("0007", "0001 61 00"), 0xA2: ("0007", "0001 61"), 0xE0: ("00", ""),
        0xF0: ("18", ""), 0x40: ("0007 00", ""),
    }  # fmt: skip
    before, after = heads[first]
    steps = []
    for count in (500, 5_000):
        section = PROPERTIES * count
        content = body(before) + encode_varint(len(section)) + section + body(after)
        wire = packet(first, content)
        decoder = Decoder(version=0 if first == 0x10 else V5)
        with Steps() as counted:
            (found,) = decoder.feed(wire)
        assert len(found.properties.user) == count  # type: ignore[union-attr]
        steps.append(counted.count)
    assert steps[1] < 11 * steps[0] + 100


# Where a packet holds text: TEXT stands for its two length bytes and four bytes of it.
TEXTS: Final = {
    "client id": (0x10, "0004 4d515454 04 02 0000 TEXT"),
    "will topic": (0x10, "0004 4d515454 04 06 0000 0001 63 TEXT 0000"),
    "user name": (0x10, "0004 4d515454 04 82 0000 0001 63 TEXT"),
    "authentication method": (0x10, "0004 4d515454 05 02 0000 07 15 TEXT 0001 63"),
    "content type of a will": (0x10, "0004 4d515454 05 06 0000 00 0001 63 07 03 TEXT 0001 77 0000"),
    "topic": (0x30, "TEXT 00"),
    "response topic": (0x30, "0001 74 07 08 TEXT"),
    "name of a user property": (0x30, "0001 74 0a 26 TEXT 0001 76"),
    "value of a user property": (0x30, "0001 74 0a 26 0001 6b TEXT"),
    "reason string": (0x40, "0007 10 07 1f TEXT"),
    "filter": (0x82, "0007 00 TEXT 00"),
    "second filter": (0xA2, "0007 00 0001 61 TEXT"),
    "reason of leaving": (0xE0, "00 07 1f TEXT"),
}
NO_TEXT: Final = {
    "escape": b"\x1b[2J", "newline": b"a\r\nb", "NUL": b"a\0bc", "delete": b"abc\x7f",
    "C1 control": b"ab\xc2\x9b", "too long a form": b"\xc0\x80ab", "surrogate": b"\xed\xa0\x80a",
    "beyond Unicode": b"\xf4\x90\x80\x80", "cut": b"ab\xe2\x82", "Latin-1": b"caf\xe9",
    "non-character": b"\xef\xbf\xbfa", "another": b"\xef\xb7\x90a",
}  # fmt: skip


@pytest.mark.parametrize("what", NO_TEXT)
@pytest.mark.parametrize("place", TEXTS)
def test_text_that_is_none_is_refused_wherever_it_stands(place: str, what: str) -> None:
    first, text = TEXTS[place]
    version = 0 if first == 0x10 else V5
    wire = {data: packet(first, body(text.replace("TEXT", "0004" + data.hex())))
            for data in (b"abcd", NO_TEXT[what])}  # fmt: skip
    (found,) = Decoder(version=version).feed(wire[b"abcd"])
    assert not isinstance(found, Violation), described(found)
    (found,) = Decoder(version=version).feed(wire[NO_TEXT[what]])
    code = 0x85 if place == "client id" else 0x81  # [MQTT-3.1.3-4]
    assert isinstance(found, Violation) and found.reason == code, described(found)

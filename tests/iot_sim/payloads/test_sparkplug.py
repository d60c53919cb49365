"""Sparkplug payloads against bytes that protobuf's own encoder made of Tahu's schema."""

from __future__ import annotations

import contextlib
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_sim.payloads import sparkplug as spb
from iot_sim.payloads.sparkplug import Metric, Payload, SparkplugError
from tests.property_examples import examples

CHECK = examples(200)

TS: Final = 1_772_668_800_123
BIRTH: Final = bytes.fromhex(
    "08fb98addacb3312120a05626453657118fb98addacb332004580712230a144e6f646520436f6e74"
    "726f6c2f52656269727468100118fb98addacb33200b7000123c0a12496e707574732f54656d7065"
    "726174757265106418fb98addacb33200a4a120a07656e67556e69741207080c4203c2b043690000"
    "00000080354012210a0e537570706c7920566f6c7461676510ac0218fb98addacb33200965cdccc0"
    "4112120a044d6f646510021801200c7a046175746f1800"
)
TYPES: Final = bytes.fromhex(
    "0801120c0a026931200150fbffffff0f120c0a026932200250d4fdffff0f120c0a02693320035090"
    "ddfbff0f12090a026935200550fa01120a0a026936200650ffff03120c0a026937200750ffffffff"
    "0f12110a026c34200458fbffffffffffffffff0112110a026c38200858ffffffffffffffffff0112"
    "0e0a036c3133200d58fb98addacb3312070a016e200a3801120a0a0162201182010200ff"
)
DATA: Final = bytes.fromhex(
    "08e0ecb0dacb331214106418dfecb0dacb33280169000000000000e0bf120c10820118dfecb0dacb33700118ff01"
)
OTHERS: Final = bytes.fromhex(  # a data set, a transient metric, uuid and body
    "0805120f0a0373657420108a01050801120163120a0a0174200c30017a017818032201752a0378797a"
)

BORN: Final = [
    Metric("bdSeq", 7, spb.INT64, None, TS),
    Metric("Node Control/Rebirth", False, spb.BOOLEAN, 1, TS),
    Metric("Inputs/Temperature", 21.5, spb.DOUBLE, 100, TS, properties={"engUnit": "°C"}),
    Metric("Supply Voltage", 24.1, spb.FLOAT, 300, TS),
    Metric("Mode", "auto", spb.STRING, 2, 1),
]
TYPED: Final = [
    Metric("i1", -5, spb.INT8),
    Metric("i2", -300, spb.INT16),
    Metric("i3", -70_000, spb.INT32),
    Metric("i5", 250, spb.UINT8),
    Metric("i6", 65_535, spb.UINT16),
    Metric("i7", 2**32 - 1, spb.UINT32),
    Metric("l4", -5, spb.INT64),
    Metric("l8", 2**64 - 1, spb.UINT64),
    Metric("l13", TS, spb.DATE_TIME),
    Metric("n", None, spb.DOUBLE),
    Metric("b", b"\x00\xff", spb.BYTES),
]


def test_a_birth() -> None:
    assert spb.encode_payload(TS, BORN, 0) == BIRTH
    read = spb.decode_payload(BIRTH)
    assert (read.timestamp, read.seq) == (TS, 0)
    assert read.metrics[3].value == pytest.approx(24.1)
    assert [m for m in read.metrics if m.type != spb.FLOAT] == [
        m for m in BORN if m.type != spb.FLOAT
    ]


def test_every_type_with_its_negative_numbers() -> None:
    assert spb.encode_payload(1, TYPED) == TYPES
    assert spb.decode_payload(TYPES) == Payload(1, TYPED, None)


def test_readings_by_alias() -> None:
    when = spb.encode_varint(1_772_668_859_999)
    readings = [
        spb.encode_reading(spb.encode_varint(100), when, True, spb.DOUBLE, -0.5),
        spb.encode_reading(spb.encode_varint(130), when, False, spb.BOOLEAN, True),
    ]
    assert spb.append_seq(spb.encode_body(1_772_668_860_000, readings), 255) == DATA
    read = spb.decode_payload(DATA)
    assert read.seq == 255
    assert [(m.alias, m.value, m.historical) for m in read.metrics] == [
        (100, -0.5, True),
        (130, True, False),
    ]


def test_what_is_not_written_is_read_all_the_same() -> None:
    read = spb.decode_payload(OTHERS)
    assert read.seq == 3
    assert read.metrics[0].value == bytes.fromhex("0801120163")
    assert read.metrics[1].value == "x"


def test_a_whole_number_without_its_type_stays_as_it_is() -> None:
    """As in data messages: the birth says whether it is signed, and `as_type` applies it."""
    reading = spb.encode_reading(b"\x01", b"\x01", False, spb.INT64, -7)
    value = spb.decode_payload(b"\x08\x01" + reading).metrics[0].value
    assert value == 2**64 - 7
    assert spb.as_type(spb.INT64, value) == -7
    assert spb.as_type(spb.UINT64, value) == value


@pytest.mark.parametrize("raw", [BIRTH, TYPES, DATA, OTHERS], ids="birth types data others".split())
def test_cut_anywhere_it_is_unreadable_or_shorter(raw: bytes) -> None:
    whole = len(spb.decode_payload(raw).metrics)
    for end in range(len(raw)):
        try:
            read = spb.decode_payload(raw[:end])
        except SparkplugError:
            continue
        assert len(read.metrics) <= whole


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("0a00", "field 1 of a payload has wire type 2"),
        ("1203", "field 2 is cut short"),
        ("08ffffffffffffffffffff01", "cut short or too long"),
        ("0b", "wire type 3"),
        ("120210", "field 2 is cut short"),
        ("12030a01ff", "no text"),
        ("12020a", "field 2 is cut short"),
        ("12025800", ""),
        ("120468010203", "field 13 of a metric has wire type 0"),
    ],
)
def test_malformed(raw: str, says: str) -> None:
    if not says:
        assert spb.decode_payload(bytes.fromhex(raw)).metrics[0].value == 0
        return
    with pytest.raises(SparkplugError, match=says):
        spb.decode_payload(bytes.fromhex(raw))


def test_too_many_metrics_and_too_many_bytes() -> None:
    with pytest.raises(SparkplugError, match="more than 10000 metrics"):
        spb.decode_payload(b"\x12\x00" * (spb.METRICS_MAX + 1))
    with pytest.raises(SparkplugError, match="more than 1048576 bytes"):
        spb.decode_payload(bytes(spb.PAYLOAD_BYTES_MAX + 1))


@CHECK
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(SparkplugError):
        spb.decode_payload(raw)


NUMBERS = {
    spb.INT8: st.integers(-(2**7), 2**7 - 1),
    spb.INT16: st.integers(-(2**15), 2**15 - 1),
    spb.INT32: st.integers(-(2**31), 2**31 - 1),
    spb.INT64: st.integers(-(2**63), 2**63 - 1),
    spb.UINT8: st.integers(0, 2**8 - 1),
    spb.UINT32: st.integers(0, 2**32 - 1),
    spb.UINT64: st.integers(0, 2**64 - 1),
    spb.DATE_TIME: st.integers(0, 2**63 - 1),
    spb.DOUBLE: st.floats(allow_nan=False),
    spb.FLOAT: st.floats(allow_nan=False, width=32),
    spb.BOOLEAN: st.booleans(),
    spb.STRING: st.text(st.characters(codec="utf-8"), max_size=40),
    spb.BYTES: st.binary(max_size=40),
}
METRICS = st.sampled_from(sorted(NUMBERS)).flatmap(
    lambda one: st.builds(
        Metric,
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.none() | NUMBERS[one],
        st.just(one),
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.integers(0, 2**64 - 1),
        st.booleans(),
        st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=8), st.just("°C"), max_size=2
        ),
    )
)


@CHECK
@given(st.integers(0, 2**63), st.lists(METRICS, max_size=5), st.none() | st.integers(0, 255))
def test_there_and_back(timestamp: int, metrics: list[Metric], seq: int | None) -> None:
    raw = spb.encode_payload(timestamp, metrics, seq)
    assert spb.decode_payload(raw) == Payload(timestamp, metrics, seq)


def test_a_type_that_is_not_written() -> None:
    with pytest.raises(ValueError, match="data type 16 is not written"):
        spb.encode_metric(Metric("set", b"", 16))

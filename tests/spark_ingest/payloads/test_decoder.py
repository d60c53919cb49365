"""Payloads to columns: what any payload becomes, alone and among others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import cbor2
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from spark_ingest.payloads import decoder
from spark_ingest.payloads.decoder import AUTO, CBOR, JSON, Decoder
from spark_ingest.payloads.schemas import shape_of
from tests.property_examples import examples
from tests.spark_ingest.sent_payloads import SCHEMA, expected, expected_of, payloads

SHAPE: Final = shape_of(SCHEMA)[0]
DECODER: Final = Decoder(SHAPE, JSON)
CBOR_DECODER: Final = Decoder(SHAPE, CBOR)
TOO_DEEP: Final = "more than 256 objects or arrays in each other"
GOOD: Final = b'{"n":1,"t":2.5,"s":"x"}'


def decode(decoder: Decoder, found: list[bytes]) -> tuple[list[Any], list[Any]]:
    values, reasons = decoder.decode(pa.array(found, pa.binary()))
    assert len(values) == len(reasons) == len(found)
    values.validate(full=True)
    reasons.validate(full=True)
    return values.to_pylist(), reasons.to_pylist()


def check(found: list[bytes]) -> None:
    values, reasons = decode(DECODER, found)
    for payload, value, reason in zip(found, values, reasons, strict=True):
        is_good, wanted = expected(payload)
        assert (reason is None) == is_good, (payload, reason)
        assert value == wanted, payload


SOME = st.lists(payloads, min_size=1, max_size=12)


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(SOME)
@example([b'{"n":1}{"n":2}', b'{"n":1}\0}', GOOD])
@example([b"null", GOOD])
@example([b'{"n":9007199254740993,"z":' + b"1" * 5000 + b"}", b'{"n":"x"}'])
@example([GOOD, b'{"n":1}null{"n":2}'])
@example([GOOD] * 200 + [b'{"n":"x"}'] + [GOOD] * 200)
def test_each_payload_is_what_it_is_by_itself(found: list[bytes]) -> None:
    check(found)


@pytest.mark.slow
@examples(1_000, suppress_health_check=[HealthCheck.too_slow])
@given(SOME)
def test_so_are_many_more(found: list[bytes]) -> None:
    check(found)


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(payloads, min_size=1, max_size=6), st.lists(st.integers(0, 2999), min_size=6))
def test_a_few_bad_ones_among_many_are_told_apart(bad: list[bytes], places: list[int]) -> None:
    found = [b'{"n":%d,"t":2.5,"s":"x","l":[1,2]}' % number for number in range(3000)]
    for place, payload in zip(places, bad, strict=False):
        found[place] = payload
    check(found)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "empty"),
        (b"\xff", "no UTF-8"),
        (b'{"n":1', "no JSON: Expecting ',' delimiter at character 6"),
        (b'{"n":1} x', "no JSON: Extra data at character 8"),
        (b'{"n":1}null{"n":2}', "no JSON: Extra data at character 7"),
        (b'{"n":1,"t":NaN}', "no JSON: NaN"),
        (b'{"n":1,"z":-Infinity}', "no JSON: -Infinity"),
        (b"null", "null where an object belongs"),
        (b"[1]", "an array where an object belongs"),
        (b"{}", "n: missing"),
        (b'{"n":null}', "n: null"),
        (b'{"n":"1"}', "n: text where an integer belongs"),
        (b'{"n":true}', "n: true where an integer belongs"),
        (b'{"n":1.5}', "n: a number where an integer belongs"),
        (b'{"n":9223372036854775808}', "n: an integer of more than 64 bits"),
        (b'{"n":1,"t":1e999}', "t: a number out of range"),
        (b'{"n":1,"t":' + b"1" * 5000 + b"}", "t: a number out of range"),
        (b'{"n":1,"s":"\\ud800"}', "s: text with half a surrogate pair"),
        (b'{"n":1,"at":"12:00"}', "at: text that is no RFC 3339 time"),
        (b'{"n":1,"at":12}', "at: a number where a time belongs"),
        (b'{"n":1,"mode":"?"}', "mode: none of the values that it may have"),
        (b'{"n":1,"pos":{"y":1}}', "pos.x: missing"),
        (b'{"n":1,"pos":[]}', "pos: an array where an object belongs"),
        (b'{"n":1,"l":[1,null]}', "l[1]: null"),
        (b'{"n":1,"m":[{"k":"a"},{"k":1}]}', "m[1].k: a number where text belongs"),
        (b'{"n":1,"z":' + b"[" * 257 + b"]" * 257 + b"}", TOO_DEEP),
        (b'{"n":1,"z":' + b"[" * 99_999, TOO_DEEP),
    ],
)
def test_a_reason_says_where_and_why(payload: bytes, reason: str) -> None:
    for among in ([payload], [GOOD, payload, GOOD], [GOOD] * 999 + [payload] + [GOOD] * 999):
        values, reasons = decode(DECODER, among)
        assert reasons[len(among) // 2] == reason
        assert sum(found is not None for found in reasons) == 1
        assert sum(value is None for value in values) == 1


@pytest.mark.parametrize("share", [2, 3, 40, 700])
def test_many_bad_ones_among_many(share: int) -> None:
    bad = [b'{"n":"x"}', b'{"n":', b'{"n":1.0}', b"", b'{"t":NaN}', b"{}{}"]
    check([bad[n // share % 6] if n % share == 0 else b' {"n":%d}\n' % n for n in range(5000)])


def test_what_is_usual_goes_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks around, line feeds inside, any language, half missing: none goes one by one."""
    usual = [
        b'{"n":1,"t":2,"at":"2026-11-18T12:00:00Z"}',
        b' {\n  "n": 1,\n  "m": [{"k": "{"}, {"k": "Inf"}]\n}\r\n',
        '{"n":1,"s":"Zürich \\u00fc 東京 😀 xNaN"}'.encode(),
        b'{"n":-5,"pos":{"x":1e3,"y":null},"l":[],"other":[1,{"a":{}}]}',
    ]
    check(usual * 50)

    def never(payload: bytes) -> Any:
        raise AssertionError(payload)

    monkeypatch.setattr(decoder, "load_json", never)
    values, reasons = decode(DECODER, usual * 5000)
    assert reasons == [None] * 20_000
    assert len(values) == 20_000


def test_longer_payloads_than_can_be_joined() -> None:
    long = b'{"n":1,"s":"%s"}' % (b"x" * (900 << 10))
    huge = b'{"n":2,"s":"%s"}' % (b"x" * (3 << 20))
    values, reasons = decode(DECODER, [long] * 30 + [huge] + [long])
    assert reasons == [None] * 32
    assert [value["n"] for value in values] == [1] * 30 + [2, 1]


def test_slices_and_nothing() -> None:
    found = pa.array([b"x", GOOD, b'{"n":2}', b"y"], pa.binary())
    values, reasons = DECODER.decode(found.slice(1, 2))
    assert [value["n"] for value in values.to_pylist()] == [1, 2]
    assert reasons.to_pylist() == [None, None]
    values, reasons = DECODER.decode(found.slice(0, 0))
    assert len(values) == len(reasons) == 0
    assert values.type == SHAPE.arrow


# Payloads that are no objects.

_TOKENS = st.sampled_from(
    b'1 -2.5 1e3 1e999 01 NaN Infinity null true "x" "" [] [1] {} {"v":1} 1,"v":2 1,"w":2 '
    b'1}\n{"v":2 '
    b'1}null{"v":2 1}{"v":2 } ] , 1\0 \0 \xff [1,2] 1],[2 "a","b" \xef\xbb\xbf1 '.split(b" ")
)


@examples(200)
@given(st.lists(st.lists(_TOKENS, max_size=2).map(b" ".join), min_size=1, max_size=8))
@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": "string"},
                                    {"type": "array", "items": {"type": "integer"}}])  # fmt: skip
def test_values_that_are_no_objects(schema: dict[str, Any], found: list[bytes]) -> None:
    shape, _ = shape_of(schema)
    decoder = Decoder(shape, JSON)
    together = decode(decoder, found)
    alone = [decode(decoder, [payload]) for payload in found]
    assert together == ([v[0] for v, _ in alone], [r[0] for _, r in alone])
    for payload, value, reason in zip(found, *together, strict=True):
        is_good, wanted = expected_of(schema, payload)
        assert (reason is None, value) == (is_good, wanted), payload


# CBOR.

_LEAVES = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.booleans(), st.none(),
    st.binary(max_size=4), st.datetimes(timezones=st.just(UTC)),
)  # fmt: skip
_MAPS = st.dictionaries(
    st.sampled_from(["n", "n", "t", "s", "b", "at", "mode", "pos", "l", "m", "z"]),
    st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.sampled_from(["x", "y", "k", "v"]), inner, max_size=3)),
    max_size=6,
)  # fmt: skip


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(_MAPS.map(cbor2.dumps), st.binary(max_size=20)), min_size=1, max_size=6))
def test_any_bytes_as_cbor(found: list[bytes]) -> None:
    values, reasons = decode(CBOR_DECODER, found)
    for payload, value, reason in zip(found, values, reasons, strict=True):
        assert (value is None) == (reason is not None)
        assert decode(CBOR_DECODER, [payload]) == ([value], [reason])
        if reason is None:
            assert value["n"] == cbor2.loads(payload)["n"]
        else:
            assert "\n" not in reason
            assert len(reason) < 300


def test_cbor_is_typed_as_json_is() -> None:
    at = datetime(2026, 11, 18, 12, 0, 0, 250_000, UTC)
    good = {"n": 1, "t": 2, "s": "ü", "b": False, "at": at, "pos": {"x": 1.5}, "l": [1], "z": None}
    values, reasons = decode(CBOR_DECODER, [cbor2.dumps(good), b"\xd9\xd9\xf7" + cbor2.dumps(good)])
    assert reasons == [None, None]
    assert values[0] == values[1]
    assert values[0]["at"] == at
    assert (values[0]["t"], values[0]["pos"]) == (2.0, {"x": 1.5, "y": None})
    for wrong, reason in (
        ({"n": "1"}, "n: text where an integer belongs"),
        ({"n": 1, "t": float("nan")}, "t: not a number"),
        ({"n": 1, "s": b"x"}, "s: bytes where text belongs"),
        ({"n": 1 << 64}, "n: an integer of more than 64 bits"),
        ({"n": 1, "at": 5}, "at: a number where a time belongs"),
        ({1: 1}, "no CBOR: error decoding map: map key must be a text string or byte string"),
    ):
        assert decode(CBOR_DECODER, [cbor2.dumps(wrong)])[1][0].startswith(reason)


@pytest.mark.parametrize(
    "payload",
    [
        cbor2.dumps({"n": 1}) + b"\0",  # something behind it
        cbor2.dumps({"n": 1})[:-1],
        b"\xa1\x61n\xc4\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01",  # a number of any length
        b"\xa1\x61n\xc5\x82\x1b\x00\x00\x00\x7f\xff\xff\xff\xff\x01",
        b"\xa1\x61n\xd8\x1c\x81\xd8\x1d\x00",  # an array that has itself
        b"\xa1\x61n\xd8\x23\x63(a+",  # a pattern
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",  # more elements than memory
        b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x81" * 100_000,
        b"\xff",
        b"\xa1\x61n\xc1\x1b\x7f\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_cbor_that_means_harm_is_a_reason(payload: bytes) -> None:
    [value], [reason] = decode(CBOR_DECODER, [payload])
    assert value is None
    assert reason


def test_json_and_cbor_are_told_apart() -> None:
    decoder = Decoder(SHAPE, AUTO)
    found = [cbor2.dumps({"n": n}) if n % 3 else b'{"n":%d}' % n for n in range(100)]
    found += [b"", b"\xff", b"x"]
    values, reasons = decode(decoder, found)
    assert [value["n"] for value in values[:100]] == list(range(100))
    assert reasons[:100] == [None] * 100
    assert reasons[100:] == ["empty", "no UTF-8", "no JSON: Expecting value at character 0"]
    with pytest.raises(ValueError, match="first byte of an object"):
        Decoder(shape_of({"type": "number"})[0], AUTO)

"""Reports and documents as JSON, CBOR and templates; commands back from bytes."""

from __future__ import annotations

import json
from typing import Any, Final

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_sim.payloads.layouts import (
    CBOR,
    DOCUMENT_BYTES_MAX,
    JSON,
    TEMPLATE,
    CborLayout,
    JsonLayout,
    PayloadError,
    make_layout,
    read_json,
)
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, STRING, Field
from iot_sim.payloads.templates import TEMPLATE_CHARS_MAX, Template, TemplateError
from tests.property_examples import examples

CHECK = examples(150)

NUMBERS: Final = (
    Field("temperature", DOUBLE, nullable=True),
    Field("count", LONG, nullable=True),
    Field("fine", DOUBLE, digits=6),
)
MIXED: Final = (
    *NUMBERS,
    Field("state", STRING, nullable=True),
    Field("on", BOOLEAN, nullable=True),
)
TS: Final = 1_772_668_800_123


@pytest.mark.parametrize("name", ["a", 'quote"', "100%", "%d%s", "ü\n", ',"seq":'])
@pytest.mark.parametrize("values", [(21.504, 7.9, 0.1), (None, None, -0.0)])
def test_json_of_numbers(name: str, values: tuple[float | None, ...]) -> None:
    raw = JsonLayout(name, NUMBERS).report(3, TS, values)
    temperature, count, fine = values
    assert json.loads(raw) == {
        "id": name,
        "seq": 3,
        "ts": TS,
        "temperature": None if temperature is None else 21.5,
        "count": None if count is None else 7,
        "fine": fine,
    }
    assert b" " not in raw


@CHECK
@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=10),
    st.tuples(
        st.none() | st.floats(-1e9, 1e9),
        st.none() | st.integers(-(2**60), 2**60),
        st.floats(-1e3, 1e3),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=10),
        st.none() | st.booleans(),
    ),
)
def test_both_formats_say_the_same(name: str, values: tuple[Any, ...]) -> None:
    said = json.loads(JsonLayout(name, MIXED).report(1, TS, values))
    packed = cbor2.loads(CborLayout(name, MIXED).report(1, TS, values))
    assert list(said) == list(packed) == ["id", "seq", "ts", *(field.name for field in MIXED)]
    for key, value in packed.items():
        if isinstance(value, float):  # one rounds the decimal digits, the other the number
            assert said[key] == pytest.approx(value, abs=0.011)
        else:
            assert said[key] == value


def test_digits_and_length() -> None:
    layout = JsonLayout("d", NUMBERS)
    assert layout.report(1, 2, (1.0, 2, 3.0)) == (
        b'{"id":"d","seq":1,"ts":2,"temperature":1.00,"count":2,"fine":3.000000}'
    )
    assert layout.report(1, 2, (1.0, None, 3.0)) == (
        b'{"id":"d","seq":1,"ts":2,"temperature":1.00,"count":null,"fine":3.000000}'
    )


@pytest.mark.parametrize("layout", [JSON, CBOR])
def test_what_is_not_finite_is_our_mistake_and_not_sent(layout: str) -> None:
    document = make_layout(layout, "d", NUMBERS, None).document
    if layout == JSON:
        with pytest.raises(ValueError, match="not JSON compliant"):
            document({"value": float("nan")})
    else:
        assert document({"value": 1.5})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": NaN}', "not JSON: NaN"),
        (b'{"a": -Infinity}', "not JSON: -Infinity"),
        (b"[" * 50_000, "not JSON"),
        (b" " * (DOCUMENT_BYTES_MAX + 1), "more than 65536 bytes"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_json_that_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(PayloadError, match=says):
        read_json(raw)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\xff", "not CBOR"),
        (b"\x81\x01", "not a CBOR map"),
        (b"\xa1\x01\x02", "not a CBOR map with text keys"),
        (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", "not CBOR"),
        (b"\x81" * 60_000, "not CBOR"),
        (bytes(DOCUMENT_BYTES_MAX + 1), "more than 65536 bytes"),
    ],
)
def test_cbor_that_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(PayloadError, match=says):
        CborLayout.read(raw)


@pytest.mark.parametrize("layout", [JSON, CBOR])
def test_documents_there_and_back(layout: str) -> None:
    one = make_layout(layout, "d", MIXED, None)
    content = {"interval_s": 2.5, "text": "ü", "none": None, "list": [1, True]}
    assert one.read(one.document(content)) == content
    assert one.read(b"") == {}


# Templates.


def fill(text: str, values: tuple[Any, ...] = (21.504, 7, 0.5, "run", True), seq: int = 42) -> str:
    return Template(text, MIXED, {"id": "dev-1", "odd": "100%{}"}).fill(seq, TS, values)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("plain % text", "plain % text"),
        ("{seq},{id}", "42,dev-1"),
        ("{odd}{seq:06d}", "100%{}000042"),
        ("{time} {time_ms}", "1772668800.123 1772668800123"),
        ("{time_iso}", "2026-03-05T00:00:00.123+00:00"),
        ("{signal.temperature}", "21.50"),
        ("{signal.temperature:8.1f}|{signal.temperature:g}", "    21.5|21.504"),
        ("{signal.count} {signal.count:04x}", "7 0007"),
        ("{signal.state:5s}|{signal.on}", "run  |true"),
        ('{{"v":{signal.fine}}}', '{"v":0.500000}'),
        ("{{{seq}}}", "{42}"),
    ],
)
def test_templates(text: str, filled: str) -> None:
    assert fill(text) == filled


def test_values_that_are_missing_and_floats_for_whole_numbers() -> None:
    text = "{signal.temperature:.1f} {signal.count:d} {signal.state} {signal.on}"
    assert fill(text, (None, None, 0.0, None, None)) == "null null null null"
    assert fill(text, (1.0, 7.9, 0.0, "x", False)) == "1.0 7 x false"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "single { at character 1; write {{"),
        ("a}", "single } at character 2; write }}"),
        ("{sq}", "unknown name {sq}; expected one of id, odd, seq, signal.count"),
        ("{temperature}", "unknown name {temperature}; expected one of"),
        ("{}", "unknown name {}; expected one of"),
        ("{seq.__class__}", "unknown name {seq.__class__}"),
        ("{signal.temperature[0]}", "unknown name {signal.temperature"),
        ("{seq!r}", "unknown name {seq!r}"),
        ("{id:>10}", "unknown name {id}; "),
        ("{seq:999999999d}", "a format has a width, digits and one of d f e g x s"),
        ("{seq:.999f}", "a format has a width"),
        ("{signal.temperature:d}", "'d' is not a format for the double signal.temperature"),
        ("{signal.state:.1f}", "'.1f' is not a format for the string signal.state"),
        ("{signal.on:05s}", "'05s' is not a format for the boolean signal.on"),
        ("{seq:s}", "'s' is not a format for the long seq"),
        ("{seq:.2d}", "'.2d' is not a format for the long seq"),
        ("{{seq}", "single }"),
        ("x" * (TEMPLATE_CHARS_MAX + 1), "at most 65536 characters"),
    ],
)
def test_templates_that_cannot_be_filled(text: str, says: str) -> None:
    with pytest.raises(TemplateError) as found:
        fill(text)
    assert says in str(found.value)
    assert "\n" not in str(found.value)


NAMES = ["seq", "time", "time_ms", "time_iso", "id", *(f"signal.{f.name}" for f in MIXED)]
FORMS = st.text("0123456789.dfegxs", max_size=5)


@CHECK
@given(st.lists(st.tuples(st.sampled_from(NAMES), FORMS), max_size=4))
def test_what_is_accepted_can_be_filled(parts: list[tuple[str, str]]) -> None:
    text = "".join(f"{{{name}:{form}}}" if form else f"{{{name}}}" for name, form in parts)
    try:
        template = Template(text, MIXED, {"id": "dev-1"})
    except TemplateError:
        return
    template.fill(1, TS, (1.5, 2, 3.0, "s", True))
    template.fill(1, TS, (None, None, 3.0, None, None))


def test_a_layout_for_every_format() -> None:
    assert make_layout(JSON, "d", MIXED, None).content_type == "application/json"
    assert make_layout(CBOR, "d", MIXED, None).content_type == "application/cbor"
    layout = make_layout(TEMPLATE, "d", MIXED, Template("{seq}", MIXED, {}))
    assert layout.content_type == "text/plain"
    assert layout.document_type == "application/json"
    assert layout.report(5, TS, (1.0, 2, 3.0, "s", True)) == b"5"

"""Payloads as devices, and those who mean harm, send them; and what has to come of each.

`expected` is the oracle: written apart from the product, with `json.loads` and a walk, slow and
plain.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "t": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "mode": {"enum": ["on", "off", "auto"]},
        "pos": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": ["number", "null"]}},
            "required": ["x"],
        },
        "l": {"type": "array", "items": {"type": "number"}},
        "m": {
            "type": "array",
            "items": {
                "type": ["object", "null"],
                "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
                "required": ["k"],
            },
        },
    },
    "required": ["n"],
}
NESTED_MAX: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,30})?)?([Zz]|[+-]\d\d(:?\d\d)?)?", re.ASCII
)


class Refused(Exception):
    pass


def expected(payload: bytes) -> tuple[bool, Any]:
    """(whether it is good, what its value is)."""
    return expected_of(SCHEMA, payload)


def expected_of(schema: Mapping[str, Any], payload: bytes) -> tuple[bool, Any]:
    try:
        found = _loaded(payload)
        if found is None:
            raise Refused("null")
        return True, _value(schema, found)
    except Refused:
        return False, None


def _loaded(payload: bytes) -> Any:
    def refuse(name: str) -> None:
        raise Refused(name)

    try:
        text = payload.decode()
        found = json.loads(text, parse_constant=refuse, parse_int=_integer_or_huge)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise Refused("no JSON") from None
    if _depth(found) > NESTED_MAX:
        raise Refused("deep")
    return found


def _integer_or_huge(digits: str) -> float:
    return int(digits) if len(digits) < 1000 else math.inf * (-1 if digits[0] == "-" else 1)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _object(schema: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Refused("no object")
    found: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        inner = value.get(name)
        if inner is None:
            if name in schema.get("required", ()):
                raise Refused(name)
            found[name] = None
        else:
            found[name] = _value(part, inner)
    return found


def _value(schema: Mapping[str, Any], value: Any) -> Any:
    kind = schema.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind == "object":
        return _object(schema, value)
    if kind == "array":
        if type(value) is not list:
            raise Refused("no array")
        items = schema["items"]
        may_be_null = isinstance(items["type"], list)
        if not may_be_null and None in value:
            raise Refused("null in an array")
        return [None if inner is None else _value(items, inner) for inner in value]
    if kind in ("integer", "number"):
        return _number(kind, value)
    if kind == "boolean":
        if type(value) is not bool:
            raise Refused("no boolean")
        return value
    return _text(schema, value)


def _number(kind: str, value: Any) -> Any:
    if type(value) not in (int, float):
        raise Refused("no number")
    if kind == "number":
        try:
            value = float(value)
        except OverflowError:
            raise Refused("large") from None
        if not math.isfinite(value):
            raise Refused("not finite")
        return value
    if type(value) is float:
        if not value.is_integer() or abs(value) > 2**53:
            raise Refused("no integer")
        value = int(value)
    if not -(2**63) <= value < 2**63:
        raise Refused("large")
    return value


def _text(schema: Mapping[str, Any], value: Any) -> Any:
    if type(value) is not str:
        raise Refused("no text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Refused("surrogate")
    if schema.get("format") == "date-time":
        return _moment(value)
    if "enum" in schema and value not in schema["enum"]:
        raise Refused("none of these")
    return value


def _moment(text: str) -> datetime:
    if not _TIME.fullmatch(text):
        raise Refused("no time")
    text = text.upper().replace(" ", "T")
    found = re.fullmatch(r"([^T]+T[\d:]+)(\.\d+)?(Z|[+-].*)?", text)
    assert found is not None
    clock, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(clock + (zone or "Z"))
        since = moment - _EPOCH + timedelta(microseconds=int(((fraction or ".") + "000000")[1:7]))
        return _EPOCH + since
    except (ValueError, OverflowError):
        raise Refused("no time") from None


# What is sent. Texts are put together by hand: a JSON library makes nothing wrong.

_NUMBERS: Final = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(lambda value: json.dumps(value)),
    st.sampled_from(
        "0 -0 1.0 -1.0 1e2 1E400 -1e400 1e-400 01 1. .5 +1 - 1e 0x10 NaN Infinity -Infinity Inf "
        "-Inf -NaN nan 9007199254740993 9007199254740993.0 9223372036854775807 "
        "9223372036854775808 -9223372036854775808 1e18 1e19 0.1e1 4.9e-324 1.7976931348623159e308 "
        "123456789012345678901234567890".split()
    ),
    st.sampled_from([400, 5000]).map(lambda digits: "1" * digits),
)
_WORDS: Final = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        [
            '"on"', '"off"', '"Inf"', '"NaN"', '":NaN"', '"}x"', '"a}b"', '"\\ud800"', '"\\udc00"',
            '"\\ud83d\\ude00"', '"\\u0000"', '"a\nb"', '"a\tb"', '"\\x"', '"', '"open', "'a'",
            '"\ufeff"', '"{"', '"}"', '"},{"', '"\\"', '"\\\\"',
        ]
    ),
)  # fmt: skip
_MOMENTS: Final = st.one_of(
    st.datetimes().map(lambda at: f'"{at.isoformat()}Z"'),
    st.sampled_from(
        [
            "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.123456789Z", "2020-01-01T00:00Z",
            "2020-01-01", "2020-01-01T00:00:00", "2020-01-01 00:00:00+01:00", "0000-01-01T00:00Z",
            "2020-01-01T00:00:00+0100", "2020-01-01T00:00:00+01", "2020-02-30T00:00:00Z",
            "2020-01-01T24:00:00Z", "2020-01-01T23:59:60Z", "9999-12-31T23:59:59.999999-23:59",
            "0001-01-01T00:00:00+23:59", "2020-01-01t00:00:00z", "yesterday", "", "1577836800",
            "2020-01-01T00:00:00.5", "2020-01-01T00:00.5Z", "2020-01-01T00:00:00+24:00",
            "2020-W01-1T00:00:00Z", "20200101T000000Z", "2020-01-01T00:00:00 Z", "+2020-01-01T00Z",
        ]
    ).map(json.dumps),
)  # fmt: skip
_LITERALS: Final = st.sampled_from(["true", "false", "null", "nul", "True", "undefined", "", " "])
_SCALARS: Final = st.one_of(_NUMBERS, _WORDS, _MOMENTS, _LITERALS)
_KEYS: Final = st.sampled_from(
    ["n", "n", "n", "t", "s", "b", "at", "mode", "pos", "l", "m", "x", "y", "k", "v", "z",
     "\\u006e", "", "N", "unknown"]
)  # fmt: skip
_BLANKS: Final = st.sampled_from(["", "", "", " ", "\n", "\r\n\t", "\f", "\0"])


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.builds(lambda key, value: f'"{key}":{value}', _KEYS, inner)
    return st.lists(member, max_size=6).map(lambda members: "{" + ",".join(members) + "}")


def _arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=4).map(lambda elements: "[" + ",".join(elements) + "]")


_TREES: Final = st.recursive(_SCALARS, lambda inner: _objects(inner) | _arrays(inner), max_leaves=8)
_OF_TYPE: Final = {
    "n": st.integers(-(2**63), 2**63 - 1).map(str),
    "t": st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    "s": st.text(max_size=8).map(json.dumps),
    "b": st.sampled_from(["true", "false"]),
    "at": st.just('"2020-01-01T00:00:00.5Z"'),
    "mode": st.just('"off"'),
    "pos": st.sampled_from(['{"x":1}', '{"x":1.5,"y":null,"z":{}}', '{"y":1}', "null"]),
    "l": st.sampled_from(["[]", "[1,2.5]", "[1,null]", "null"]),
    "m": st.sampled_from(["[]", '[{"k":"a","v":1},null]', '[{"v":1}]', '[{"k":"a"},{"k":"b"}]']),
}


@st.composite
def right(draw: st.DrawFn) -> str:
    """Mostly what the schema says."""
    names = draw(st.lists(st.sampled_from(list(_OF_TYPE)), unique=True, max_size=9))
    members = [f'"{name}":{draw(_OF_TYPE[name])}' for name in names]
    if "n" not in names and draw(st.integers(0, 9)):
        members.append(f'"n":{draw(_OF_TYPE["n"])}')
    return "{" + ",".join(members) + "}"


_HARM: Final = st.sampled_from(
    [
        b"", b"null", b"[]", b"{", b"}", b'{"n":1}{"n":2}', b'{"n":1}\n{"n":2}', b'{"n":1},{"n":2}',
        b'{"n":1}null{"n":2}', b'{"n":1} null}', b'{"n":1}[1]{"n":2}', b'{"n":1}\0{"n":2}',
        b'{"n":1}\0}', b'{"n":1},"w":{"b":2}', b'{"n":1,"z":"\xff"}', b'{"s":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"n":1}', b'{"n":1}//{}', b'{"n":1,"n":2}', b'{"n":1,"n":null}',
        b'{"n":1,"z":{"n":"x"}}', b'{"n":1,"z":NaN}', b'{"n":1,"t":NaN}', b'{"n":1,"s":":NaN"}',
        b'{"z":' + b"[" * 300 + b"]" * 300 + b',"n":1}', b"[" * 9000, b'{"a":' * 3000 + b"}" * 3000,
        b'{"n":1,"z":' + b"[" * 200 + b"]" * 200 + b"}", b'{"n":1,"s":"' + b"[" * 600 + b'"}',
        b'{"n":1,"z":' + b"[[],[[]]," * 300 + b"1" + b"]" * 300 + b"}",
        b' {"n":1} ', b'{"n":1}\x0b', b'{"n":1}}', b'{"n":1}]', b'{"n": 1', b"\xff\xfe", b"{\xff}",
        b'{"n":1}"x"}', b'{"n":1}true}', b'{"n":1}5}', b'{"n":1}{', b'{"n":1}{}', b"{}{}", b"{}",
        b'\xa1\x61n\x01', b'{"n":1}' * 3,
    ]
)  # fmt: skip


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(right()).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.integers(0, 3))
        if what == 0:
            del data[at : at + draw(st.integers(1, 4))]
        elif what == 1:
            piece = draw(
                st.sampled_from(b'{ } [ ] , : " \\ \n \0 \xff } null 1 "n":1, }{ },{'.split(b" "))
            )
            data[at:at] = piece
        elif what == 2 and at < len(data):
            data[at] = draw(st.integers(0, 255))
        else:
            data[at:] = b""
    return bytes(data)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


payloads: Final = st.one_of(
    right().map(_encoded),
    right().map(_encoded),
    st.builds(lambda a, b, c: _encoded(a + b + c), _BLANKS, right(), _BLANKS),
    st.builds(lambda a, b, c: _encoded(a + b + c), _BLANKS, _objects(_TREES), _BLANKS),
    _TREES.map(_encoded),
    _mutated(),
    _HARM,
    st.binary(max_size=12),
)

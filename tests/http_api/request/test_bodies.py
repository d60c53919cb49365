"""Bodies and query strings: every key is known, every value is checked, each mistake is a 400."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.http_api.request.bodies import (
    NUMBER_MAX,
    Query,
    check_keys,
    checked_settings,
    read_object,
)
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.problems import Problem
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.stream_settings import StreamSettings
from tests.property_examples import examples

CHECK = examples()


def body(read: Callable[[], Awaitable[bytes]], **limits: Any) -> dict[str, Any]:
    class Request:
        async def read(self) -> bytes:
            return await read()

    request: Any = Request()
    return asyncio.run(read_object(request, HttpLimits(**limits)))


def body_of(data: bytes, **limits: Any) -> dict[str, Any]:
    async def read() -> bytes:
        return data

    return body(read, **limits)


def query(text: str, *known: str) -> Query:
    return Query(make_mocked_request("GET", f"/x?{text}"), *known)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(Problem) as problem:
        act()
    assert (problem.value.status, problem.value.error) == (400, "BadRequest")
    assert "\n" not in str(problem.value)
    return str(problem.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)  # fmt: skip


@CHECK
@given(VALUES.filter(lambda value: value not in (float("inf"), float("-inf"))))
def test_an_object_comes_as_it_is_and_nothing_else_does(value: Any) -> None:
    data = json.dumps(value).encode()
    if "Infinity" in data.decode():
        assert "not JSON" in refused(lambda: body_of(data))
    elif isinstance(value, dict):
        assert body_of(data) == value
    else:
        assert "not a JSON object" in refused(lambda: body_of(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "not JSON"), (b"\xff", "not JSON"), (b'{"a": NaN}', "not JSON"),
        (b'{"a": -Infinity}', "not JSON"), (b"[" * 100_000, "not JSON"),
        (b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", ""),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "more than 100 levels"),
        (b"[]", "not a JSON object"), (b"null", "not a JSON object"),
    ],
)  # fmt: skip
def test_what_is_no_body(data: bytes, why: str) -> None:
    if why:
        assert why in refused(lambda: body_of(data))
    else:
        assert body_of(data).keys() == {"a"}


def test_no_body_is_an_empty_object() -> None:
    assert body_of(b"") == {}


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        (web.HTTPRequestEntityTooLarge(100, 200), 413, "larger than 70 bytes"),
        (web.RequestPayloadError("cut"), 400, "cannot be read: cut"),
    ],
)
def test_what_goes_wrong_on_the_way(error: Exception, status: int, why: str) -> None:
    async def read() -> bytes:
        raise error

    with pytest.raises(Problem, match=why) as problem:
        body(read, body_bytes_max=70)
    assert problem.value.status == status


def test_a_body_that_does_not_come_in_time() -> None:
    async def read() -> bytes:
        await asyncio.Event().wait()
        return b"{}"

    with pytest.raises(Problem, match="within 0") as problem:
        body(read, body_s=0.01)
    assert problem.value.status == 408


def test_unknown_keys_are_named_with_those_there_are() -> None:
    check_keys({"b": 1}, ("b", "a"))
    assert refused(lambda: check_keys({"c": 1}, ("b", "a"))) == "unknown key 'c': expected a, b"
    assert "expected nothing" in refused(lambda: check_keys({"c": 1}, ()))
    assert len(refused(lambda: check_keys({"x" * 9_000: 1}, ("a",)))) < 150


# Settings of a stream.

GOOD: dict[str, Any] = {"str": "x", "int": 5, "bool": True}
KINDS = {field.name: str(field.type) for field in fields(StreamSettings) if field.name != "epoch"}


@pytest.mark.parametrize("key", sorted(KINDS))
def test_each_setting_takes_its_own_type_alone(key: str) -> None:
    if key == "schema":
        for good in (None, {}, {"type": "object"}):
            assert checked_settings({key: good}) == {key: good}
        for bad in ("{}", list[str](), 1, True):
            with pytest.raises(Invalid, match="must be a JSON object"):
                checked_settings({key: bad})
        return
    for kind, value in GOOD.items():
        if kind == KINDS[key]:
            assert checked_settings({key: value}) == {key: value}
        else:
            with pytest.raises(Invalid, match="is not"):
                checked_settings({key: value})
    for value in (None, 1.5, [], {}):
        with pytest.raises(Invalid, match="is not"):
            checked_settings({key: value})


def test_numbers_that_no_file_could_hold_are_too_large() -> None:
    (key, *_) = [key for key, kind in KINDS.items() if kind == "int"]
    for good in (NUMBER_MAX, -NUMBER_MAX, 0):
        assert checked_settings({key: good}) == {key: good}
    for bad in (NUMBER_MAX + 1, -NUMBER_MAX - 1):
        with pytest.raises(Invalid, match="too large"):
            checked_settings({key: bad})


@pytest.mark.parametrize("key", ["epoch", "nothing", "x" * 9_000])
def test_what_is_no_setting(key: str) -> None:
    with pytest.raises(Invalid, match="unknown setting: expected one of ") as error:
        checked_settings({key: "x"})
    assert "epoch" not in str(error.value).partition("expected")[2]
    assert len(str(error.value)) < 600


# Query strings.


def test_parameters_are_known_and_given_once() -> None:
    assert query("a=1&b=x", "a", "b").text("b") == "x"
    assert query("", "a").text("a", "none") == "none"
    assert refused(lambda: query("c=1", "b", "a")) == "unknown parameter 'c': expected a, b"
    assert refused(lambda: query("a=1&a=1", "a")) == "a is given twice"


@CHECK
@given(
    st.one_of(st.integers(-5, NUMBER_MAX + 5).map(str), st.text("0123456789+-_. eE", max_size=21))
)
def test_whole_numbers(text: str) -> None:
    found = query("n=" + text.replace("+", "%2B").replace(" ", "%20"), "n")
    if text.isdigit() and len(text) <= 19 and int(text) <= NUMBER_MAX:
        assert found.whole("n") == int(text)
    else:
        assert "expected a whole number of 0 or more" in refused(lambda: found.whole("n"))


def test_the_largest_whole_number() -> None:
    assert query(f"n={NUMBER_MAX}", "n").whole("n") == NUMBER_MAX
    for text in (str(NUMBER_MAX + 1), "0" * 20, "9" * 19):
        refused(lambda text=text: query(f"n={text}", "n").whole("n"))  # type: ignore[misc]


def test_a_whole_number_that_is_missing() -> None:
    assert query("", "n").whole("n", 7) == 7
    assert refused(lambda: query("", "n").whole("n")) == "n is missing"
    assert "²" in refused(lambda: query("n=%C2%B2", "n").whole("n"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0), ("1.5", 1.5), ("30", 30.0), ("30.000000000", 30.0), ("0.000000001", 1e-9),
        ("30.1", None), ("-1", None), ("1e1", None), ("nan", None), ("inf", None), (".5", None),
        ("5.", None), ("", None), ("9" * 10, None), ("1.0000000001", None),
    ],
)  # fmt: skip
def test_seconds(text: str, value: float | None) -> None:
    found = query(f"s={text}", "s")
    if value is None:
        assert "expected a number from 0 to 30" in refused(lambda: found.seconds("s", 30.0))
    else:
        assert found.seconds("s", 30.0) == value


def test_seconds_that_are_missing_are_none() -> None:
    assert query("", "s").seconds("s", 30.0) == 0.0

"""Arguments of commands: numbers within limits, texts that fit into a response, or a refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_sim.devices.commands import (
    COMMON,
    RESPONSE_FIELDS,
    TEXT_CHARS_MAX,
    CommandRefused,
    CommandResult,
    number,
    text,
)


@given(st.floats(allow_nan=True) | st.integers(-(10**400), 10**400), st.booleans())
def test_a_number_is_taken_within_its_limits_and_nowhere_else(value: float, is_open: bool) -> None:
    low, high = (-math.inf, math.inf) if is_open else (-5.0, 5.0)
    try:
        is_good = low <= float(value) <= high and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        is_good = False
    if is_good:
        found = number({"x": value}, "x", low, high)
        assert found == float(value) and isinstance(found, float)
    else:
        with pytest.raises(CommandRefused, match="x must be "):
            number({"x": value}, "x", low, high)


@pytest.mark.parametrize("value", [None, True, "5", [5], {"a": 1}, b"5"])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(CommandRefused, match="x must be a number, not"):
        number({"x": value}, "x", 0.0, 10.0)
    with pytest.raises(CommandRefused, match="x must be a number, not None"):
        number({}, "x", 0.0, 10.0)


def test_a_refusal_is_short_whatever_was_sent() -> None:
    with pytest.raises(CommandRefused) as refused:
        number({"x": "y" * 100_000}, "x", 0.0, 10.0)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("value", ["a", "ä b", "x" * TEXT_CHARS_MAX, "2.0.0"])
def test_texts(value: str) -> None:
    assert text({"version": value}, "version") == value


@pytest.mark.parametrize(
    "value", ["", "x" * (TEXT_CHARS_MAX + 1), "a\n", "a\0", "\x1b[2J", None, 5]
)
def test_what_is_no_text(value: Any) -> None:
    with pytest.raises(CommandRefused, match="version must be a string of 1 to 64 printable"):
        text({"version": value}, "version")
    with pytest.raises(CommandRefused, match="version must be"):
        text({}, "version")


def test_results_do_not_share_their_publications() -> None:
    one, two = CommandResult(), CommandResult()
    assert (one.value, one.text, one.publications) == (None, None, [])
    assert one.publications is not two.publications


def test_what_every_model_takes_and_answers() -> None:
    assert set(COMMON) == {"ping", "set_interval", "reboot", "firmware"}
    assert [field.name for field in RESPONSE_FIELDS][:5] == ["id", "ts", "command", "ok", "error"]

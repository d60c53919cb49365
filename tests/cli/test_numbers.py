"""Numbers of the command line: within limits, or an error that names the value and the limits."""

from __future__ import annotations

import argparse

import pytest

from mqtt_broker.cli.numbers import real, whole

COUNT = whole(1, 64, "a number from 1 to 64")
SPAN = real(0.5, 60.0, "a number of seconds from 0.5 to 60")


@pytest.mark.parametrize("text", ["1", "64", " 7 ", "+3", "1_0"])
def test_a_whole_number(text: str) -> None:
    assert COUNT(text) == int(text)


@pytest.mark.parametrize("text", ["0", "65", "-1", "1.5", "", "x", "9" * 5000])
def test_one_that_is_not_within_the_limits(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        COUNT(text)
    assert str(refused.value) == f"{text!r} is not a number from 1 to 64"


@pytest.mark.parametrize("text", ["0.5", "60", "1e1"])
def test_a_number(text: str) -> None:
    assert SPAN(text) == float(text)


@pytest.mark.parametrize("text", ["0.49", "60.1", "nan", "inf", "-inf", "", "x"])
def test_a_number_that_is_not_within_the_limits(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        SPAN(text)
    assert str(refused.value) == f"{text!r} is not a number of seconds from 0.5 to 60"

"""Options of jobs: how texts become values, and the one line that each mistake ends in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_ingest.contract.job import (
    APPEND,
    Job,
    OptionError,
    choice,
    duration,
    names,
    number,
    option,
    optional_duration,
    positive_duration,
    whole,
)

S = 1_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [("0", 0), ("0s", 0), ("500ms", S // 2), ("1s", S), ("1.5s", 3 * S // 2), ("0.000001s", 1),
     ("1m", 60 * S), ("2h", 7_200 * S), ("7d", 7 * 86_400 * S), ("0.1ms", 100)],
)  # fmt: skip
def test_durations(text: str, us: int) -> None:
    assert duration(text) == us
    if us:
        assert positive_duration(text) == optional_duration(text) == us
    else:
        with pytest.raises(ValueError, match="is not longer than nothing"):
            positive_duration(text)


@pytest.mark.parametrize(
    "text",
    ["", "1", "s", "-1s", "1 s", "1e3s", "1S", "1s ", "1.s", ".5s", "1.0000001s", "9" * 10 + "s",
     "1us", "nans", "\uff11s"],
)  # fmt: skip
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration like 500ms, 10s"):
        duration(text)


def test_an_optional_duration_may_be_nothing() -> None:
    assert optional_duration("") is None


@pytest.mark.parametrize(
    ("parse", "good", "bad", "says"),
    [
        (number(0.5, 2), {"0.5": 0.5, "2": 2.0, "1e0": 1.0}, ["0.49", "2.1", "nan", "inf", "x", ""],
         "is not a number from 0.5 to 2"),
        (whole(1, 30), {"1": 1, "30": 30, "007": 7},
         ["0", "31", "-1", "1.0", "", " 1", "²", "\uff11"], "is not a whole number from 1 to 30"),
        (choice("a", "b"), {"a": "a", "b": "b"}, ["", "c", "A", "a "], "is none of a, b"),
        (names, {"": (), "  ": (), "a": ("a",), "a, b.c": ("a", "b.c")}, [",", "a,", "a,,b"],
         "is not a list of names"),
    ],
)  # fmt: skip
def test_other_options(
    parse: Callable[[str], Any], good: dict[str, Any], bad: list[str], says: str
) -> None:
    for text, value in good.items():
        assert parse(text) == value
    for text in bad:
        with pytest.raises(ValueError, match=says):
            parse(text)


@dataclass(frozen=True)
class Settings:
    size_us: int = option("--size", positive_duration, "1m", "how long a window is")
    time: str = option("--time", choice("received", "sent"), "received", "which time counts")


JOB = Job("test", Settings, (), lambda rows, settings, context: rows, lambda settings: APPEND)


def test_settings_are_the_defaults_and_what_was_given() -> None:
    assert JOB.parse({}) == Settings() == Settings(60 * S, "received")
    assert JOB.parse({"size_us": "5s"}) == Settings(5 * S, "received")
    assert JOB.parse({"somebody": "else's"}) == Settings()


def test_a_wrong_option_is_named_by_its_flag() -> None:
    with pytest.raises(OptionError) as error:
        JOB.parse({"size_us": "0"})
    assert str(error.value) == "--size: '0' is not longer than nothing"


def test_columns_that_a_job_does_not_look_at_are_not_read() -> None:
    assert JOB.reads("payload", Settings()) and not JOB.reads("qos", Settings())
    assert not JOB.reads("sent", Settings()) and JOB.reads("sent", Settings(time="sent"))
    always = Job("test", Settings, (), JOB.build, JOB.mode, reads_sent=True)
    assert always.reads("sent", Settings())

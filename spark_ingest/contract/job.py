"""The contract of a job: its options, its outputs, and the function that builds them.

`build` takes the log's rows and gives a frame with one nullable struct column for each output: a
row of the frame belongs to the outputs whose struct is not null. So one query has several results
(windows, what was left out of them, what could not be read), and a sink commits them together.

Options are fields of a dataclass, made by `option`, which checks and converts values of the command
line. Triggers, checkpoints and sinks are in `run.runner`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

UPDATE: Final = "update"  # a row is written again whenever it changes
APPEND: Final = "append"  # a row is written once, when it is final
NONE: Final = "none"
OPTIONAL: Final = "optional"
NEEDED: Final = "needed"
EACH_BATCH: Final = "each batch"  # `build` is called with each micro-batch: it keeps no state

_UNITS: Final = {"ms": 1_000, "s": 10**6, "m": 60 * 10**6, "h": 3_600 * 10**6, "d": 86_400 * 10**6}
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")


class OptionError(ValueError):
    """A wrong option: one line that names it."""

    def __init__(self, flag: str, text: str) -> None:
        super().__init__(f"{flag}: {text}")


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a job: a table, a directory, a kind of message."""

    name: str
    keys: tuple[str, ...]  # the columns of the key
    newer_by: tuple[str, ...] = ()  # a row replaces another only if these are not less


@dataclass(frozen=True, slots=True)
class Context:
    """The resources that a job may use beside its rows."""

    # The device registry as it is now.
    registry: Callable[[SparkSession], DataFrame] | None = None
    # How often the checkpoint reads the log, which cannot change; 0: there is none yet.
    sources: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its name, options and outputs, and the function that builds its frame."""

    name: str
    settings: type[Any]
    outputs: tuple[Output, ...]
    build: Callable[[DataFrame, Any, Context], DataFrame]
    mode: Callable[[Any], str]
    reads_sent: bool = False
    registry: str = NONE  # whether it wants the device registry
    # Which rows the state of a checkpoint still has, and why; nothing if there are none.
    waiting: Callable[[SparkSession, str], str] | None = None
    unread: tuple[str, ...] = ("properties", "qos", "retain")  # columns it does not look at

    def reads(self, column: str, settings: Any) -> bool:
        """Tell whether the job reads a column; `sent` only if asked for: each column costs."""
        if column == "sent" and not self.reads_sent:
            return bool(getattr(settings, "time", "") == "sent")
        return column not in self.unread

    def parse(self, given: Mapping[str, str]) -> Any:
        """Parse settings from texts, by the names of their fields."""
        values = {}
        for one in dataclasses.fields(self.settings):
            text = given.get(one.name)
            if text is not None:
                try:
                    values[one.name] = one.metadata["parse"](text)
                except ValueError as error:
                    raise OptionError(one.metadata["flag"], str(error)) from None
        return self.settings(**values)


def option(flag: str, parse: Callable[[str], Any], default: str, help: str) -> Any:
    """Declare a field of a job's settings: its flag, its parser, its default and its help."""
    about = {"flag": flag, "parse": parse, "help": help, "default": default}
    return field(default=parse(default), metadata=about)


# How options are read.


def duration(text: str) -> int:
    """Parse `500ms`, `10s`, `1m`, `2h` or `7d` to microseconds; 0 needs no unit."""
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration like 500ms, 10s, 1m, 2h or 7d")
    return round(float(found[1]) * _UNITS[found[2]])


def positive_duration(text: str) -> int:
    found = duration(text)
    if not found:
        raise ValueError(f"{text!r} is not longer than nothing")
    return found


def optional_duration(text: str) -> int | None:
    return positive_duration(text) if text else None


def number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = float("nan")
        if not low <= found <= high:
            raise ValueError(f"{text!r} is not a number from {low:g} to {high:g}")
        return found

    return parse


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def names(text: str) -> tuple[str, ...]:
    """Parse names such as `a,b.c`; an empty text has none."""
    found = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if not all(found):
        raise ValueError(f"{text!r} is not a list of names")
    return found

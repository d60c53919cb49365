"""Dead letters: short ASCII texts of whatever a row holds, and times that Python cannot hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa

from spark_ingest.contract.job import Output
from spark_ingest.sinks.dead_letters import (
    TEXT_CHARS_MAX,
    TIME_US_MAX,
    TIME_US_MIN,
    dead_letter,
    rows_of,
    times_outside,
    values_of,
)

OUTPUT = Output("alerts", ("device", "at"))
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3_000)
    | st.binary(max_size=2_000)
    | st.datetimes()
)


@given(st.dictionaries(st.sampled_from(["device", "at", "value", "why"]), VALUES), st.text())
def test_it_can_be_written_anywhere(row: dict[str, Any], reason: str) -> None:
    letter = dead_letter(OUTPUT, row, reason)
    assert letter.output == "alerts"
    for text in letter:
        assert text.isascii() and text.isprintable() and len(text) <= TEXT_CHARS_MAX
    for text, names in ((letter.keys, {"device", "at"}), (letter.row, set(row))):
        found = json.loads(text)  # cut inside its texts, never between them
        assert found.keys() == row.keys() & names
        for name, value in found.items():
            if isinstance(row[name], int) or row[name] is None:
                assert value == row[name]


def test_small_rows_are_there_as_they_are() -> None:
    row = {"device": "d1", "at": 5, "value": float("nan"), "raw": b"\x01\xff", "ok": True}
    letter = dead_letter(OUTPUT, row, "  no\n room  ä")
    assert json.loads(letter.keys) == {"device": "d1", "at": 5}
    assert json.loads(letter.row) == {**row, "value": "nan", "raw": "01ff"}
    assert letter.reason == "no room \\xe4"


def test_the_same_row_is_the_same_letter_again() -> None:
    row = {"device": "x" * 5_000, "value": "y" * 5_000}
    assert dead_letter(OUTPUT, row, "r") == dead_letter(OUTPUT, dict(row), "r")
    found = json.loads(dead_letter(OUTPUT, row, "r").row)
    assert found["device"].endswith("...") and found["value"].endswith("...")
    assert len(found["device"]) > 200, "as much of it as there is room for"


def test_a_row_of_numbers_that_are_too_long_is_cut() -> None:
    letter = dead_letter(OUTPUT, {"device": 10**3_000}, "r")
    assert len(letter.row) == TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("at_us", "is_outside"),
    [
        (TIME_US_MIN, False), (TIME_US_MIN - 1, True), (TIME_US_MAX - 1, False),
        (TIME_US_MAX, True), (0, False), (2**63 - 1, True), (-(2**63), True), (None, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_that_python_cannot_hold_become_texts(
    at_us: int | None, is_outside: bool, zone: str | None
) -> None:
    column = pa.chunked_array([pa.array([at_us, 0], pa.timestamp("us", zone))])
    outside = times_outside(column)
    assert (outside is not None) is is_outside
    first, second = values_of(column)
    assert second == datetime(1970, 1, 1, tzinfo=UTC if zone else None)
    if is_outside:
        assert isinstance(first, str) and first.endswith("Z")
    elif at_us is None:
        assert first is None
    else:
        assert isinstance(first, datetime)


def test_rows_of_a_table() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert rows_of(table) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert rows_of(table.slice(0, 0)) == []

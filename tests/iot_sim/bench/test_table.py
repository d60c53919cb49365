"""Rows for people and for programs."""

from __future__ import annotations

import csv
import io

import pytest

from iot_sim.bench.counts import Counts, Sample
from iot_sim.bench.plan import CONNECT, PUBLISH, SUBSCRIBE
from iot_sim.bench.table import HEAD_EVERY, CsvFile, Table, summary


def sample(second: int = 0, **fields: int) -> Sample:
    counts = Counts(**fields)  # type: ignore[arg-type]
    counts.connect.record(2_000)
    return Sample(second, 7, counts, 1_500)


@pytest.mark.parametrize("action", [CONNECT, PUBLISH, SUBSCRIBE])
def test_the_head_comes_again(action: str) -> None:
    out = io.StringIO()
    table = Table(action, out)
    for second in range(HEAD_EVERY + 1):
        table.put(sample(second))
    lines = out.getvalue().splitlines()
    assert lines[0] == lines[HEAD_EVERY + 1]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == HEAD_EVERY + 3


def test_nothing_measured_is_no_time() -> None:
    out = io.StringIO()
    Table(PUBLISH, out).put(sample(sent=1_234))
    row = out.getvalue().splitlines()[1].split()
    assert row == ["1", "s", "7", "1,234", "0", "-", "-", "-", "0", "0"]


def test_a_csv_file_has_plain_numbers() -> None:
    out = io.StringIO()
    CsvFile(out).put(sample(4, sent=1_234))
    [row] = csv.DictReader(io.StringIO(out.getvalue()))
    assert (row["second"], row["sent"], row["connect_p99_ms"]) == ("5", "1234", "2.0")
    assert (row["ack_p50_ms"], row["generator_late_ms"]) == ("", "1.5")


def test_the_summary_says_when_the_generator_was_late_and_what_went_wrong() -> None:
    total = Counts(connected=2, sent=10)
    total.error("connection refused: Banned")
    lines = summary(PUBLISH, total, 2.0, 250_000)
    assert "10 sent, 5 a second" in lines
    assert any("late itself" in line for line in lines)
    assert lines[-1] == "error: connection refused: Banned (1)"
    assert not any("late itself" in line for line in summary(PUBLISH, total, 2.0, 1_000))

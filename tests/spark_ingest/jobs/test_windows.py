"""`windows` against windows computed in plain Python, as a batch and as a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark_ingest import results, telemetry
from tests.spark_ingest.telemetry import SECOND, Rule

COUNT = 1_500


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return telemetry.write_log(tmp_path / "log", telemetry.messages(COUNT))


def check(path: Path, rule: Rule) -> None:
    wanted, left_out = telemetry.windows(telemetry.messages(COUNT), rule)
    telemetry.assert_same(results.windows_in(path), wanted)
    assert results.rows(path, "SELECT coalesce(sum(count), 0) FROM left_out") == [(left_out,)]
    broken = sum(one.is_broken for one in telemetry.messages(COUNT))
    assert results.rows(path, "SELECT count(*) FROM rejects") == [(broken,)]
    assert broken > 0 and left_out > 0


def test_tumbling_windows_of_a_range(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    progress = results.run(spark, "windows", log, [results.url(out)])
    check(out, Rule())
    assert progress.rows == COUNT
    # What is counted as the messages themselves is all that was not left out.
    whole = results.rows(out, "SELECT sum(count) FROM windows WHERE metric = ''")[0][0]
    left = results.rows(out, "SELECT sum(count) FROM left_out")[0][0]
    assert whole + left + progress.rejects == COUNT


def test_tumbling_windows_of_a_stream_are_corrected(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """In micro-batches of a few rows, late ones come long after their window was written."""
    out = tmp_path / "out.db"
    progress = results.run(
        spark, "windows", log, [results.url(out)], checkpoint=tmp_path / "c", max_rows=400
    )
    check(out, Rule())
    assert results.rows(out, "SELECT sum(late) FROM windows")[0][0] > 0
    assert progress.rows == COUNT
    assert (
        progress.late == results.rows(out, "SELECT sum(late) FROM windows WHERE metric = ''")[0][0]
    )
    assert progress.left_out == results.rows(out, "SELECT sum(count) FROM left_out")[0][0]


def test_hopping_windows(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    results.run(
        spark, "windows", log, [results.url(out)],
        size_us="3m", slide_us="1m", allowed_us="20s", watermark_us="5s",
    )  # fmt: skip
    check(out, Rule(180 * SECOND, 60 * SECOND, 5 * SECOND, 20 * SECOND))


def test_sessions_are_written_once_when_they_are_over(spark: SparkSession, tmp_path: Path) -> None:
    told = [
        telemetry.Message("d0", n, at, at + SECOND, 1.0 * n)
        for n, at in enumerate(
            telemetry.START_US + s * SECOND for s in (0, 5, 9, 40, 44, 100, 3_000, 3_001)
        )
    ]
    log = telemetry.write_log(tmp_path / "log", told)
    settings: dict[str, Any] = {
        "gap_us": "10s",
        "allowed_us": "1m",
        "skew_us": "1m",
        "ahead_us": "1m",
    }
    statement = (
        "SELECT window_start, window_end, count, mean FROM windows WHERE metric = 'temperature'"
        " ORDER BY 1"
    )
    batch, stream = tmp_path / "batch.db", tmp_path / "stream.db"
    results.run(spark, "windows", log, [results.url(batch)], **settings)
    sessions = [
        ("2026-01-01 00:00:00.000000", "2026-01-01 00:00:19.000000", 3, 1.0),
        ("2026-01-01 00:00:40.000000", "2026-01-01 00:00:54.000000", 2, 3.5),
        ("2026-01-01 00:01:40.000000", "2026-01-01 00:01:50.000000", 1, 5.0),
        ("2026-01-01 00:50:00.000000", "2026-01-01 00:50:11.000000", 2, 6.5),
    ]
    assert results.rows(batch, statement) == sessions
    results.run(spark, "windows", log, [results.url(stream)], checkpoint=tmp_path / "c", **settings)
    assert results.rows(stream, statement) == sessions[:3]  # the last may still grow

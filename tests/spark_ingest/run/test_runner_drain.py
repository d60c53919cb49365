"""What a run with `once` leaves open: said at its end, and closed when it drains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ingest.run import runner
from spark_ingest.run.runner import RunError
from spark_ingest.source.losses import Losses
from tests.spark_ingest import results, telemetry
from tests.spark_ingest.jobs.test_jobs import correlation
from tests.spark_ingest.telemetry import SECOND, START_US, Message, Writing

SESSIONS = (
    "SELECT device, metric, window_start, window_end, count, mean, max, late FROM windows"
    " ORDER BY 1, 2, 3"
)
LEFT_OUT = "SELECT device, reason, sum(count) FROM left_out GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.mark.slow
def test_sessions_are_closed_when_the_run_drains(spark: SparkSession, tmp_path: Path) -> None:
    told = telemetry.messages(200)
    log = telemetry.write_log(tmp_path / "log", told)
    whole, out, checkpoint = tmp_path / "whole.db", tmp_path / "out.db", tmp_path / "c"

    def run(**more: Any) -> runner.Progress:
        return results.run(
            spark,
            "windows",
            log,
            [results.url(out)],
            checkpoint=checkpoint,
            gap_us="10s",
            percentiles="none",
            **more,
        )

    results.run(spark, "windows", log, [results.url(whole)], gap_us="10s", percentiles="none")
    broken = sum(one.is_broken for one in told)
    progress = run(max_rows=150)
    # Nothing is over, and it is said; what cannot be read is told at once.
    assert results.rows(out, SESSIONS) == [] == results.rows(out, LEFT_OUT)
    assert results.rows(out, "SELECT count(*) FROM rejects") == [(broken,)] and broken
    assert progress.rows == 200 and progress.rejects == broken
    assert progress.waiting.startswith(f"{200 - broken} rows, in sessions")
    progress = run(drains=True)
    assert results.rows(out, SESSIONS) == results.rows(whole, SESSIONS) != []
    assert results.rows(out, LEFT_OUT) == results.rows(whole, LEFT_OUT) != []
    assert progress.rows == 0 and not progress.waiting
    # It is at its end: what is new is not dropped in silence.
    writing = Writing(log)
    writing.add([Message("d0", 999, START_US + 300 * SECOND, START_US + 300 * SECOND, 1.0)])
    writing.close()
    with pytest.raises(RunError, match=r"the checkpoint was drained.* from \{") as caught:
        run()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_sessions_of_a_checkpoint_of_before_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the log once, and what is rejected waits as it did."""
    told = telemetry.messages(200)
    log = telemetry.write_log(tmp_path / "log", told[:100])
    out, whole = tmp_path / "out.db", tmp_path / "whole.db"
    more: dict[str, Any] = {"gap_us": "10s", "percentiles": "none"}
    sinks = [results.url(out)]
    with monkeypatch.context() as patch:
        patch.setattr(Losses, "sources", lambda self: 1)
        results.run(spark, "windows", log, sinks, checkpoint=tmp_path / "c", **more)
    assert results.rows(out, "SELECT count(*) FROM rejects") == [(0,)]
    writing = Writing(log)
    writing.add(told[100:])
    writing.close()
    results.run(spark, "windows", log, sinks, checkpoint=tmp_path / "c", drains=True, **more)
    results.run(spark, "windows", log, [results.url(whole)], **more)
    for statement in (SESSIONS, LEFT_OUT, "SELECT * FROM rejects ORDER BY 1, 2"):
        assert results.rows(out, statement) == results.rows(whole, statement) != []


@pytest.mark.slow
def test_requests_are_unanswered_when_the_run_drains(spark: SparkSession, tmp_path: Path) -> None:
    writing = Writing(tmp_path / "log")
    for key, kind, at in ((b"\1", "cmd", 0), (b"\1", "response", 1), (b"\2", "cmd", 2)):
        writing.put(f"p/d/{kind}", "c", b"{}", START_US + at * SECOND, correlation(key))
    writing.commit()
    writing.close()
    out = tmp_path / "out.db"

    def run(**more: Any) -> tuple[str, list[Any]]:
        waiting = results.run(
            spark, "correlate", writing.root, [results.url(out)], checkpoint=tmp_path / "c", **more
        ).waiting
        return waiting, results.rows(out, "SELECT key, outcome FROM correlated ORDER BY key")

    waiting, found = run()
    assert waiting.startswith("2 requests") and found == [("01", "answered")]
    assert run(drains=True) == ("", [("01", "answered"), ("02", "unanswered")])


@pytest.mark.slow
def test_silence_is_told_up_to_the_end_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """And not beyond: who spoke last is not silent because nobody reads on."""
    told = [
        Message(device, n, at, at, 1.0)
        for n in range(100)
        for device, last in (("d0", 20), ("d1", 99), ("d2", 65))
        if n <= last
        for at in (START_US + n * SECOND,)
    ]
    log = telemetry.write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"

    def run(**more: Any) -> tuple[str, list[Any]]:
        waiting = results.run(
            spark, "anomalies", log, [results.url(out)], checkpoint=tmp_path / "c",
            silence_us="30s", skew_us="1m", **more,
        ).waiting  # fmt: skip
        return waiting, results.rows(out, "SELECT device, kind FROM alerts ORDER BY 1, 2")

    waiting, found = run()
    assert waiting.startswith("the silence of 3 devices") and found == []
    waiting, found = run(drains=True)
    assert waiting.startswith("the silence of 1 devices")
    assert found == [("d0", "silent"), ("d2", "silent")]

"""Whatever dies when, each message is counted once.

Here the query dies and not the process, at each moment that matters; `test_exactly_once_killed`
kills whole drivers with SIGKILL.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ingest.contract.sink import Sink
from spark_ingest.run.runner import RunError
from tests.spark_ingest import results, telemetry
from tests.spark_ingest.deadly import DeadlySink, die_softly
from tests.spark_ingest.telemetry import Rule

COUNT = 1_200


@pytest.mark.parametrize(
    "deaths",
    [
        ("before:1", "after:1"),
        pytest.param(("before:1", "after:1", "after:2", "before:2"), marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_every_window_is_right_after_deaths_around_the_commit(
    spark: SparkSession, tmp_path: Path, deaths: tuple[str, ...]
) -> None:
    told = telemetry.messages(COUNT, seed=7)
    log = telemetry.write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"

    def run(moments: str) -> None:
        sink: Sink = DeadlySink(f"url={results.url(out)}&moments={moments}", die_softly)
        results.run(spark, "windows", log, [sink], checkpoint=tmp_path / "c", max_rows=500)

    for moments in deaths:
        with pytest.raises(RunError, match="Died"):
            run(moments)
    run("")
    wanted, left_out = telemetry.windows(told, Rule())
    telemetry.assert_same(results.windows_in(out), wanted)
    assert results.rows(out, "SELECT sum(count) FROM left_out") == [(left_out,)]
    ledger = results.rows(out, "SELECT query, batch FROM fleetmq_spark_ledger ORDER BY batch")
    assert [batch for _, batch in ledger] == list(range(len(ledger)))
    assert len({query for query, _ in ledger}) == 1


def test_a_batch_of_another_checkpoint_is_not_taken_for_one_that_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both count their batches from 0."""
    out = tmp_path / "out.db"
    for name in ("first", "second"):
        told = telemetry.messages(50, seed=len(name), devices=1)
        log = telemetry.write_log(tmp_path / name, told)
        results.run(spark, "windows", log, [results.url(out)], checkpoint=tmp_path / f"c{name}")
    queries = results.rows(out, "SELECT count(DISTINCT query) FROM fleetmq_spark_ledger")
    assert queries == [(2,)]
    telemetry.assert_same(results.windows_in(out), telemetry.windows(told, Rule())[0])

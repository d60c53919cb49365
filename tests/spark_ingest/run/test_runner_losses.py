"""Rows that Spark drops: never in silence, and not again without somebody's word."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ingest.analysis.findings import Findings, QualityLimits
from spark_ingest.analysis.keyed import Reading
from spark_ingest.run.runner import RunError
from spark_ingest.source import losses
from tests.spark_ingest import results, telemetry
from tests.spark_ingest.backlogs import client
from tests.spark_ingest.telemetry import SECOND, START_US, Message, Rule

HOUR = 3_600 * SECOND


def two_days_and_six_hours(rows: int) -> list[Message]:
    """As many rows in each of two partitions, in the order in which they were received."""
    told = [
        Message(client(number, 2), n + 1, at - 20_000, at, 20.0 + n % 7)
        for number, hours in ((0, 48), (1, 6))
        for n, at in enumerate(START_US + n * hours * HOUR // rows for n in range(rows))
    ]
    return sorted(told, key=lambda one: one.received_us)


@pytest.mark.slow
def test_a_backlog_of_two_days_and_six_hours_is_read_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = two_days_and_six_hours(200)
    log = telemetry.write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"
    progress = results.run(
        spark, "windows", log, [results.url(out)], checkpoint=tmp_path / "c", max_rows=120
    )
    assert progress.rows == 400 and progress.batch >= 3
    telemetry.assert_same(results.windows_in(out), telemetry.windows(told, Rule())[0])


@pytest.mark.slow
def test_a_checkpoint_that_has_dropped_rows_does_not_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The broker's clock was set back by a day, which is more than --skew says."""
    out, checkpoint = tmp_path / "out.db", tmp_path / "c"
    log = telemetry.Writing(tmp_path / "log")
    log.add([Message("d0", n, START_US + n * HOUR, START_US + n * HOUR, 1.0) for n in range(30)])

    def run(**more: Any) -> int:
        return results.run(
            spark, "windows", log.root, [results.url(out)], checkpoint=checkpoint, **more
        ).dropped

    def written() -> tuple[Any, ...]:
        return results.rows(
            out, "SELECT coalesce(sum(count), 0), count(*) FROM windows WHERE metric = ''"
        )[0]

    assert run() == 0
    log.add([Message("d0", 30, START_US + HOUR, START_US + HOUR, 1.0)])
    log.add([Message("d0", 31, START_US + 31 * HOUR, START_US + 31 * HOUR, 1.0)])
    log.close()
    said = f"checkpoint {checkpoint}: Spark dropped at least [0-9,]+ rows .*--accept-loss"
    with pytest.raises(RunError, match=said):
        run()
    with pytest.raises(RunError, match=said) as again:
        run()
    assert "\n" not in str(again.value)
    assert written() == (30, 30)  # a batch that dropped rows is not written, and nothing goes on
    (checkpoint / losses.NAME).unlink()  # killed before it was noted: the batch finds out again
    with pytest.raises(RunError, match=said):
        run()
    assert run(accepts_loss=True) == 1
    assert written() == (31, 31)
    noted = json.loads((checkpoint / losses.NAME).read_text())
    assert noted["is_accepted"] and noted["rows"] == 1


@pytest.mark.slow
def test_quality_of_a_skewed_backlog_is_that_of_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(4)
    told = [one for one in two_days_and_six_hours(300) if draw.random() < 0.9]
    log = telemetry.write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"
    results.run(spark, "quality", log, [results.url(out)], checkpoint=tmp_path / "c", max_rows=200)
    wanted = []
    for device in sorted({one.device for one in told}):
        machine = Findings(device, QualityLimits(20, 60 * SECOND, 300 * SECOND))
        for n, one in enumerate(one for one in told if one.device == device):
            values = {"temperature": one.temperature or 0.0}
            at_us = one.at_us // 1_000 * 1_000
            list(machine.read(Reading(0, n, at_us, one.received_us, one.seq, False, values)))
        (said,) = machine.summary()
        wanted.append((device, said["messages"], said["missing"], said["duplicates"]))
    assert wanted == results.rows(
        out, "SELECT device, messages, missing, duplicates FROM device_quality ORDER BY device"
    )


def test_a_loss_is_remembered_until_it_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    def opened() -> losses.Losses:
        return losses.Losses(spark, str(tmp_path))

    opened().check(is_accepted=False)
    for _ in range(2):  # the second time the same batch
        with pytest.raises(losses.LossError, match=r"at least 7 rows .* in batch 3"):
            opened().add(3, 7, is_accepted=False)
    with pytest.raises(losses.LossError, match=str(tmp_path)):
        opened().check(is_accepted=False)
    opened().check(is_accepted=True)
    opened().check(is_accepted=False)
    opened().add(4, 2, is_accepted=True)
    opened().check(is_accepted=False)
    assert opened().read() == losses.Loss(9, 4, is_accepted=True)
    with pytest.raises(losses.LossError, match="at least 10 rows"):
        opened().add(5, 1, is_accepted=False)

"""Which rows come too late: the rule in Spark against the rule in Python, at its borders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from spark_ingest.analysis.lateness import (
    Lateness,
    counted,
    interval_text,
    is_late,
    spark_delay_us,
    verdict,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S: Final = 1_000_000
RULE: Final = Lateness(watermark_us=10 * S, allowed_us=60 * S, ahead_us=5 * S, skew_us=0)
BASE: Final = datetime(2024, 1, 1, tzinfo=UTC)


def expected(at: int, received: int, end: int) -> tuple[str | None, bool]:
    """Why a row is left out, and whether it is late, as the module's docstring has it."""
    late = received > end + RULE.watermark_us
    if at > received + RULE.ahead_us:
        return "future", late
    if received > end + RULE.watermark_us + RULE.allowed_us:
        return "late", late
    return None, late


def test_the_verdict_of_each_row_is_the_rules(spark: SparkSession) -> None:
    end = 100 * S
    borders = (0, RULE.watermark_us, RULE.watermark_us + RULE.allowed_us, -30 * S)
    cases = [
        (received + ahead, received, end)
        for border in borders
        for received in (end + border + step for step in (-1, 0, 1))
        for ahead in (-20 * S, 0, RULE.ahead_us - 1, RULE.ahead_us, RULE.ahead_us + 1)
    ]

    def moment(us: int) -> datetime:
        return BASE + timedelta(microseconds=us)

    rows = spark.createDataFrame(
        [(number, *map(moment, case)) for number, case in enumerate(cases)],
        "number int, at timestamp, received timestamp, end timestamp",
    )
    found = rows.select(
        "number",
        verdict(F.col("at"), F.col("end"), RULE).alias("reason"),
        is_late(F.col("end"), RULE).alias("is_late"),
    ).orderBy("number")
    told = [(row["reason"], row["is_late"]) for row in found.collect()]
    wanted = [expected(*case) for case in cases]
    assert told == wanted
    assert {reason for reason, _ in wanted} == {None, "late", "future"}


def test_a_batch_is_counted_nowhere(spark: SparkSession) -> None:
    rows = spark.range(1)
    assert counted(rows) is rows


def test_sparks_watermark_is_behind_every_row_that_the_rule_takes() -> None:
    """A row that is taken at the last moment, while another partition was read ahead."""
    rule = Lateness(watermark_us=10 * S, allowed_us=60 * S, ahead_us=5 * S, skew_us=100 * S)
    size = 30 * S
    received = 1_000 * S
    oldest_end = received - rule.watermark_us - rule.allowed_us
    latest_end = received + rule.skew_us + rule.ahead_us + size
    assert latest_end - spark_delay_us(rule, size) == oldest_end


def test_intervals_are_exact() -> None:
    assert interval_text(1) == "1 microseconds"
    assert interval_text(10**13 + 1) == "10000000000001 microseconds"

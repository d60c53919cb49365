"""Decide which rows come too late for a window, by a rule of each row alone.

Spark drops rows older than its watermark, and its watermark depends on the boundaries of
micro-batches and on how far other partitions were read: the same log would give different results
in another run, and `numRowsDroppedByWatermark` counts groups, not rows. So a job decides by itself,
by the broker's clock:

    received <= end + watermark                     on time
    received <= end + watermark + allowed lateness  late: counted, and the window is corrected
    later                                           left out, counted as `late`
    event > received + ahead                        left out, counted as `future`

The rule depends on each row alone, so a window depends only on the log, not on crashes.

Spark's watermark then only decides when state is removed. It is delayed so far (`spark_delay_us`)
that Spark drops no row that the rule accepts, as long as no partition is read more than `skew`
behind another. If one is, Spark's counter is not 0, and the run fails instead of giving wrong
results (`run.runner`). Rows that are left out are grouped by the time at which they were received,
which is never behind the watermark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_ingest.contract.job import duration, option

OBSERVED: Final = "lateness"


@dataclass(frozen=True)
class Lateness:
    watermark_us: int = option(
        "--watermark", duration, "10s", "a window is complete so long after its end"
    )
    allowed_us: int = option(
        "--allowed-lateness", duration, "10m", "what comes so much later still corrects it"
    )
    ahead_us: int = option(
        "--ahead", duration, "5m", "how far a device's clock may be ahead of the broker's"
    )
    skew_us: int = option(
        "--skew", duration, "1h", "how far behind another a partition may be read"
    )


def plus(time: Column, us: int) -> Column:
    return time + F.expr(f"INTERVAL {us} MICROSECONDS")


def interval_text(us: int) -> str:
    """Return an interval as Spark's windows and watermarks expect it."""
    return f"{us} microseconds"


def verdict(at: Column, end: Column, lateness: Lateness) -> Column:
    """Return why a row is left out of the window that ends at `end`; null if it is in it."""
    received = F.col("received")
    return F.when(at > plus(received, lateness.ahead_us), F.lit("future")).when(
        received > plus(end, lateness.watermark_us + lateness.allowed_us), F.lit("late")
    )


def is_late(end: Column, lateness: Lateness) -> Column:
    return F.col("received") > plus(end, lateness.watermark_us)


def counted(rows: DataFrame) -> DataFrame:
    """Count late rows for progress reports; results do not depend on it."""
    if not rows.isStreaming:
        return rows
    return rows.observe(
        OBSERVED,
        F.count_if("is_late").alias("late"),
        F.count_if(F.col("reason").isin("late", "future")).alias("left_out"),
    )


def spark_delay_us(lateness: Lateness, size_us: int) -> int:
    """Return the delay of Spark's watermark with which it drops no row that this rule takes.

    The window of an accepted row ends at received - watermark - allowed or later; the latest end
    seen is at most received + ahead + size, of a row that was read at most `skew` earlier.
    """
    parts = (lateness.watermark_us, lateness.allowed_us, lateness.ahead_us, lateness.skew_us)
    return sum(parts) + size_us

"""`clock`: how wrong each device's clock is, and how late its messages come.

A message has three times: when it was measured and when it was sent, by the device's clock, and
when it was received, by the broker's. In SQL:

    SELECT window(received, '10 minutes'), device, -min(received - sent) AS clock_ahead,
           avg(sent - event) AS waited, max(event) + min(received - sent) AS last_event_corrected
    FROM telemetry GROUP BY 1, 2

No message is received before it is sent, so `received - sent` is the transit time minus the error
of the device's clock, and the minimum of many is nearly the clock error alone: `clock_ahead_s` is
too low by the fastest transit time (`--fastest-way`, if you know it). Messages that waited on the
device do not matter if the device reports the send time. If it does not, the event time is used,
and buffered messages make the clock look slow.

`corrected = event - clock_ahead`. Windows use the broker's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_ingest.analysis.columns import (
    REJECTS,
    TIME_US_MAX,
    Telemetry,
    of_topics,
    reject,
    screened,
    text_of,
    time_of,
)
from spark_ingest.analysis.lateness import interval_text
from spark_ingest.contract.job import (
    UPDATE,
    Context,
    Job,
    Output,
    duration,
    option,
    positive_duration,
)

CLOCK = Output("clock", ("device", "window_start", "window_end"))


@dataclass(frozen=True)
class ClockOptions(Telemetry):
    size_us: int = option("--size", positive_duration, "10m", "how long a window is")
    late_us: int = option("--late-after", duration, "10s", "a message is late from then on")
    future_us: int = option("--future-after", duration, "1s", "it is of the future from then on")
    fastest_us: int = option("--fastest-way", duration, "0", "the least time a message takes")
    skew_us: int = option("--skew", duration, "1h", "how far behind another a partition is read")


def build(rows: DataFrame, options: ClockOptions, context: Context) -> DataFrame:
    rows = screened(rows, options)
    at = time_of(rows, options.time)
    told = of_topics(rows, options.topics).select(
        text_of(rows, options.device, "--device").alias("device"),
        reject(rows).alias("reject"),
        "received",
        _seconds(F.unix_micros("received") - F.unix_micros(at)).alias("age_s"),
        _seconds(F.unix_micros("received") - F.unix_micros(F.coalesce("sent", at))).alias("way_s"),
        _seconds(F.unix_micros("sent") - F.unix_micros(at)).alias("waited_s"),
        F.col("event").isNull().alias("is_unknown"),
        at.alias("at"),
    )
    delay = interval_text(options.size_us + options.skew_us)
    grouped = (
        told.withColumn("window", F.window("received", interval_text(options.size_us)))
        .withColumn("end", F.col("window.end"))
        .withWatermark("end", delay)
        .groupBy("end", F.when(F.col("reject").isNull(), F.col("device")).alias("device"), "reject")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.count_if("is_unknown").alias("without_time"),
            F.count_if(F.col("age_s") > options.late_us / 1e6).alias("late"),
            F.count_if(F.col("age_s") < -options.future_us / 1e6).alias("future"),
            (F.lit(options.fastest_us / 1e6) - F.min("way_s")).alias("clock_ahead_s"),
            F.avg("age_s").alias("mean_age_s"),
            F.percentile("age_s", F.lit(0.5)).alias("p50_age_s"),
            F.max("age_s").alias("max_age_s"),
            F.avg("waited_s").alias("mean_waited_s"),
            F.max("at").alias("last_event"),
        )
    )
    corrected = F.unix_micros("last_event") - F.round(F.col("clock_ahead_s") * 1e6).cast("bigint")
    # With clocks at the years 1970 and 9999 the result may not be a valid time.
    corrected = F.when((corrected >= 0) & (corrected < TIME_US_MAX), corrected)
    result = F.struct(
        "device",
        (F.col("end") - F.expr(f"INTERVAL {options.size_us} MICROSECONDS")).alias("window_start"),
        F.col("end").alias("window_end"),
        "count",
        "without_time",
        "late",
        "future",
        (F.col("late") / F.col("count")).alias("late_share"),
        (F.col("future") / F.col("count")).alias("future_share"),
        "clock_ahead_s",
        "mean_age_s",
        "p50_age_s",
        "max_age_s",
        "mean_waited_s",
        "last_event",
        F.timestamp_micros(corrected).alias("last_event_corrected"),
    )
    return grouped.select(
        F.when(F.col("reject").isNull(), result).alias("clock"),
        F.col("reject").alias("rejects"),
    )


def _seconds(micros: Column) -> Column:
    return micros / F.lit(1_000_000)


JOB = Job("clock", ClockOptions, (CLOCK, REJECTS), build, lambda options: UPDATE, reads_sent=True)

"""`windows`: statistics of every measurement, per device and site, over windows of event time.

In SQL, of one metric, without what is said in `lateness`:

    SELECT window.start, window.end, device, site, count(v), avg(v), min(v), max(v),
           stddev_samp(v), percentile(v, array(0.5, 0.95, 0.99))
    FROM telemetry GROUP BY window(at, '1 minute'), device, site

Tumbling windows (`--size 1m`), hopping ones (`--size 5m --slide 1m`), or sessions (`--gap 5m`: a
device's rows that follow each other closer than that). The metric '' counts the messages
themselves, so its counts add up to the rows of the log minus what was left out.

Tumbling and hopping windows are written whenever they have grown, so what is late corrects them;
`late` says how many rows did. Sessions are written once, when nothing that would still be taken
can change them: Spark has no updates of sessions.

Percentiles are exact and interpolated, as `percentile` computes them: a window of one device
holds some dozens or hundreds of values, which is what an approximate sketch costs too, and an
answer that is the same after every crash can be compared with the truth. `--percentiles approx`
bounds the state where windows are long (within 1/10,000 of the rank, and not the same twice).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_ingest.analysis.columns import (
    REJECTS,
    Telemetry,
    at_the_end,
    before_the_end,
    metric_columns,
    of_topics,
    reject,
    screened,
    text_of,
    time_of,
)
from spark_ingest.analysis.lateness import (
    Lateness,
    counted,
    interval_text,
    is_late,
    plus,
    spark_delay_us,
    verdict,
)
from spark_ingest.contract.job import (
    APPEND,
    UPDATE,
    Context,
    Job,
    OptionError,
    Output,
    choice,
    option,
    optional_duration,
    positive_duration,
)

WINDOWS = Output("windows", ("device", "site", "metric", "window_start", "window_end"))
LEFT_OUT = Output("left_out", ("device", "reason", "window_end"))
SLIDES_MAX = 1_000  # windows that one row is in
PARTS = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class WindowsOptions(Lateness, Telemetry):
    size_us: int = option("--size", positive_duration, "1m", "how long a window is")
    slide_us: int | None = option(
        "--slide", optional_duration, "", "a window begins so often (when the last one ends)"
    )
    gap_us: int | None = option(
        "--gap", optional_duration, "", "sessions instead: they end with a pause of this length"
    )
    percentiles: str = option(
        "--percentiles", choice("exact", "approx", "none"), "exact", "exact, approx or none"
    )

    def __post_init__(self) -> None:
        if self.gap_us and self.slide_us:
            raise OptionError("--slide", "sessions (--gap) do not slide")
        if self.slide_us and not self.size_us / SLIDES_MAX <= self.slide_us <= self.size_us:
            raise OptionError("--slide", f"it is not from a {SLIDES_MAX}th of --size to --size")


def build(rows: DataFrame, options: WindowsOptions, context: Context) -> DataFrame:
    metrics = metric_columns(rows, options)
    rows = screened(rows, options)
    until = at_the_end if options.gap_us else _as_it_is  # tumbling windows wait for nothing
    told = of_topics(rows, options.topics).select(
        text_of(rows, options.device, "--device").alias("device"),
        text_of(rows, options.site, "--site").alias("site"),
        until(F.col("received")).alias("received"),
        F.when(F.col("reject_reason").isNull(), until(time_of(rows, options.time))).alias("at"),
        reject(rows).alias("reject"),
        *[column.alias(f"metric {name}") for name, column in metrics.items()],
    )
    placed = _sessions(told, options) if options.gap_us else _windows(told, options)
    placed = counted(placed)
    # What is rejected waits for no session, but in checkpoints of before that was so.
    is_apart = bool(options.gap_us) and context.sources != 1
    if is_apart:
        placed = placed.where(F.col("reason").isNull() | (F.col("reason") != "rejected"))
    is_in = F.col("reason").isNull()
    grouped = placed.groupBy(
        *(["session"] if options.gap_us else ["start", "end"]),
        F.when(is_in | (F.col("reason") != "rejected"), F.col("device")).alias("device"),
        F.when(is_in, F.col("site")).alias("site"),
        "reason",
        "reject",
    ).agg(
        F.count(F.lit(1)).alias("count "),
        F.count_if("is_late").alias("late"),
        *[one for name in metrics for one in _statistics(name, options)],
    )
    if options.gap_us:
        grouped = grouped.withColumns(
            {"start": F.col("session.start"), "end": F.col("session.end")}
        )
    found = _results(grouped, list(metrics))
    if is_apart:
        rejects = told.where(F.col("reject").isNotNull()).select(F.col("reject").alias("rejects"))
        found = found.drop("rejects").unionByName(rejects, allowMissingColumns=True)
    return found


def _as_it_is(time: Column) -> Column:
    return time


def _windows(told: DataFrame, options: WindowsOptions) -> DataFrame:
    """Put each row into each of its windows, and a row left out into that of its arrival."""
    size, slide = options.size_us, options.slide_us or options.size_us
    told = told.withColumn("at", F.coalesce("at", "received")).withColumn(
        "window", F.window("at", interval_text(size), interval_text(slide))
    )
    end = F.col("window.end")
    told = told.withColumn(
        "reason",
        F.when(F.col("reject").isNotNull(), F.lit("rejected")).otherwise(
            verdict(F.col("at"), end, options)
        ),
    )
    if slide < size:  # of the windows of a row that is in none, keep the newest
        is_newest = F.col("window.start") > plus(F.col("at"), -slide)
        told = told.where(F.col("reason").isNull() | (F.col("reason") == "late") | is_newest)
    is_in = F.col("reason").isNull()
    arrival = _next_end(F.col("received"), size)
    return told.select(
        "*",
        F.when(is_in, F.col("window.start")).otherwise(plus(arrival, -size)).alias("start"),
        F.when(is_in, end).otherwise(arrival).alias("end"),
        (is_in & is_late(end, options)).alias("is_late"),
    ).withWatermark("end", interval_text(spark_delay_us(options, size)))


def _next_end(time: Column, size_us: int) -> Column:
    """Return the end of the tumbling window that a time is in."""
    micros = F.unix_micros(time)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(size_us)) + F.lit(size_us))


def _sessions(told: DataFrame, options: WindowsOptions) -> DataFrame:
    """Put rows into sessions.

    A session ends no earlier than any of its rows plus the gap, so each row is late by that.
    """
    gap = options.gap_us
    assert gap is not None
    at = F.coalesce("at", "received")
    end = plus(at, gap)
    told = told.withColumn(
        "reason",
        F.when(F.col("reject").isNotNull(), F.lit("rejected")).otherwise(verdict(at, end, options)),
    )
    is_in = F.col("reason").isNull()
    placed = (
        told.withColumn("is_late", is_in & is_late(end, options))
        .withColumn("at", F.when(is_in, at).otherwise(F.col("received")))
        .withWatermark("at", interval_text(spark_delay_us(options, gap)))
    )
    return before_the_end(placed, "at").withColumn(
        "session", F.session_window("at", interval_text(gap))
    )


def _statistics(name: str, options: WindowsOptions) -> list[Column]:
    value = F.col(f"`metric {name}`")
    found = [
        F.count(value).alias(f"count {name}"),
        F.avg(value).alias(f"mean {name}"),
        F.min(value).alias(f"min {name}"),
        F.max(value).alias(f"max {name}"),
        F.stddev_samp(value).alias(f"stddev {name}"),
    ]
    parts = F.array(*[F.lit(part) for part in PARTS])
    if options.percentiles == "exact":
        found.append(F.percentile(value, parts).alias(f"parts {name}"))
    elif options.percentiles == "approx":
        found.append(F.percentile_approx(value, parts, 10_000).alias(f"parts {name}"))
    return found


def _results(grouped: DataFrame, metrics: list[str]) -> DataFrame:
    """Return a row for each metric, and the messages themselves as the metric ''."""
    nothing = F.lit(None).cast("double")
    no_parts = F.array(nothing, nothing, nothing)
    about = [F.lit("").alias("metric"), F.col("count ").alias("count")]
    about += [nothing.alias(name) for name in ("mean", "min", "max", "stddev")]
    about += [nothing.alias(name) for name in ("p50", "p95", "p99")]
    each = [F.struct(*about)]
    for name in metrics:
        parts = F.col(f"`parts {name}`") if f"parts {name}" in grouped.columns else no_parts
        each.append(
            F.struct(
                F.lit(name).alias("metric"),
                *[
                    F.col(f"`{what} {name}`").alias(what)
                    for what in ("count", "mean", "min", "max", "stddev")
                ],
                parts[0].alias("p50"),
                parts[1].alias("p95"),
                parts[2].alias("p99"),
            )
        )
    said = F.filter(F.array(*each), lambda one: (one["count"] > 0) | (one["metric"] == ""))
    is_in = F.col("reason").isNull()
    rows = grouped.withColumn("one", F.explode(F.when(is_in, said).otherwise(F.array(each[0]))))
    window = F.struct(
        "device",
        "site",
        F.col("one.metric").alias("metric"),
        F.col("start").alias("window_start"),
        F.col("end").alias("window_end"),
        *[
            F.col(f"one.{what}").alias(what)
            for what in ("count", "mean", "min", "max", "stddev", "p50", "p95", "p99")
        ],
        "late",
    )
    left_out = F.struct(
        F.coalesce("device", F.lit("")).alias("device"),
        "reason",
        F.col("end").alias("window_end"),
        F.col("one.count").alias("count"),
    )
    return rows.select(
        F.when(is_in, window).alias("windows"),
        F.when(F.col("reason").isin("late", "future"), left_out).alias("left_out"),
        F.when(F.col("reject").isNotNull(), F.col("reject")).alias("rejects"),
    )


def _waiting(spark: SparkSession, checkpoint: str) -> str:
    """Describe the waiting rows: the first count of the state of the sessions' aggregation."""
    state = spark.read.format("statestore").load(checkpoint)
    kind = state.schema["value"].dataType
    assert isinstance(kind, StructType)
    count = kind.names.index("count")
    names = [f"c{number}" for number in range(len(kind))]
    renamed = StructType(
        [StructField(name, one.dataType) for name, one in zip(names, kind, strict=True)]
    )
    rows = state.select(F.sum(F.col("value").cast(renamed)[f"c{count}"])).first()
    found = (rows and rows[0]) or 0
    if not found:
        return ""
    return (
        f"{found:,} rows, in sessions that later messages may still be part of, and in counts of"
        " what was left out: they are written when what would change them could only come too late"
    )


JOB = Job(
    name="windows",
    settings=WindowsOptions,
    outputs=(WINDOWS, LEFT_OUT, REJECTS),
    build=build,
    mode=lambda options: APPEND if options.gap_us else UPDATE,
    waiting=_waiting,
)

"""`enrich`: each message with its device's registry row that was valid at the time.

    SELECT t.*, r.* FROM telemetry t LEFT JOIN devices r
    ON r.device = t.device AND (r.valid_from IS NULL OR r.valid_from <= t.at)
                           AND (r.valid_to IS NULL OR t.at < r.valid_to)

A device that moved last week is at its old site in last month's messages, whenever they are read
or read again. Messages of devices that the registry does not know are kept, with `known` false.
The registry (`spark_ingest.registry`) is read for each micro-batch and sent to every executor.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ingest.analysis.columns import (
    REJECTS,
    Telemetry,
    flat_columns,
    of_topics,
    reject,
    screened,
    text_of,
    time_of,
)
from spark_ingest.contract.job import EACH_BATCH, NEEDED, Context, Job, Output
from spark_ingest.registry import ABOUT, DEVICE, is_valid_at

ENRICHED = Output("enriched", ("stream_partition", "stream_offset"))


@dataclass(frozen=True)
class EnrichOptions(Telemetry):
    pass


def build(rows: DataFrame, options: EnrichOptions, context: Context) -> DataFrame:
    rows = screened(rows, options)
    told = of_topics(rows, options.topics).select(
        F.col("partition").alias("stream_partition"),
        F.col("offset").alias("stream_offset"),
        text_of(rows, options.device, "--device").alias("device"),
        time_of(rows, options.time).alias("at"),
        "received",
        "topic",
        F.struct(*flat_columns(rows)).alias("said"),
        reject(rows).alias("reject"),
    )
    joined = with_registry(told, context)
    result = F.struct(
        *["stream_partition", "stream_offset", "device", "at", "received", "topic", "known"],
        *[name for name in joined.columns if name.startswith(ABOUT)],
        *_fields(joined),
    )
    return joined.select(
        F.when(F.col("reject").isNull(), result).alias("enriched"),
        F.col("reject").alias("rejects"),
    )


def with_registry(told: DataFrame, context: Context) -> DataFrame:
    """Join rows (with `device` and `at`) to the registry's columns, and add `known`."""
    if context.registry is None:
        return told.withColumn("known", F.lit(False))
    versions = context.registry(told.sparkSession).alias("r")
    about = [name for name in versions.columns if name.startswith(ABOUT)]
    is_same = F.col(f"t.{DEVICE}") == F.col(f"r.{DEVICE}")
    return told.alias("t").join(
        F.broadcast(versions), is_same & is_valid_at(F.col("t.at"), "r"), "left"
    ).select(
        *[F.col(f"t.{name}").alias(name) for name in told.columns],
        F.col(f"r.{DEVICE}").isNotNull().alias("known"),
        *[F.col(f"r.`{name}`").alias(name) for name in about],
    )  # fmt: skip


# Columns of a result that a payload's field of the same name would hide.
_OURS = {"stream_partition", "stream_offset", "device", "at", "received", "topic", "known"}


def _fields(joined: DataFrame) -> list[object]:
    """Return the payload's fields; one whose name is taken is called `value_...`."""
    kind = joined.schema["said"].dataType
    names: list[str] = kind.names  # type: ignore[attr-defined]
    taken = {name.lower() for name in (*_OURS, *joined.columns)}
    return [
        F.col("said").getField(name).alias(f"value_{name}" if name.lower() in taken else name)
        for name in names
    ]


JOB = Job(
    "enrich", EnrichOptions, (ENRICHED, REJECTS), build, lambda options: EACH_BATCH, registry=NEEDED
)

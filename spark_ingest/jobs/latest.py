"""`latest`: the last known state of each device, with its registry row. A twin that SQL can ask.

    SELECT device, max_by(struct(*), struct(at, stream_offset)) FROM telemetry GROUP BY device

of each micro-batch, joined to the registry as it is now, and upserted unless the table has a
newer row: a buffered message that arrives an hour late does not bring back an old state. `value`
is the last payload as JSON. The table is the state, so the job itself keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ingest.analysis.columns import (
    REJECTS,
    Telemetry,
    of_topics,
    reject,
    screened,
    text_of,
    time_of,
)
from spark_ingest.contract.job import EACH_BATCH, OPTIONAL, Context, Job, Output
from spark_ingest.jobs.enrich import with_registry
from spark_ingest.registry import ABOUT

LATEST = Output("latest", ("device",), newer_by=("at", "stream_offset"))
_TOLD = ["at", "received", "site", "topic", "stream_partition", "stream_offset", "value"]


@dataclass(frozen=True)
class LatestOptions(Telemetry):
    pass


def build(rows: DataFrame, options: LatestOptions, context: Context) -> DataFrame:
    has_value = "value" in rows.columns and isinstance(rows.schema["value"].dataType, StructType)
    value = F.to_json("value") if has_value else F.lit(None).cast("string")
    rows = screened(rows, options)
    told = of_topics(rows, options.topics).select(
        text_of(rows, options.device, "--device").alias("device"),
        text_of(rows, options.site, "--site").alias("site"),
        time_of(rows, options.time).alias("at"),
        "received",
        "topic",
        F.col("partition").alias("stream_partition"),
        F.col("offset").alias("stream_offset"),
        value.alias("value"),
        reject(rows).alias("reject"),
    )
    last = told.groupBy(F.when(F.col("reject").isNull(), F.col("device")).alias("device"), "reject")
    one = last.agg(F.max_by(F.struct(*_TOLD), F.struct("at", "stream_offset")).alias("last"))
    known = with_registry(one.select("device", "reject", "last.*"), context)
    result = F.struct(
        "device", *_TOLD, "known", *[name for name in known.columns if name.startswith(ABOUT)]
    )
    return known.select(
        F.when(F.col("reject").isNull(), result).alias("latest"),
        F.col("reject").alias("rejects"),
    )


JOB = Job(
    "latest", LatestOptions, (LATEST, REJECTS), build, lambda options: EACH_BATCH, registry=OPTIONAL
)

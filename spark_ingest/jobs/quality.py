"""`quality`: duplicates, gaps in sequence numbers, silent devices, stuck sensors.

    telemetry.groupBy(device).transformWithState(Findings)

reads each device's messages in the order of the log and remembers what is missing (`findings`).
`findings` has a row for each thing found; one that ends (a gap that is filled, a sensor that moves
again, a device that speaks again) is written again under its key, with `ended_at`. `devices` has
the totals of each device.

Sequence numbers are a field of the payload (`--sequence seq`; empty: there are none). A message
that a publisher repeated after a lost acknowledgement (QoS 1) is a duplicate like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ingest.analysis.columns import REJECTS, value_column
from spark_ingest.analysis.findings import TOTALS, Findings, QualityLimits
from spark_ingest.analysis.keyed import Watched, run, waiting
from spark_ingest.contract.job import APPEND, Context, Job, Output, duration, option, whole

FINDINGS = Output("findings", ("device", "kind", "metric", "began_at", "number"))
# `messages` only grows, so a repeated batch never takes a device back.
DEVICES = Output("device_quality", ("device",), newer_by=("messages",))
_RESULT = (
    *("device string", "kind string", "metric string", "began_us long", "number long"),
    *("ended_us long", "count long", "value double", "first_us long", "heard_us long"),
    *(f"{name} long" for name in TOTALS),
)


@dataclass(frozen=True)
class QualityOptions(Watched):
    sequence: str = option("--sequence", str, "seq", "the field with the sequence number")
    stuck_count: int = option("--stuck-after", whole(2, 10**9), "20", "equal values in a row")
    stuck_us: int = option("--stuck-for", duration, "1m", "and for at least so long")
    silence_us: int = option("--silence", duration, "5m", "silent after so long; 0: never")


def build(rows: DataFrame, options: QualityOptions, context: Context) -> DataFrame:
    if options.sequence:
        value_column(rows, options.sequence, "--sequence")
    limits = QualityLimits(options.stuck_count, options.stuck_us, options.silence_us)
    found = run(rows, options, partial(Findings, limits=limits), _RESULT, sequence=options.sequence)
    finding = F.struct(
        "device",
        "kind",
        "metric",
        F.timestamp_micros("began_us").alias("began_at"),
        "number",
        F.timestamp_micros("ended_us").alias("ended_at"),
        "count",
        "value",
    )
    totals = F.struct(
        "device",
        *TOTALS,
        F.timestamp_micros("first_us").alias("first_heard"),
        F.timestamp_micros("heard_us").alias("last_heard"),
    )
    is_total = F.col("kind") == ""
    return found.select(
        F.when(~is_total, finding).alias("findings"),
        F.when(is_total, totals).alias("device_quality"),
        F.col("reject").alias("rejects"),
    )


JOB = Job(
    "quality",
    QualityOptions,
    (FINDINGS, DEVICES, REJECTS),
    build,
    lambda options: APPEND,
    waiting=waiting,
)

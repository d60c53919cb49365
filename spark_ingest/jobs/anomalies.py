"""`anomalies`: outliers, jumps and silence of each device, as alerts.

    telemetry.groupBy(device).transformWithState(Statistics)

keeps for each device what is usual for it (`statistics`): weighted mean and deviation of each
metric and of its rate of change, and a timer for when the device should have been heard again.
Alerts go to SQL, and back to the broker as retained, expiring messages:

    --sink sqlite:///alerts.db --sink 'mqtt://127.0.0.1?topic=alerts/{device}&expiry=1h'

An alert is written when it begins and again, with `ended_at`, when it ends, under the same key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ingest.analysis.columns import REJECTS
from spark_ingest.analysis.keyed import Watched, run, waiting
from spark_ingest.analysis.statistics import AnomalyLimits, Statistics
from spark_ingest.contract.job import APPEND, Context, Job, Output, duration, number, option, whole

ALERTS = Output("alerts", ("device", "metric", "kind", "began_at"))
_RESULT = (
    *("device string", "metric string", "kind string", "began_us long", "ended_us long"),
    *("value double", "usual double", "score double"),
)


@dataclass(frozen=True)
class AnomaliesOptions(Watched):
    alpha: float = option("--alpha", number(1e-6, 1), "0.05", "weight of a new value in the mean")
    sigma: float = option("--sigma", number(0.1, 1e6), "6", "deviations that make an outlier")
    jump: float = option("--jump", number(0.1, 1e6), "8", "deviations of the rate: a jump")
    warm_up: int = option("--warm-up", whole(2, 10**6), "30", "values before anything is unusual")
    silence_us: int = option("--silence", duration, "5m", "silent after so long; 0: never")


def build(rows: DataFrame, options: AnomaliesOptions, context: Context) -> DataFrame:
    limits = AnomalyLimits(
        options.alpha, options.sigma, options.jump, options.warm_up, options.silence_us
    )
    found = run(rows, options, partial(Statistics, limits=limits), _RESULT)
    alert = F.struct(
        "device",
        "metric",
        "kind",
        F.timestamp_micros("began_us").alias("began_at"),
        F.timestamp_micros("ended_us").alias("ended_at"),
        "value",
        "usual",
        "score",
    )
    return found.select(
        F.when(F.col("reject").isNull(), alert).alias("alerts"), F.col("reject").alias("rejects")
    )


JOB = Job(
    "anomalies", AnomaliesOptions, (ALERTS, REJECTS), build, lambda options: APPEND, waiting=waiting
)

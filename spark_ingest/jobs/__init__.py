"""The jobs an analyst runs on the telemetry log, one module each.

A job is a function of a DataFrame of the log's rows (`source`), the same for a stream and for a
range of the log, and gives a DataFrame with one struct column for each of its outputs; `job` has
the contract. What a job does not know: where rows come from, where results go, and when.

    job          what a job is: its options, its outputs, its function
    columns      who sent a row, from where, when, and what was measured
    lateness     which rows come too late, and Spark's watermark that never disagrees
    keyed        a pure machine a device, in transformWithState
    statistics findings    the pure machines of `anomalies` and `quality`
    windows clock enrich correlate latest quality anomalies    the jobs

Names and summaries stand here, so that they can be listed without importing pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_ingest.contract.job import Job

SUMMARIES: Final = {
    "windows": "statistics per device, site and metric over tumbling, hopping or session windows",
    "clock": "how wrong each device's clock is, and how late its messages come",
    "enrich": "each message with its device's registry row that was valid at the time",
    "correlate": "requests with their answers: commands and responses, alarms and acknowledgements",
    "latest": "the last known state of each device, with its registry row",
    "quality": "duplicates, gaps in sequence numbers, silent devices, stuck sensors",
    "anomalies": "outliers, jumps and silence per device, as alerts",
}


def load(name: str) -> Job:
    """Return the job of a name of `SUMMARIES`."""
    job: Job = importlib.import_module(f"{__name__}.{name}").JOB
    return job

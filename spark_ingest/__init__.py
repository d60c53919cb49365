"""Spark on the telemetry log: a data source, jobs, sinks; and a bridge that fills a log.

    import spark_ingest
    spark_ingest.register(spark)
    rows = spark.read.format("fleetmq").option("path", "data/streams").option("stream", "t").load()

Rules of this package: only it imports pyspark, and only when that is needed. A reader raises an
error where reading on would lose data; a payload that does not parse becomes a row with a reason; a
sink is idempotent by query and batch. Of the broker it uses only the log's library, which reads
files or the broker's HTTP server; jobs and source never use MQTT. Two parts do, each as an ordinary
client: the sink `mqtt://`, and the bridge, which does not use Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.lazy import attributes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ingest.contract.job import Context, Job, OptionError, Output, option
    from spark_ingest.contract.sink import Batch, Sink, SinkError, open_sink
    from spark_ingest.jobs import load
    from spark_ingest.registry import Registry
    from spark_ingest.rejects import split

__all__ = [
    "Batch",
    "Context",
    "Job",
    "OptionError",
    "Output",
    "Registry",
    "Sink",
    "SinkError",
    "load",
    "open_sink",
    "option",
    "register",
    "split",
]

# The modules that have these names, for `__getattr__`.
_PLACES: Final = {
    "spark_ingest.contract.job": "Context Job OptionError Output option",
    "spark_ingest.contract.sink": "Batch Sink SinkError open_sink",
    "spark_ingest.jobs": "load",
    "spark_ingest.registry": "Registry",
    "spark_ingest.rejects": "split",
}
__getattr__ = attributes(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register(spark: SparkSession) -> None:
    """Make `format("fleetmq")` known to a session."""
    from spark_ingest.source.data_source import FleetmqDataSource

    spark.dataSource.register(FleetmqDataSource)

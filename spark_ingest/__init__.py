"""Spark on the telemetry log: a data source, jobs, sinks; and a bridge that fills a log.

    import spark_ingest
    spark_ingest.register(spark)
    rows = spark.read.format("fleetmq").option("path", "data/streams").option("stream", "t").load()

Rules of this package: it alone imports pyspark, and not before it is needed. A reader
raises where reading on would lose data; what does not parse is a row with a reason; a sink is
idempotent by query and batch. Of the broker it knows the log's library alone, which reads files or
asks the broker's HTTP server; jobs and source never speak MQTT. Two things at the edges do, each as
a client like any other: the sink `mqtt://`, and the bridge, which Spark has no part in.
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

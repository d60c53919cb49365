"""Running jobs in a test, and reading what they wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_ingest import register
from spark_ingest.contract.job import Context
from spark_ingest.contract.sink import Sink, open_sink
from spark_ingest.jobs import load
from spark_ingest.run import runner
from tests.spark_ingest.telemetry import STREAM, Key


def run(
    spark: SparkSession,
    job: str,
    log: Path,
    sinks: Sequence[str | Sink],
    *,
    checkpoint: Path | None = None,
    context: Context | None = None,
    max_rows: int = 0,
    accepts_loss: bool = False,
    drains: bool = False,
    **settings: Any,
) -> runner.Progress:
    """A job over what is in the log: with a checkpoint as a stream, else as a batch."""
    register(spark)
    one = load(job)
    source = {"path": str(log), "stream": STREAM, "startingOffsets": "earliest"}
    if drains:
        source["drain"] = "true"
    if max_rows:
        source["maxRowsPerTrigger"] = str(max_rows)
    opened = tuple(open_sink(sink) if isinstance(sink, str) else sink for sink in sinks)
    parsed = one.parse(settings)
    plan = runner.Plan(
        one,
        parsed,
        context or Context(),
        opened,
        runner.log_rows(source, one, parsed, is_stream=checkpoint is not None),
        checkpoint=str(checkpoint),
        once=True,
        accepts_loss=accepts_loss,
    )
    try:
        if checkpoint is None:
            return runner.batch(spark, plan)
        return runner.stream(
            spark, plan, is_stopped=lambda: False, on_progress=lambda progress: None
        )
    finally:
        for sink in opened:
            sink.close()


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def rows(path: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def us(text: str) -> int:
    found = datetime.fromisoformat(text).replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


NAMES = ("count", "mean", "min", "max", "stddev", "p50", "p95", "p99", "late")


def windows_in(path: Path, query: Callable[[Path, str], list[Any]] = rows) -> dict[Key, Any]:
    """The table `windows`, keyed as `telemetry.windows` is."""
    found = query(
        path,
        f"SELECT device, site, metric, window_start, window_end, {', '.join(NAMES)} FROM windows",
    )
    return {
        (device, site, metric, us(start), us(end)): dict(zip(NAMES, rest, strict=True))
        for device, site, metric, start, end, *rest in found
    }

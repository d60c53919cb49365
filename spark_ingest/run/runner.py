"""Running a job: rows from the log, through the job, to the sinks.

    stream(...)   micro-batches from a checkpoint on, until stopped, or until the log is drained
    batch(...)    a range of the log, once

Spark records the offsets of a micro-batch in the checkpoint before it reads them; then the sinks
write its results; then Spark records that it is done. After a crash in between Spark reads the same
offsets again, and the sinks recognize the batch.
"""

from __future__ import annotations

import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_ingest.analysis.lateness import OBSERVED
from spark_ingest.contract.job import APPEND, EACH_BATCH, UPDATE, Context, Job
from spark_ingest.contract.sink import Batch, Sink
from spark_ingest.payloads.columns import END
from spark_ingest.run import spark_session
from spark_ingest.source.losses import LossError, Losses, dropped_rows

LOOK_EVERY_S: Final = 0.2
# How long a stop waits for the batch that is under way.
STOP_S: Final = 30.0
FORMAT: Final = "fleetmq"
_OBSERVED: Final = "ingest"
_QUERY_ID: Final = "sql.streaming.queryId"


class RunError(Exception):
    """A run that failed, in one line."""


class ReadError(Exception):
    """The log is not there or options are wrong; nothing was read. One line."""


@dataclass(slots=True)
class Progress:
    """The progress of a run, updated with each batch."""

    batch: int = -1
    rows: int = 0
    rejects: int = 0
    late: int = 0  # corrected a window
    left_out: int = 0  # too late, or of the future
    dead_letters: int = 0  # results that a sink could not take
    dropped: int = 0  # by Spark, at least, and accepted
    results: int = 0
    seconds: float = 0.0  # of the last batch
    rows_last: int = 0
    waiting: str = ""  # what is read, and not told yet; with `once` only
    lag_s: float | None = None  # how old the newest row was when it was written
    by_output: dict[str, int] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        return self.rows_last / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    job: Job
    settings: Any
    context: Context
    sinks: tuple[Sink, ...]
    read: Callable[[SparkSession], DataFrame]  # the log's rows, a stream or a range
    checkpoint: str = ""
    trigger: str = "1 second"
    once: bool = False
    accepts_loss: bool = False  # continue although Spark has dropped rows that are not late


def log_rows(
    options: Mapping[str, str], job: Job, settings: Any, *, is_stream: bool
) -> Callable[[SparkSession], DataFrame]:
    """Return a reader of the log with these options and only the columns that the job reads."""

    def read(spark: SparkSession) -> DataFrame:
        def load(**more: str) -> DataFrame:
            reader = spark.readStream if is_stream else spark.read
            return reader.format(FORMAT).options(**options, **more).load()

        try:
            wanted = [name for name in load().columns if job.reads(name, settings)]
            rows = load(columns=",".join(wanted), keepPayload="rejected")
        except PySparkException as error:
            raise ReadError(explain(error)) from error
        if "reject_reason" not in wanted:  # payloads are not parsed
            rows = rows.withColumn("reject_reason", F.lit(None).cast("string"))
        return rows

    return read


def _observed(rows: DataFrame) -> DataFrame:
    return rows.observe(
        _OBSERVED,
        F.count_if(F.col("partition") != END).alias("rows"),
        F.count_if(F.col("reject_reason").isNotNull()).alias("rejects"),
        F.unix_micros(F.max("received")).alias("newest_us"),
    )


class _Writer:
    """The function that Spark calls with each micro-batch."""

    def __init__(self, spark: SparkSession, plan: Plan, progress: Progress, losses: Losses) -> None:
        self._spark = spark  # the one that Spark gives with a batch knows no queries
        self._plan = plan
        self._progress = progress
        self._losses = losses
        self._counted = -1  # the batch of which it is known what it dropped
        self.error: Exception | None = None  # Spark wraps it; this one has the clear line

    def __call__(self, frame: DataFrame, number: int) -> None:
        plan = self._plan
        try:
            query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            assert query, "Spark does not say which query this is"
            if plan.job.mode(plan.settings) == EACH_BATCH:
                frame = plan.job.build(frame, plan.settings, plan.context)

            def check() -> None:
                self.count_dropped(number, dropped_rows(self._spark, query))

            write(plan, frame, query, number, self._progress, check)
        except Exception as error:
            self.error = error
            raise

    def count_dropped(self, number: int, rows: int) -> None:
        """Count dropped rows once a batch. Raises LossError unless losses are accepted."""
        if rows and number > self._counted:
            self._counted = number
            self._losses.add(number, rows, is_accepted=self._plan.accepts_loss)
            self._progress.dropped += rows


def write(
    plan: Plan,
    frame: DataFrame,
    query: str,
    number: int,
    progress: Progress,
    check: Callable[[], None],
) -> None:
    """Write a batch to every sink. `check` raises if its results may not be written or kept."""
    batch = Batch(query, number, plan.job.name, frame, plan.job.outputs, check)
    for sink in plan.sinks:
        sink.write(batch)
    progress.dead_letters += batch.dead_letters
    check()  # of what executors wrote: nobody computed it before
    if batch.is_collected:
        for name, table in batch.tables.items():
            progress.results += table.num_rows
            progress.by_output[name] = progress.by_output.get(name, 0) + table.num_rows


def batch(spark: SparkSession, plan: Plan) -> Progress:
    """Run the job on a range of the log, as one batch of a query of its own."""
    began = time.monotonic()
    progress = Progress()
    seen = Observation(_OBSERVED)
    rows = plan.read(spark).observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("reject_reason").isNotNull()).alias("rejects"),
    )
    frame = plan.job.build(rows, plan.settings, plan.context)
    try:
        write(plan, frame, str(uuid.uuid4()), 0, progress, lambda: None)
    except PySparkException as error:
        raise RunError(explain(error)) from error
    progress.batch = 0
    progress.rows = progress.rows_last = seen.get["rows"]
    progress.rejects = seen.get["rejects"]
    progress.seconds = time.monotonic() - began
    return progress


def stream(
    spark: SparkSession,
    plan: Plan,
    *,
    is_stopped: Callable[[], bool],
    on_progress: Callable[[Progress], None],
) -> Progress:
    """Run a stream until `is_stopped`, or with `once` until the log is read. Raise RunError."""
    spark_session.prepare(spark)
    progress = Progress()
    losses = Losses(spark, plan.checkpoint)
    try:
        losses.check(is_accepted=plan.accepts_loss)
    except LossError as error:
        raise RunError(str(error)) from None
    writer = _Writer(spark, plan, progress, losses)
    rows = _observed(plan.read(spark))
    mode = plan.job.mode(plan.settings)
    if mode != EACH_BATCH:
        context = dataclasses.replace(plan.context, sources=losses.sources())
        rows = plan.job.build(rows, plan.settings, context)
    stream = (
        rows.writeStream.foreachBatch(writer)
        .option("checkpointLocation", plan.checkpoint)
        .outputMode("update" if mode in (UPDATE, EACH_BATCH) else "append")
        .queryName(plan.job.name)
    )
    stream = stream.trigger(availableNow=True) if plan.once else stream.trigger(
        processingTime=plan.trigger
    )  # fmt: skip
    watch = _Watch(progress, on_progress, writer)
    try:
        query = stream.start()
        try:
            while not _has_ended(query):
                watch.look(query)
                if is_stopped():
                    _stop(query)
                    break
            watch.look(query)
        finally:
            query.stop()
    except LossError as error:
        raise RunError(str(error)) from None
    except PySparkException as error:
        if writer.error is not None:
            raise RunError(explain(writer.error)) from writer.error
        raise RunError(explain(error)) from error
    if plan.once and mode == APPEND:
        progress.waiting = _waiting(spark, plan)
    return progress


def _waiting(spark: SparkSession, plan: Plan) -> str:
    if plan.job.waiting is None:
        return ""
    try:
        return plan.job.waiting(spark, plan.checkpoint)
    except PySparkException:  # nothing was ever read, so there is no state
        return ""


def _has_ended(query: StreamingQuery) -> bool:
    """Wait a moment for it. Raises what ended it."""
    return bool(query.awaitTermination(LOOK_EVERY_S))  # type: ignore[arg-type]  # floats too


def _stop(query: StreamingQuery) -> None:
    """Let the batch end that is under way: nothing is lost if not, but it would be done again."""
    until = time.monotonic() + STOP_S
    while query.status["isTriggerActive"] and time.monotonic() < until:
        if _has_ended(query):
            return


class _Watch:
    """Reads what Spark says of each batch; fails when it dropped what the job would have taken."""

    def __init__(
        self, progress: Progress, on_progress: Callable[[Progress], None], writer: _Writer
    ) -> None:
        self._progress = progress
        self._on_progress = on_progress
        self._writer = writer
        self._seen = -1

    def look(self, query: StreamingQuery) -> None:
        for said in query.recentProgress:
            if said.batchId <= self._seen:
                continue
            self._seen = said.batchId
            dropped = sum(one.numRowsDroppedByWatermark for one in said.stateOperators)
            self._writer.count_dropped(said.batchId, dropped)
            self._add(said)
            self._on_progress(self._progress)

    def _add(self, said: Any) -> None:
        progress = self._progress
        progress.batch = said.batchId
        progress.seconds = said.batchDuration / 1_000
        observed = said.observedMetrics.get(_OBSERVED)
        progress.rows_last = observed["rows"] if observed else 0
        if observed:
            progress.rows += observed["rows"]
            progress.rejects += observed["rejects"]
            if observed["newest_us"] is not None:
                progress.lag_s = time.time() - observed["newest_us"] / 1e6
        if lateness := said.observedMetrics.get(OBSERVED):
            progress.late += lateness["late"]
            progress.left_out += lateness["left_out"]


_TRACE: Final = "Traceback (most recent call last):"
# The last line of a traceback: what was raised, and what it says.
_RAISED: Final = re.compile(r"^((?:\w+\.)*\w+): (.+)$", re.MULTILINE)
_BEHIND: Final = re.compile(r"\n\tat |\n=== Streaming Query ===")
_NOISE: Final = ("SQLSTATE", "PySparkRuntimeError")


def explain(error: BaseException) -> str:
    """Return the line of a failure that names its cause; Spark adds pages of others."""
    text = str(error)
    if _TRACE in text:  # of a Python worker
        trace = _BEHIND.split(text.partition(_TRACE)[2], maxsplit=1)[0]
        found = _RAISED.findall(trace)
        said = [one for one in found if one[0].strip() not in _NOISE]
        if said:
            name, what = said[-1]
            return (
                what if "." in name else f"{name}: {what}"
            )  # this package's own errors need no context
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return first.strip()[:500]

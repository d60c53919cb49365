"""Rows that Spark dropped although they were not late, and the checkpoint that remembers it.

    losses = Losses(spark, checkpoint)
    losses.check(is_accepted=False)        RunError, if rows were dropped and not accepted
    losses.add(batch, rows, is_accepted)   on disk when it returns

Spark drops rows older than its watermark and continues, so a run that failed for this reason would
succeed when it is started again, without these rows in its results. A file in the checkpoint
records the loss until it is accepted.

Spark counts after it has grouped the rows of a task, so the number is a lower bound.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

NAME: Final = "fleetmq_losses.json"
_OFFSETS_HEAD: Final = 2  # lines before those of the sources: version and metadata
_DROPPED: Final = "numRowsDroppedByWatermark"


class LossError(Exception):
    """Results would be short of rows: one line that names the checkpoint and what to do."""


@dataclass(frozen=True, slots=True)
class Loss:
    rows: int  # at least
    batch: int  # the last one that dropped any
    is_accepted: bool


def explain(checkpoint: str, loss: Loss) -> str:
    return (
        f"checkpoint {checkpoint}: Spark dropped at least {loss.rows:,} rows that are not late,"
        f" the last in batch {loss.batch}: they came further behind others than --skew says."
        " Begin with a new --checkpoint and a larger --skew, or go on without these rows with"
        " --accept-loss"
    )


class Losses:
    """The file is where the checkpoint is, on whatever file system that may be."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path(checkpoint, NAME)
        self._unfinished = jvm.org.apache.hadoop.fs.Path(checkpoint, f"{NAME}.new")
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._files = self._path.getFileSystem(configuration)
        self._read_fully = jvm.org.apache.commons.io.IOUtils.toByteArray

    def sources(self) -> int:
        """Return the number of sources in the checkpoint; 0 where nothing was read yet."""
        offsets = self._jvm.org.apache.hadoop.fs.Path(self._checkpoint, "offsets")
        if not self._files.exists(offsets):
            return 0
        batches = [one.getPath() for one in self._files.listStatus(offsets)]
        batches = [path for path in batches if path.getName().isdigit()]
        if not batches:
            return 0
        stream = self._files.open(max(batches, key=lambda path: int(path.getName())))
        try:
            lines = bytes(self._read_fully(stream)).splitlines()
        finally:
            stream.close()
        return len(lines) - _OFFSETS_HEAD

    def read(self) -> Loss | None:
        for path in (self._path, self._unfinished):  # the second: killed in between
            if self._files.exists(path):
                found = self._loaded(path)
                if found is not None:
                    return found
        return None

    def _loaded(self, path: Any) -> Loss | None:
        stream = self._files.open(path)
        try:
            return Loss(**json.loads(bytes(self._read_fully(stream))))
        except ValueError:  # killed before it was whole
            return None
        finally:
            stream.close()

    def check(self, *, is_accepted: bool) -> None:
        """Raise LossError unless a run may go on from this checkpoint."""
        loss = self.read()
        if loss is None or loss.is_accepted:
            return
        if not is_accepted:
            raise LossError(explain(self._checkpoint, loss))
        self._write(Loss(loss.rows, loss.batch, is_accepted=True))

    def add(self, batch: int, rows: int, *, is_accepted: bool) -> None:
        """Record that a batch dropped rows. Raises LossError unless that is accepted."""
        before = self.read()
        known = 0 if before is None or batch <= before.batch else before.rows
        loss = Loss(known + rows, batch, is_accepted)
        self._write(loss)
        if not is_accepted:
            raise LossError(explain(self._checkpoint, loss))

    def _write(self, loss: Loss) -> None:
        stream = self._files.create(self._unfinished, True)
        try:
            stream.write(bytearray(json.dumps(asdict(loss)).encode()))
            stream.hsync()
        finally:
            stream.close()
        self._files.delete(self._path, False)
        self._files.rename(self._unfinished, self._path)


def dropped_rows(spark: SparkSession, query: str) -> int:
    """Return the rows that a query's current batch has dropped, by Spark's own counters."""
    found = spark.streams.get(query)
    assert found is not None, f"Spark knows no query {query}"
    execution: Any = found._jsq.streamingQuery().lastExecution()
    waiting = [execution.executedPlan()]
    rows = 0
    while waiting:
        plan = waiting.pop()
        counter = plan.metrics().get(_DROPPED)
        if counter.isDefined():
            rows += counter.get().value()
        children = plan.children()
        waiting += [children.apply(number) for number in range(children.size())]
    return rows

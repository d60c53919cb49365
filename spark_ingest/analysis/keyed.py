"""Run a pure state machine for each device on its rows, in the order of the log.

A `Machine` does not use Spark: it takes a device's rows one by one and returns findings, and its
state is JSON. `run` puts it into transformWithState, for a stream and for a range alike.

Its input depends only on the log: a device's rows are in one partition (or at least in order within
each partition), and in a micro-batch they are sorted by partition and offset. So the boundaries of
micro-batches and kills do not change the findings. Only silence is not in the log: a timer fires
when the watermark has passed the last row by the machine's timeout. If the device sends again, the
gap between its rows gives the same finding with the same key, so that it is stored once.

The watermark follows the broker's clock. If Spark drops a row as too old, the run fails
(`run.runner`); `--skew` is how far one partition may be read behind another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import TimestampType

from spark_ingest.analysis.columns import (
    Telemetry,
    is_end,
    known_by,
    metric_columns,
    of_topics,
    reject,
    screened,
    text_of,
    time_of,
    value_column,
)
from spark_ingest.analysis.lateness import interval_text, plus
from spark_ingest.contract.job import duration, option

Finding = Mapping[str, Any]
_REJECT: Final = (
    "struct<stream_partition: int, stream_offset: bigint, received: timestamp, client_id: string,"
    " topic: string, reason: string, payload: binary>"
)
SPARK_EPOCH_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """A message of a device, as the input of machines."""

    partition: int
    offset: int
    at_us: int
    received_us: int
    sequence: int | None
    is_rejected: bool
    values: Mapping[str, float]


class Machine(Protocol):
    """The state machine of one device. It keeps nothing beyond what `state` returns."""

    def restore(self, state: Any) -> None:
        """Restore what `state` returned, after a round trip through JSON."""

    def state(self) -> Any: ...

    def read(self, reading: Reading) -> Iterable[Finding]: ...

    def silent_at_us(self) -> int | None:
        """Return the time, by the broker's clock, at which the device counts as silent."""

    def on_silence(self) -> Iterable[Finding]: ...

    def summary(self) -> Iterable[Finding]:
        """Return the row that each micro-batch with messages of this device adds."""


class Maker(Protocol):
    """Creates machines; it is sent to the executors."""

    def __call__(self, device: str) -> Machine: ...


@dataclass(frozen=True)
class Watched(Telemetry):
    skew_us: int = option(
        "--skew", duration, "1m", "how far behind another a partition may be read"
    )


def run(
    rows: DataFrame,
    options: Watched,
    make: Maker,
    result: Sequence[str],
    *,
    sequence: str | None = None,
) -> DataFrame:
    """Return findings as rows of the columns `result` (`name type`), with rejected rows.

    A row has either a finding or `reject`.
    """
    metrics = metric_columns(rows, options)
    nothing = F.lit(None)
    rows = screened(rows, options)
    told = of_topics(rows, options.topics).select(
        known_by(text_of(rows, options.device, "--device")).alias("device"),
        "partition",
        "offset",
        # Only a device whose timeout ends before the end of the log is silent.
        F.when(is_end(), plus(F.col("received"), options.skew_us))
        .otherwise(F.col("received"))
        .alias("received"),
        F.unix_micros(time_of(rows, options.time)).alias("at_us"),
        F.unix_micros("received").alias("received_us"),
        F.col("reject_reason").isNotNull().alias("is_rejected"),
        (_sequence(rows, sequence) if sequence else nothing.cast("bigint")).alias("sequence"),
        F.array(*metrics.values()).cast("array<double>").alias("values"),
        reject(rows).alias("reject"),
    )
    return (
        told.withWatermark("received", interval_text(options.skew_us))
        # Uses the watermark's column, so that Spark does not filter the row out before it.
        .where(~is_end() | (F.col("received") < F.lit(0).cast(TimestampType())))
        .groupBy("device")
        .transformWithState(
            _Processor(make, tuple(metrics), tuple(name for name, _ in map(str.split, result))),
            ", ".join([*result, f"reject {_REJECT}"]),
            outputMode="append",
            timeMode="eventTime",
        )
    )


def _sequence(rows: DataFrame, path: str) -> Any:
    return value_column(rows, path, "--sequence")[0].try_cast("bigint")


def waiting(spark: SparkSession, checkpoint: str) -> str:
    """Describe the waiting state: no rows, but devices watched for silence."""
    state = spark.read.format("statestore").option("readRegisteredTimers", "true")
    found = state.load(checkpoint).count()
    if not found:
        return ""
    return f"the silence of {found:,} devices: it is told when later messages are received"


class _Processor(StatefulProcessor):
    def __init__(self, make: Maker, metrics: tuple[str, ...], names: tuple[str, ...]) -> None:
        self._make = make
        self._metrics = metrics
        self._names = names  # of a finding

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("machine", "json string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        machine = self._machine(key[0])
        found: list[Finding] = []
        told = list(rows)
        for reading in sorted(map(self._reading, told), key=lambda one: one[:2]):
            found += machine.read(Reading(*reading))
        found += machine.summary()
        self._keep(machine)
        yield from map(_row, found)
        nothing = dict.fromkeys(self._names)
        yield from (Row(**nothing, reject=one["reject"]) for one in told if one["is_rejected"])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        machine = self._machine(key[0])
        due_us = machine.silent_at_us()
        if due_us is not None and _timer_ms(due_us) <= expiredTimerInfo.getExpiryTimeInMs():
            found = [*machine.on_silence(), *machine.summary()]
            self._keep(machine)
            yield from map(_row, found)

    def _machine(self, device: str) -> Machine:
        machine = self._make(device)
        kept = self._state.get() if self._state.exists() else None
        if kept is not None:
            machine.restore(json.loads(kept[0]))
        return machine

    def _keep(self, machine: Machine) -> None:
        self._state.update((json.dumps(machine.state(), separators=(",", ":")),))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        due_us = machine.silent_at_us()
        if due_us is not None:
            self._handle.registerTimer(_timer_ms(due_us))

    def _reading(self, row: Row) -> tuple[Any, ...]:
        values = {
            name: value
            for name, value in zip(self._metrics, row["values"], strict=True)
            if value is not None
        }
        return (
            row["partition"],
            row["offset"],
            row["at_us"],
            row["received_us"],
            row["sequence"],
            row["is_rejected"],
            values,
        )

    def close(self) -> None:
        pass


def _timer_ms(due_us: int) -> int:
    return due_us // 1_000 + 1


def _row(finding: Finding) -> Row:
    return Row(**finding, reject=None)


def time(us: int) -> datetime:
    """Convert a time to the type of Spark's rows."""
    return datetime.fromtimestamp(us / SPARK_EPOCH_US, UTC)

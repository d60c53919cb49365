"""`format("fleetmq")`: the telemetry log as a DataFrame, in batches and as a stream.

    spark_ingest.register(spark)
    rows = spark.readStream.format("fleetmq").option("path", log).option("stream", "telemetry")

Spark uses three kinds of processes. The planner creates the data source and asks for its columns;
the process of a streaming query asks for offsets (`LogStreamReader`); workers get a pickled copy of
the reader and a `LogPartition`, and run `task.Task`. They share nothing, so the task and the
partition contain everything that a worker needs.

Offsets are those of the log, with its epoch: `{"epoch": "...", "p0": 17}`. A query whose checkpoint
has another epoch, or offsets after the end or before the earliest ones kept, fails with that error.
`commit` does nothing: Spark calls it a batch late, and the checkpoint decides.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mqtt_broker.streams.format import offsets
from mqtt_broker.streams.format.errors import (
    Damaged,
    Invalid,
    OffsetAhead,
    OffsetGone,
    UnknownStream,
)
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, Offsets, check_range
from mqtt_broker.streams.remote.http_client import Unreachable
from mqtt_broker.streams.remote.remote_source import RemoteSource, open_reader, open_source
from spark_ingest.payloads.columns import Rows, spark_schema, value_shape
from spark_ingest.payloads.decoder import AUTO, JSON, NONE, Decoder
from spark_ingest.payloads.schemas import OBJECT, SchemaError, Shape
from spark_ingest.source.batch_planning import Range, split
from spark_ingest.source.options import ALL, OptionError, Options
from spark_ingest.source.size_limit import TriggerLimits
from spark_ingest.source.task import LogSource, Task

FORMAT: Final = "fleetmq"
# A key among the offsets: the end marker was sent. An older program refuses such offsets.
DRAINED: Final = "drained"
# Long enough for a broker that restarts when a query starts; short enough to report a wrong
# address soon.
START_PATIENCE_S: Final = 10.0
PAUSE_S: Final = 0.25


class LogPartition(InputPartition):
    """The ranges that one task reads. With `drained_us` set, the task yields the end row."""

    def __init__(self, ranges: tuple[Range, ...], drained_us: int | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.drained_us = drained_us


class FleetmqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = Options.of(self.options)
        with _open(options) as source:
            schema = None
            if options.parse != NONE:
                schema = options.schema or source.settings.schema
            if schema is None and options.parse not in ("", NONE):
                raise OptionError(
                    "parse",
                    f"stream {options.stream!r} has no schema: name one with schemaFile, "
                    "or the columns with .schema(...)",
                )
        try:
            return spark_schema(schema, options.columns)
        except SchemaError as error:
            where = "schemaFile" if options.schema else f"the schema of {options.stream!r}"
            raise OptionError(where, str(error)) from None
        except ValueError as error:
            raise OptionError("columns", str(error)) from None

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(Options.of(self.options), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(Options.of(self.options), schema)


class _Reading:
    """The base of both readers. The source is opened on first use and is not pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self._source: LogSource | None = None
        shape, parse = _parsing(options, schema)
        with _open(options) as source:
            epoch = source.epoch
            remote = source if isinstance(source, RemoteSource) else None
        self.task = Task(
            options.where,
            options.stream,
            epoch,
            Rows(schema),
            shape,
            parse,
            options.keep_payload == ALL,
            options.fail_on_data_loss,
            remote,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def log(self) -> LogSource:
        if self._source is None:
            self._source = self.task.open()
        return self._source

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def resolve(self, option: str, text: str) -> Offsets:
        source = self.log()
        try:
            return source.resolve(text)
        except OffsetGone:
            if self.options.fail_on_data_loss:
                raise
            wanted = offsets.parse(text, source.name, source.epoch, source.settings.partitions)
            return self.kept(wanted)
        except Invalid as error:
            raise OptionError(option, error.why) from None

    def kept(self, start: Offsets) -> Offsets:
        """Return the offsets from which reading can go on: `start`, unless records are gone."""
        source = self.log()
        starts = source.starts().ends
        gone = [number for number, offset in enumerate(start.ends) if offset < starts[number]]
        if not gone:
            return start
        earliest = source.earliest().ends
        if self.options.fail_on_data_loss:
            number = gone[0]
            raise OffsetGone(source.name, number, start.ends[number], earliest[number])
        found = [
            earliest[number] if number in gone else offset
            for number, offset in enumerate(start.ends)
        ]
        return Offsets(start.epoch, tuple(found))

    def newest_us(self, end: Offsets) -> int:
        """Return the time of the last message before these offsets; 0 where there is none."""
        source = self.log()
        newest_us = 0
        for number, (kept, until) in enumerate(zip(source.starts().ends, end.ends, strict=True)):
            if kept < until:
                try:
                    with open_reader(source, number, until - 1, until) as reader:
                        for batch in reader.read():
                            newest_us = max(newest_us, batch.header.max_us)
                except Damaged:  # others say it
                    continue
        return newest_us

    def tasks(self, start: Offsets, end: Offsets) -> list[LogPartition]:
        source = self.log()
        check_range(source.name, start, end)
        for number, (offset, latest) in enumerate(zip(end.ends, source.ends().ends, strict=True)):
            if offset > latest:
                raise OffsetAhead(source.name, number, offset, latest)
        wanted = [low < high for low, high in zip(start.ends, end.ends, strict=True)]
        if not any(wanted):
            return []
        # A partition that is not read may have lost records.
        asked = tuple(
            low if is_wanted else kept
            for low, kept, is_wanted in zip(start.ends, source.starts().ends, wanted, strict=True)
        )
        kept = self.kept(Offsets(start.epoch, asked)).ends
        starts = tuple(map(min, kept, end.ends))
        ends = tuple(
            high if is_wanted else low
            for low, high, is_wanted in zip(starts, end.ends, wanted, strict=True)
        )
        cores = self.options.tasks_min or _cores()
        return [
            LogPartition(ranges)
            for ranges in split(starts, ends, cores, self.options.task_rows_max)
        ]


class LogReader(DataSourceReader):
    """A range of the log, once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.starting == LATEST:
            raise OptionError("startingOffsets", "from latest on there is nothing to read once")
        for option, limit in (
            ("maxRowsPerTrigger", options.rows_max),
            ("maxBytesPerTrigger", options.bytes_max),
        ):
            if limit:
                raise OptionError(option, "it is for streams: a batch reads all")
        self.reading = _Reading(options, schema)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        reading = self.reading
        try:
            start = reading.resolve("startingOffsets", self._options.starting or EARLIEST)
            end = reading.resolve("endingOffsets", self._options.ending or LATEST)
            found = reading.tasks(start, end)
        finally:
            reading.close()
        # With no partition Spark makes one of its own; this one is ours, and empty.
        return found or [LogPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return self.reading.task.read(partition.ranges)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.ending:
            raise OptionError("endingOffsets", "it is for batches: a stream has no end")
        self.reading = _Reading(options, schema)
        self._options = options
        self._limits = TriggerLimits(options.bytes_max)
        self._last: Offsets | None = None  # with AvailableNow: no further than this

    def initialOffset(self) -> dict[str, Any]:
        start = self.reading.resolve("startingOffsets", self._options.starting or LATEST)
        if self._last is not None:
            start = Offsets(start.epoch, tuple(map(min, start.ends, self._last.ends)))
        return _as_dict(start)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self.reading.log().ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        source = self.reading.log()
        begin, is_drained = self._parsed(start)
        latest = source.ends()
        for number, (offset, end) in enumerate(zip(begin.ends, latest.ends, strict=True)):
            if offset > end:
                raise OffsetAhead(source.name, number, offset, end)
        ends = latest.ends if self._last is None else tuple(map(min, latest.ends, self._last.ends))
        ends = tuple(map(max, begin.ends, ends))
        if ends == begin.ends:
            drains = self._options.drains and self._last is not None
            return _as_dict(begin, is_drained=is_drained or drains)
        if is_drained:
            raise OptionError(
                "startingOffsets",
                "the checkpoint was drained: it has closed what was open, and would drop what is"
                f" new. Begin with a new checkpoint, from {begin.text()}",
            )
        starts = tuple(map(min, self.reading.kept(begin).ends, ends))
        # The engine passes one of these limits or none; if both are set, both apply.
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
            ends = self._limits.reach(source, starts, ends, rows_max)
        return _as_dict(Offsets(source.epoch, ends))

    def reportLatestOffset(self) -> dict[str, Any]:
        return _as_dict(self.reading.log().ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (begin, was_drained), (until, is_drained) = self._parsed(start), self._parsed(end)
        found = self.reading.tasks(begin, until)
        if is_drained and not was_drained:
            found.append(LogPartition((), self.reading.newest_us(until)))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        if partition.drained_us is not None:
            return iter([self.reading.task.rows.end(partition.drained_us)])
        return self.reading.task.read(partition.ranges)

    def stop(self) -> None:
        self.reading.close()

    def _parsed(self, given: dict[str, Any]) -> tuple[Offsets, bool]:
        """Parse offsets, and whether everything before them was drained."""
        source = self.reading.log()
        places = {key: value for key, value in given.items() if key != DRAINED}
        found = offsets.parse(
            json.dumps(places), source.name, source.epoch, source.settings.partitions
        )
        return found, DRAINED in given


def _open(options: Options) -> LogSource:
    try:
        return _answered(options)
    except UnknownStream:
        raise OptionError(
            "stream", f"there is no stream {options.stream!r} in {options.where}"
        ) from None
    except Invalid as error:
        raise OptionError("stream" if error.what == "name" else error.what, error.why) from None


def _answered(options: Options) -> LogSource:
    give_up_at = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            return open_source(options.where, options.stream, options.token or None)
        except Unreachable:
            if time.monotonic() >= give_up_at:
                raise
        time.sleep(PAUSE_S)


def _parsing(options: Options, schema: StructType) -> tuple[Shape | None, str]:
    """Return (the shape of a payload, how it is parsed), by the columns that Spark asks for."""
    try:
        shape = value_shape(schema)
    except ValueError as error:
        raise OptionError("schema", str(error)) from None
    if shape is None:
        return None, NONE
    if options.parse == NONE:
        raise OptionError("parse", "none, but there is to be a column `value`")
    parse = options.parse or (AUTO if shape.kind == OBJECT else JSON)
    try:
        Decoder(shape, parse)
    except (ValueError, ImportError) as error:
        raise OptionError("parse", f"{parse}: {error}") from None
    return shape, parse


def _as_dict(found: Offsets, *, is_drained: bool = False) -> dict[str, Any]:
    """Return offsets in the order of `text`, since Spark compares offsets as written."""
    ordered: dict[str, Any] = json.loads(found.text())
    return {DRAINED: True, **ordered} if is_drained else ordered


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

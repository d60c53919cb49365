"""Read a task's ranges of the log into RecordBatches for Spark.

It runs on any executor, so everything it needs is pickled with it: the place and epoch of the
stream, the columns, and the format of payloads. It does not call Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from mqtt_broker.streams.format.errors import Damaged, OffsetGone, WrongEpoch
from mqtt_broker.streams.format.segment import PartitionFiles
from mqtt_broker.streams.read import arrow
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource, open_source
from spark_ingest.payloads.columns import Rows
from spark_ingest.payloads.decoder import Decoder
from spark_ingest.payloads.schemas import Shape
from spark_ingest.source.batch_planning import Range

LogSource = Source | RemoteSource
_FETCH_BYTES: Final = 4 << 20
_log: Final = logging.getLogger("fleetmq.spark")


@dataclass(frozen=True, slots=True)
class Task:
    where: str
    stream: str
    epoch: str
    rows: Rows
    shape: Shape | None
    parse: str
    keeps_all: bool  # payloads of all rows, not of rejects only
    fails_on_loss: bool
    # Over HTTP: it travels with what it knows, so that no task asks for that again, and a broker
    # that restarts when a task begins is waited for.
    remote: RemoteSource | None = field(default=None, repr=False)

    def open(self) -> LogSource:
        if self.remote is not None:
            return self.remote  # each of its requests says which life of the stream is meant
        source = open_source(self.where, self.stream)
        if source.epoch != self.epoch:
            source.close()
            raise WrongEpoch(self.stream, self.epoch, source.epoch)
        return source

    def read(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self.shape, self.parse) if self.shape is not None else None
        with self.open() as source:
            for found in _joined(self._batches(source, ranges)):
                values: Any = None
                reasons: Any = None
                if decoder is not None:
                    values, reasons = decoder.decode(found.column("payload"))
                yield self.rows.make(found, values, reasons, is_all=self.keeps_all)

    def _batches(self, source: LogSource, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        for part in ranges:
            start = part.start
            while start < part.end:
                try:
                    for found in self._range(source, part.partition, start, part.end):
                        yield found
                        start = found.column("offset")[-1].as_py() + 1
                    break
                except OffsetGone as gone:
                    if self.fails_on_loss:
                        raise
                    _log.warning("%s; failOnDataLoss is false, so reading goes on", gone)
                    start = max(start + 1, gone.earliest)

    def _range(
        self, source: LogSource, partition: int, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        on_damage = None if self.fails_on_loss else _skipped
        if isinstance(source, Source):
            return arrow.record_batches(source, partition, start, end, on_damage=on_damage)
        return _fetched(source, partition, start, end, on_damage)


def _skipped(damage: Damaged) -> None:
    _log.warning("%s; failOnDataLoss is false, so it is left out", damage)


def _fetched(
    source: RemoteSource, partition: int, start: int, end: int, on_damage: Any
) -> Iterator[pa.RecordBatch]:
    where: PartitionFiles = source.partition(partition).files
    with RemoteReader(source, partition, start, end, on_damage) as reader:
        while (sent := reader.fetch(_FETCH_BYTES)) is not None:
            yield from arrow.decode(sent.data, where, sent.start, end, on_damage=on_damage)


def _joined(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each has a fixed cost in Spark and the parser."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in found:
        if waiting and rows + batch.num_rows > arrow.ROWS:
            yield _one(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

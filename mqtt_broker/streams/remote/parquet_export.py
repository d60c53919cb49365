"""Write streams as Parquet files, one row group at a time, so that memory stays bounded.

    batches = record_batches(source, partition, start, until)     of a directory or a URL
    write(file, batches, {"stream": "telemetry"}, on_rows)

The columns are those of `arrow`. Row groups are large enough to compress well and small enough
to be read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mqtt_broker.streams.format.errors import Damaged
from mqtt_broker.streams.read import arrow
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.remote import http_protocol
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource

ROWS: Final = 128 << 10
BYTES: Final = 64 << 20


def record_batches(
    source: Source | RemoteSource,
    partition: int,
    start: int,
    until: int,
    on_damage: Callable[[Damaged], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records between two offsets, from a directory or a URL."""
    if not isinstance(source, RemoteSource):
        yield from arrow.record_batches(source, partition, start, until, on_damage=on_damage)
        return
    files = source.partition(partition).files
    with RemoteReader(source, partition, start, until, on_damage) as reader:
        while (sent := reader.fetch(http_protocol.BYTES_MAX)) is not None:
            yield from arrow.decode(sent.data, files, sent.start, until, on_damage=on_damage)


def write(
    file: IO[bytes],
    batches: Iterable[pa.RecordBatch],
    about: Mapping[str, str],
    on_rows: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write all batches to one file and return the number of rows. `about` is its metadata."""
    schema = arrow.SCHEMA.with_metadata({f"fleetmq.{key}": value for key, value in about.items()})
    rows = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(batches):
            table = pa.Table.from_batches(group, arrow.SCHEMA).replace_schema_metadata(
                schema.metadata
            )
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
            on_rows(table.num_rows)
    return rows


def _groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting

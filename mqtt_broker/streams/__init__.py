"""The telemetry log: streams of messages in partitions, on disk, with offsets.

The names in `__all__` are the public API, which stays compatible; they are imported on first use.

    format/   the bytes of batches and segments, file names, offsets, settings, errors
    write/    write messages from the core to the files of a log, and maintain them: one process
    read/     read the files as batches and Arrow columns, in any process, any number of readers
    remote/   the same over HTTP, from a broker on another machine; the only sockets
    replay/   MQTT clients that subscribe to streams, alone or in consumer groups

This package uses files and locks, but no event loop and no SQL. Callers pass times as microseconds
of Unix time; only `remote` reads the clock. They also decide when a stream is written, and who may
read it.

`read.arrow` and `remote.parquet_export` need pyarrow, which the broker does not: no other module
imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.lazy import attributes

if TYPE_CHECKING:
    from mqtt_broker.streams.format.batch import Batch
    from mqtt_broker.streams.format.errors import (
        CorruptBatch,
        Damaged,
        EndBeforeStart,
        Invalid,
        JournalBehind,
        Locked,
        LostTail,
        MissingSegment,
        OffsetAhead,
        OffsetGone,
        StreamError,
        StreamGone,
        UnknownPartition,
        UnknownStream,
        UnreadableFile,
        WrongEpoch,
    )
    from mqtt_broker.streams.format.offsets import Offsets
    from mqtt_broker.streams.format.records import Record, records
    from mqtt_broker.streams.format.stream_settings import StreamSettings
    from mqtt_broker.streams.read.arrow import record_batches
    from mqtt_broker.streams.read.reader import Reader
    from mqtt_broker.streams.read.source import Source
    from mqtt_broker.streams.read.verify import verify
    from mqtt_broker.streams.remote.http_client import NotAllowed, Rejected, Unreachable
    from mqtt_broker.streams.remote.remote_source import (
        RemoteReader,
        RemoteSource,
        list_streams,
        open_reader,
        open_source,
    )
    from mqtt_broker.streams.write.log import Log
    from mqtt_broker.streams.write.writer import LogWriter

__all__ = [
    "Batch",
    "CorruptBatch",
    "Damaged",
    "EndBeforeStart",
    "Invalid",
    "JournalBehind",
    "Locked",
    "Log",
    "LogWriter",
    "LostTail",
    "MissingSegment",
    "NotAllowed",
    "OffsetAhead",
    "OffsetGone",
    "Offsets",
    "Reader",
    "Record",
    "Rejected",
    "RemoteReader",
    "RemoteSource",
    "Source",
    "StreamError",
    "StreamGone",
    "StreamSettings",
    "UnknownPartition",
    "UnknownStream",
    "Unreachable",
    "UnreadableFile",
    "WrongEpoch",
    "list_streams",
    "open_reader",
    "open_source",
    "record_batches",
    "records",
    "verify",
]

# The modules that have these names, for `__getattr__`.
_PLACES: Final = {
    "mqtt_broker.streams.format.batch": "Batch",
    "mqtt_broker.streams.format.errors": (
        "CorruptBatch Damaged EndBeforeStart Invalid JournalBehind Locked LostTail MissingSegment "
        "OffsetAhead OffsetGone StreamError StreamGone UnknownPartition UnknownStream "
        "UnreadableFile WrongEpoch"
    ),
    "mqtt_broker.streams.format.offsets": "Offsets",
    "mqtt_broker.streams.format.records": "Record records",
    "mqtt_broker.streams.format.stream_settings": "StreamSettings",
    "mqtt_broker.streams.read.arrow": "record_batches",
    "mqtt_broker.streams.read.reader": "Reader",
    "mqtt_broker.streams.read.source": "Source",
    "mqtt_broker.streams.read.verify": "verify",
    "mqtt_broker.streams.remote.http_client": "NotAllowed Rejected Unreachable",
    "mqtt_broker.streams.remote.remote_source": (
        "RemoteReader RemoteSource list_streams open_reader open_source"
    ),
    "mqtt_broker.streams.write.log": "Log",
    "mqtt_broker.streams.write.writer": "LogWriter",
}
__getattr__ = attributes(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

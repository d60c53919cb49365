"""The telemetry log: streams of messages in partitions, on disk, with offsets.

The names in `__all__` are the public API, which is kept; they are loaded when they are used.

Rules of this room: files and threads' locks, but no socket, no loop, no SQL and no clock; time
comes in as microseconds of Unix time. What a stream is for, who may read it and when it is
written is decided by those who call. One process writes (`log`, `writer`), any number read
(`source`, `reader`), in that process or in another, and all of them read files only; `remote`
reads what a broker on another machine serves. What talks to a socket is `connection` alone, by
http.client, and it waits by the clock.

    batch builder         the bytes of a batch, and the columns of one that is being filled
    disk names            the calls that change the disk, what files are called
    segment index catalog the batches of a file; where an offset or a time is in it; sealed files
    partition recovery    one partition: written to, rolled, cut back; opened after a crash
    stream log writer     partitions with one epoch; all streams; the way from the loop to the disk
    source reader         finding places, reading on from them
    retention compaction  what is given up
    offsets settings      what people write
    partitioners times    which partition, and when the device says it was
    remote connection     the same from another machine; HTTP
    replay                MQTT clients that read: the broker's replay door, and what it is made of:
    starts pages takers       where one begins, what a thread reads, at which pace it is sent
    consumers                 groups, who has which partition, what fails
    ahead notices letters     bounds, what clients are told, what is given up; figures of all that
    wire                  what both ends of that agree on
    verify arrow parquet  tools: looking for damage, rows; columns for Arrow, and for files

`arrow` and `parquet` need pyarrow, which the broker does not: nothing else here imports it.
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

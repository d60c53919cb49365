"""Read a stream on another machine over the broker's HTTP server, like a local one.

    source = open_source("http://broker:9883", "telemetry", token)     or a directory
    start = source.resolve("earliest")
    with open_reader(source, 0, start.ends[0]) as reader:
        while batches := reader.read():
            ...

The interface is that of `source` and `reader`, plus the errors of `http_client`. Checksums are
verified on this side, and damage on the server raises the same error here. A broken connection
loses and repeats nothing, since each request names an offset.

A source can be pickled with its address and state; the copy opens its own connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import (
    NEVER,
    Batch,
    Header,
    Malformed,
    check_body,
    seed_of,
    split,
)
from mqtt_broker.streams.format.errors import (
    Damaged,
    EndBeforeStart,
    Invalid,
    StreamGone,
    UnknownPartition,
    UnknownStream,
)
from mqtt_broker.streams.format.event_times import TIME_US_MAX
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, Offsets, parse
from mqtt_broker.streams.format.records import time_text
from mqtt_broker.streams.format.segment import PartitionFiles
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source, stream_names
from mqtt_broker.streams.remote import http_protocol
from mqtt_broker.streams.remote.http_client import (
    NOT_A_BROKER,
    PATIENCE_S,
    TIMEOUT_S,
    HttpClient,
    Rejected,
    Reply,
)

_TRIES: Final = 3  # how often an answer that arrives damaged is requested


class RemotePartition(NamedTuple):
    """A partition on a server, with the names that errors show."""

    files: PartitionFiles


class RemoteSource:
    """A stream on a server, for reading. Any thread may use it."""

    def __init__(
        self,
        url: str,
        name: str,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        file_names.check_stream(name)
        self.address = (url, token or "", timeout_s, patience_s)
        self._lock = threading.Lock()
        # An invalid address fails at once.
        with HttpClient(url, token or "", timeout_s, 0) as connection:
            reply = connection.get(f"/streams/{quote(name)}")
            found = connection.json(reply)
        try:
            settings = {**found["settings"], "schema": found["schema"], "epoch": found["epoch"]}
            self.settings = StreamSettings(**known_settings(settings)).checked()
        except (KeyError, TypeError, AttributeError):
            raise Rejected(url, reply.status, NOT_A_BROKER) from None
        self.connection = self.connect()

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "settings": self.settings}

    def __setstate__(self, found: dict[str, Any]) -> None:
        self.address = found["address"]
        self.settings = found["settings"]
        self._lock = threading.Lock()
        self.connection = self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def connect(self) -> HttpClient:
        """Return another connection for a reader of its own; it is opened on first use."""
        url, token, timeout_s, patience_s = self.address
        return HttpClient(url, token, timeout_s, patience_s)

    @property
    def url(self) -> str:
        return self.address[0]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def epoch(self) -> str:
        return self.settings.epoch

    def partition(self, number: int) -> RemotePartition:
        if not 0 <= number < self.settings.partitions:
            raise UnknownPartition(self.name, f"p{number}", self.settings.partitions)
        place = Path(file_names.partition(number))
        return RemotePartition(
            PartitionFiles(self.name, number, place, seed_of(self.epoch, number))
        )

    def end(self, partition: int) -> int:
        """Return the offset up to which a partition may be read now."""
        return self.ends().ends[partition]

    def ends(self) -> Offsets:
        return self.resolve(LATEST)

    def starts(self) -> Offsets:
        """Return the first offsets that can be read."""
        with self._lock:
            reply = self.get(self.connection, "", {})
        found = self.connection.json(reply)
        starts = found.get("starts") if isinstance(found, dict) else None
        try:
            return parse(json.dumps(starts), self.name, self.epoch, self.settings.partitions)
        except Invalid:
            raise Rejected(self.url, reply.status, NOT_A_BROKER) from None

    def earliest(self) -> Offsets:
        """Return the first offsets of the records within the retention."""
        return self.resolve(EARLIEST)

    def resolve(self, text: str) -> Offsets:
        """Return offsets for `earliest`, `latest`, offsets as JSON, or an ISO 8601 time.

        Every partition can be read from these offsets.
        """
        with self._lock:
            reply = self.get(self.connection, "/offsets", {"at": text})
        try:
            return parse(reply.body.decode(), self.name, self.epoch, self.settings.partitions)
        except (Invalid, UnicodeDecodeError):
            raise Rejected(self.url, reply.status, NOT_A_BROKER) from None

    def at_time(self, at_us: int) -> Offsets:
        if at_us >= TIME_US_MAX:
            return self.ends()
        return self.resolve(time_text(max(at_us, 0)) or EARLIEST)

    def describe(self) -> dict[str, Any]:
        """Return the result of `verify.describe` on the server."""
        with self._lock:
            reply = self.get(self.connection, "/describe", {})
        found = self.connection.json(reply)
        if not isinstance(found, dict) or not isinstance(found.get("partitions"), list):
            raise Rejected(self.url, reply.status, NOT_A_BROKER)
        return found

    def get(
        self, connection: HttpClient, path: str, query: Mapping[str, object], wait_s: float = 0
    ) -> Reply:
        """Request data about the stream; raise if it was deleted or created again since."""
        try:
            return connection.get(
                f"/streams/{quote(self.name)}{path}", {**query, "epoch": self.epoch}, wait_s
            )
        except UnknownStream:
            raise StreamGone(self.name) from None  # it existed when it was opened


def known_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that this program knows: a newer broker may send more."""
    known = {field.name for field in fields(StreamSettings)}
    return {key: value for key, value in settings.items() if key in known}


class RemoteBatches(NamedTuple):
    """Whole batches as they came, for `arrow.decode`. Bodies are not checked."""

    data: bytes
    headers: list[Header]
    start: int  # the first offset that was requested
    end: int  # the first offset after it
    segment: str  # its file and position on the server
    position: int


class RemoteReader:
    """Reads one partition. One thread at a time may use it."""

    def __init__(
        self,
        source: RemoteSource,
        partition: int,
        offset: int,
        until: int = NEVER,
        on_damage: Callable[[Damaged], None] | None = None,
    ) -> None:
        self._source = source
        self._files = source.partition(partition).files
        self.partition = partition
        self.offset = offset  # of what is read next
        self._until = until
        self._on_damage = on_damage
        self._doubted = -1  # the offset of a batch that arrived damaged, maybe by the network
        if until < offset:
            raise EndBeforeStart(source.name, partition, offset, until)
        self._connection = source.connect()
        try:
            self._ask(1, 0, until=offset)  # raises if reading cannot start here
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def lag(self) -> int:
        """Return the number of offsets that may be read now."""
        return max(0, min(self._until, self._source.end(self.partition)) - self.offset)

    def read(self, bytes_max: int = http_protocol.BYTES, wait_s: float = 0.0) -> list[Batch]:
        """Read the next batches, at least one and about `bytes_max` bytes; [] at the end.

        At the end it waits up to `wait_s` for more.
        """
        while (sent := self._next(bytes_max, wait_s)) is not None:
            found = self._checked(sent)
            if found:
                return found
        return []

    def fetch(
        self, bytes_max: int = http_protocol.BYTES, wait_s: float = 0.0
    ) -> RemoteBatches | None:
        """Fetch the next batches as bytes, with only their headers checked; None at the end."""
        sent = self._next(bytes_max, wait_s)
        if sent is not None:
            self.offset = max(self.offset, sent.end)
        return sent

    def _next(self, bytes_max: int, wait_s: float) -> RemoteBatches | None:
        while self.offset < self._until:
            try:
                return self._ask(bytes_max, min(wait_s, http_protocol.WAIT_S_MAX), self._until)
            except Damaged as damage:
                self._tell(damage)
                if damage.until <= self.offset:
                    raise
                self.offset = damage.until
        return None

    def _ask(self, bytes_max: int, wait_s: float, until: int) -> RemoteBatches | None:
        query: dict[str, object] = {"offset": self.offset, "max_bytes": max(1, bytes_max)}
        if until != NEVER:
            query["until"] = until
        if wait_s:
            query["wait_s"] = f"{wait_s:.3f}"
        connection = self._connection
        for _ in range(_TRIES):
            reply = self._source.get(connection, f"/p{self.partition}", query, wait_s)
            if reply.status == 204:
                return None
            try:
                return self._sent(reply)
            except Malformed as bad:  # valid on the server: the network has damaged it
                connection.close()
                why = str(bad)
        raise Rejected(self._source.url, reply.status, f"it sent an invalid batch: {why}")

    def _sent(self, reply: Reply) -> RemoteBatches:
        headers = split(reply.body, self._files.seed)
        if not headers or headers[-1].end != reply.number(http_protocol.END):
            raise Malformed("batches are missing")
        if not headers[0].base <= self.offset < headers[0].end:
            raise Malformed(f"it begins with offset {headers[0].base}, not {self.offset}")
        return RemoteBatches(
            reply.body,
            headers,
            self.offset,
            headers[-1].end,
            reply.headers.get(http_protocol.SEGMENT, ""),
            reply.number(http_protocol.POSITION),
        )

    def _checked(self, sent: RemoteBatches) -> list[Batch]:
        found: list[Batch] = []
        view = memoryview(sent.data)
        at = 0
        for header in sent.headers:
            batch = Batch(header, view[at : at + header.length])
            try:
                check_body(header, batch.data)
            except Malformed as bad:
                if not found:  # otherwise return the whole batches first
                    self._damaged(header, sent, at, str(bad))
                break
            batch.start = max(header.base, self.offset)
            batch.until = min(header.end, self._until)
            found.append(batch)
            self.offset = max(self.offset, header.end)
            at += header.length
        return found

    def _damaged(self, header: Header, sent: RemoteBatches, at: int, why: str) -> None:
        if self._doubted != header.base:
            self._doubted = header.base  # once more, over another connection
            self._connection.close()
            return
        first = max(self.offset, header.base)
        self._tell(self._files.corrupt(first, header.end, sent.segment, sent.position + at, why))
        self.offset = header.end

    def _tell(self, damage: Damaged) -> None:
        if self._on_damage is None:
            raise damage
        self._on_damage(damage)


def stream_root(place: Path) -> Path:
    """Return the directory of streams: `place`, or `streams` in a broker's data directory."""
    inner = place / "streams"
    return inner if inner.is_dir() and not (inner / file_names.METADATA).exists() else place


def is_url(place: str) -> bool:
    """Tell whether a place of streams is a URL, not a directory."""
    return place.startswith(("http://", "https://"))


def list_streams(place: str, token: str | None = None) -> list[str]:
    """Return the streams of a directory, or of a broker by the URL of its HTTP server."""
    if not is_url(place):
        return stream_names(stream_root(Path(place)))
    with HttpClient(place, token or "", patience_s=0) as connection:
        reply = connection.get("/streams")
        found = connection.json(reply)
    try:
        return [str(name) for name in found["streams"]]
    except (KeyError, TypeError):
        raise Rejected(place, reply.status, NOT_A_BROKER) from None


def open_source(place: str, name: str, token: str | None = None) -> Source | RemoteSource:
    """Open a stream by its directory, or by the URL of a broker's HTTP server."""
    if is_url(place):
        return RemoteSource(place, name, token)
    return Source.open(stream_root(Path(place)), name)


def open_reader(
    source: Source | RemoteSource,
    partition: int,
    offset: int,
    until: int = NEVER,
    on_damage: Callable[[Damaged], None] | None = None,
) -> Reader | RemoteReader:
    """Return a reader of one partition."""
    if isinstance(source, RemoteSource):
        return RemoteReader(source, partition, offset, until, on_damage)
    return Reader(source, partition, offset, until, on_damage)

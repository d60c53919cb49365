"""What tests of streams share: a log that is written to as the broker does, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import Damaged
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.page_cache import CACHE_BYTES
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter

START_US = 1_700_000_000_000_000
NAME = "telemetry"


class Sent(NamedTuple):
    """What has to come back of a message."""

    topic: str
    client_id: str
    payload: bytes


def sent(record: Record) -> Sent:
    return Sent(record.topic, record.client_id, record.payload)


def decoded(ends: Mapping[str, str]) -> dict[str, Offsets]:
    return {name: Offsets.decode(text) for name, text in ends.items()}


class Writing:
    """A log with its writer and its journal: the part of the broker that matters here."""

    def __init__(
        self,
        root: Path,
        journal: Mapping[str, Offsets] | None = None,
        *,
        salvage: bool = False,
        disk: Disk | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.root = root
        self.lines: list[str] = []
        self.log = Log.open(
            root,
            journal,
            report=self.lines.append,
            salvage=salvage,
            disk=disk,
            cache_bytes=cache_bytes,
        )
        self.writer = LogWriter(self.log, clock_us=lambda: self.now_us)
        self.journal: dict[str, Offsets] = dict(journal or {})
        self.number = 0
        self.now_us = START_US

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def create(self, partitions: int = 1, **settings: Any) -> None:
        self.log.create(StreamSettings(NAME, partitions=partitions, **settings))

    def append(self, messages: Sequence[Sent], name: str = NAME, **more: Any) -> None:
        stream = self.log.streams[name]
        for message in messages:
            taken = self.writer.append(
                stream, message.topic, message.client_id, [message.payload], self.now_us, **more
            )
            assert taken == 1

    def write(self) -> dict[str, str]:
        """Into the log, and not into the journal."""
        self.assign()
        return self.writer.write(self.number)

    def assign(self) -> None:
        self.number += 1
        self.writer.assign(self.number)

    def write_alone(self) -> None:
        """All the way, and the journal does not hear of it."""
        self.assign()
        assert self.writer.is_durable_alone(self.number)
        ends = self.writer.write(self.number, stands_alone=True)
        self.writer.committed(ends, stands_alone=True)

    def commit(self) -> None:
        """All the way."""
        ends = self.write()
        self.journal |= decoded(ends)
        self.writer.committed(ends)

    def put(self, *payloads: bytes, topic: str = "t", client_id: str = "c") -> None:
        """One batch."""
        self.append([Sent(topic, client_id, payload) for payload in payloads])
        self.commit()


def put_many(writing: Writing, batches: int, rows: int = 10, size: int = 100) -> list[bytes]:
    """Batches of rows; all payloads."""
    payloads = []
    for batch in range(batches):
        part = [b"%06d" % (batch * rows + row) + bytes(size - 6) for row in range(rows)]
        writing.put(*part)
        writing.now_us += 1_000_000
        payloads += part
    return payloads


def read(
    root: Path,
    partition: int = 0,
    start: int = 0,
    until: int | None = None,
    name: str = NAME,
    damage: list[Damaged] | None = None,
    bytes_max: int = 1 << 20,
) -> list[Record]:
    """All that is committed, as a reader in another process finds it, however old it is."""
    found: list[Record] = []
    with Source.open(root, name, clock_us=lambda: 0) as source:
        end = source.end(partition) if until is None else until
        on_damage = damage.append if damage is not None else None
        with Reader(source, partition, start, end, on_damage) as reader:
            while batches := reader.read(bytes_max):
                for batch in batches:
                    found += records(batch)
    return found


def payloads(root: Path, partition: int = 0, start: int = 0) -> list[bytes]:
    return [record.payload for record in read(root, partition, start)]


def segments(root: Path, partition: int = 0, name: str = NAME) -> list[Path]:
    return sorted((root / name / f"p{partition}").glob("*.seg"))

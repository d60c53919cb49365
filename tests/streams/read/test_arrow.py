"""The same messages as Arrow columns: every value, every way of joining and cutting."""

from __future__ import annotations

import os
import random
import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.errors import CorruptBatch, Damaged, OffsetGone
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.read import arrow
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.streams.logs import NAME, Sent, Writing, put_many, read, segments


def rows(root: Path, start: int = 0, until: int | None = None, **more: Any) -> list[dict[str, Any]]:
    with Source.open(root, NAME) as source:
        end = source.end(0) if until is None else until
        found: list[dict[str, Any]] = []
        for batch in arrow.record_batches(source, 0, start, end, **more):
            assert batch.schema == arrow.SCHEMA
            batch.validate(full=True)
            found += batch.to_pylist()
        return found


def at(us: int) -> datetime | None:
    return None if us == NULL else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def expected(root: Path, start: int = 0, until: int | None = None) -> list[dict[str, Any]]:
    return [
        {
            "partition": 0,
            "offset": r.offset,
            "received": at(r.received_us),
            "event": at(r.event_us),
            "sent": at(r.sent_us),
            "topic": r.topic,
            "client_id": r.client_id,
            "payload": r.payload,
            "qos": r.qos,
            "retain": r.retain,
            "properties": r.section,
        }
        for r in read(root, 0, start, until)
    ]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Batches of all kinds: times or none, properties or none, sparse or not."""
    rng = random.Random(3)
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=6_000, compact=True, event_time="json:$.e")
        for number in range(60):
            if number == 30:
                writing.log.change(NAME, sent_time="property:s")
            if number == 40:
                writing.log.change(NAME, event_time="")
            messages = [
                Sent(f"t/{rng.randint(0, 60)}/ü", f"dev{rng.randint(0, 9)}", payload)
                for payload in (b'{"e": 5}', b"", b"\xff\xfe", bytes(rng.randint(0, 200)))
            ]
            section = b"\x26\x00\x01s\x00\x0212" if number % 3 else b""
            user = [("s", "12")] if number % 3 else []
            writing.append(messages, qos=number % 3, retain=number % 2 == 0,
                           properties=section, user=user)  # fmt: skip
            writing.commit()
            writing.now_us += 1
            if number == 50:
                assert writing.log.compact(writing.now_us) > 0
    return tmp_path


@pytest.mark.parametrize("size", [1, 10, 16_384])
def test_every_value(mixed: Path, size: int) -> None:
    assert rows(mixed, rows=size) == expected(mixed)


def test_from_anywhere_to_anywhere(mixed: Path) -> None:
    for start in range(0, 241, 17):
        for until in range(start, 241, 23):
            assert rows(mixed, start, until) == expected(mixed, start, until)


def test_small_batches_are_joined_and_large_ones_are_not_cut(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 50)
        with Source.open(tmp_path, NAME) as source:
            sizes = [b.num_rows for b in arrow.record_batches(source, 0, 0, rows=100)]
            assert sizes == [100] * 5
            sizes = [b.num_rows for b in arrow.record_batches(source, 0, 5, 495, rows=4)]
            assert sizes == [5, *[10] * 48, 5]


def test_an_empty_stream_gives_nothing(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        assert rows(tmp_path) == []


def test_columns_outlive_the_reader_and_the_file(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 3, rows=100)
        with Source.open(tmp_path, NAME) as source:
            kept = list(arrow.record_batches(source, 0, 0, rows=1))
        writing.log.delete(NAME)
    assert [b.column("offset").to_pylist() for b in kept] == [
        list(range(base, base + 100)) for base in (0, 100, 200)
    ]


def test_damage_is_raised_or_told(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 5)
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    for place in (1384 + 30, 1384 + 700):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptBatch) as corrupt:
            rows(tmp_path)
        assert (corrupt.value.offset, corrupt.value.until) == (10, 20)
        assert corrupt.value.position == 1384
        damage: list[Damaged] = []
        found = [row["offset"] for row in rows(tmp_path, on_damage=damage.append)]
        assert found == [*range(10), *range(20, 50)]
        assert [str(one) for one in damage] == [str(corrupt.value)]


def test_columns_that_would_lead_arrow_astray_are_refused(tmp_path: Path) -> None:
    """With right checksums, as a program with a mistake would write them."""
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one", b"two")
        seed = writing.log.streams[NAME].partitions[0].files.seed
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    bounds = whole.index(struct.pack("<3i", 0, 3, 6))
    topics = whole.index(struct.pack("<3i", 0, 1, 2))
    for place, values in (
        (bounds, (0, 1 << 30, 6)),
        (bounds, (0, -5, 6)),
        (bounds, (3, 3, 6)),
        (bounds, (0, 3, 5)),
        (topics, (0, 2, 1)),
    ):
        data = bytearray(whole)
        data[place : place + 12] = struct.pack("<3i", *values)
        data[8:12] = struct.pack("<I", zlib.crc32(data[64:]))
        data[4:8] = struct.pack("<I", zlib.crc32(data[8:64], zlib.crc32(data[:4], seed)))
        path.write_bytes(data)
        with pytest.raises(CorruptBatch):
            rows(tmp_path)


def test_batches_that_came_over_a_network(mixed: Path) -> None:
    with Source.open(mixed, NAME) as source:
        where = replace(source.partitions[0].files, directory=Path("elsewhere"))
        found: list[dict[str, Any]] = []
        with Reader(source, 0, 13, 200) as reader:
            while (extent := reader.extent(3_000)) is not None:
                data = os.pread(extent.file, extent.length, extent.position)
                for batch in arrow.decode(data, where, extent.start, 200):
                    found += batch.to_pylist()
        assert found == expected(mixed, 13, 200)
        for wrong in (data[:-1], data[8:], b"x" + data[1:], data + data):
            with pytest.raises(CorruptBatch, match="in what was received"):
                list(arrow.decode(wrong, where, 0))
        flipped = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
        with pytest.raises(CorruptBatch, match="a batch does not match its checksum"):
            list(arrow.decode(flipped, where, 0))


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 3)
    [path] = segments(tmp_path)
    data = path.read_bytes()
    with Source.open(tmp_path, NAME) as source, Reader(source, 0, 0) as reader:
        extent = reader.extent()
        assert extent is not None and extent.length == len(data)
        os.truncate(path, 2_000)
        view = memoryview(bytearray(b"x" * len(data)))
        reader.read_into(view, extent)
        assert bytes(view) == data[:2_000].ljust(len(data), b"\0")


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000)
        put_many(writing, 10)
        epoch = writing.log.streams[NAME].epoch
        writing.log.trim(NAME, Offsets(epoch, (40,)))
        with pytest.raises(OffsetGone):
            rows(tmp_path)
        assert len(rows(tmp_path, 40)) == 60

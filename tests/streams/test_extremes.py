"""Every column of the log at its extremes, written, killed and read back; and its other files.

The columns are those of `records.Record`: one that has no extremes here fails the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.streams.format import committed, file_names, segment_catalog, segment_index
from mqtt_broker.streams.format.batch import (
    NEVER,
    NULL,
    Batch,
    Header,
    check_body,
    decode_header,
    seed_of,
)
from mqtt_broker.streams.format.batch_builder import BatchBuilder, Run
from mqtt_broker.streams.format.event_times import TIME_US_MAX
from mqtt_broker.streams.format.offsets import OFFSET_MAX, Offsets
from mqtt_broker.streams.format.records import Record, as_dict, records
from tests.streams.logs import NAME, Writing, read
from tests.streams.logs import decoded as decoded_ends

SEED: Final = seed_of("epoch", 255)
LARGE_BYTES: Final = 5 << 20  # more than a batch is meant for
NUMBERS: Final = [
    number
    for bits in (7, 8, 15, 16, 31, 32, 62)
    for number in ((1 << bits) - 1, 1 << bits)
]  # fmt: skip
TEXTS: Final = [
    "x", "x" * 65_535, "\N{GRINNING FACE}" * 16_383, "€" * 21_845, "\U0010ffff", "'\"\\%",
]  # fmt: skip
TIMES: Final = [0, 1, -1, *NUMBERS, NEVER - 1, NULL + 1]
USER: Final = b"\x26\x00\x01k" + (65_535).to_bytes(2, "big") + b"v" * 65_535
EXTREMES: Final[dict[str, list[Any]]] = {
    "offset": [0, *NUMBERS, OFFSET_MAX - 1],
    "received_us": TIMES,
    "event_us": [NULL, 0, TIME_US_MAX - 1, *TIMES],
    "sent_us": [NULL, 0, TIME_US_MAX - 1, *TIMES],
    "topic": TEXTS,
    "client_id": ["", *TEXTS],
    "payload": [b"", b"\0", b"\xff" * 65_535, bytes(LARGE_BYTES)],
    "qos": [0, 1, 2],
    "retain": [False, True],
    "section": [b"", b"\x01\x01", USER, USER * 40],
}
PLAIN: Final = Record(0, 5, NULL, NULL, "a/b", "dev", b"payload", 1, False, b"")


def rows() -> list[Record]:
    """Records that are extreme in one column each."""
    assert EXTREMES.keys() == set(Record._fields), EXTREMES.keys() ^ set(Record._fields)
    return [PLAIN._replace(**{name: value}) for name, found in EXTREMES.items() for value in found]


def add(builder: BatchBuilder, record: Record, count: int = 1) -> None:
    run = Run(
        count,
        record.topic.encode(),
        record.client_id.encode(),
        record.section,
        record.qos | record.retain << 2,
        record.received_us,
    )
    event, sent = ([us] * count if us != NULL else [] for us in (record.event_us, record.sent_us))
    builder.append_run(run, [record.payload] * count, len(record.payload), event, sent)


def decoded(data: bytes, count: int = 1) -> list[Record]:
    header = decode_header(data, 0, SEED)
    assert (header.length, header.rows) == (len(data), count)
    batch = Batch(header, memoryview(data))
    check_body(header, batch.data)
    batch.check()
    return list(records(batch))


@pytest.mark.parametrize("count", [1, 2, pytest.param(300, marks=pytest.mark.slow)])
def test_a_batch_says_the_same_when_it_is_read(count: int) -> None:
    for record in rows():
        if record.offset + count > OFFSET_MAX or (count > 2 and len(record.payload) > 65_535):
            continue
        builder = BatchBuilder()
        add(builder, record, count)
        data = b"".join(builder.encode(SEED, record.offset))
        wanted = [record._replace(offset=record.offset + at) for at in range(count)]
        assert decoded(data, count) == wanted


def test_all_of_them_in_one_batch() -> None:
    builder = BatchBuilder()
    wanted = [row._replace(offset=at) for at, row in enumerate(rows())]
    for record in wanted:
        add(builder, record)
    assert decoded(b"".join(builder.encode(SEED, 0)), len(wanted)) == wanted


@pytest.mark.parametrize("span", [1, 1 << 31, (1 << 32) - 1])
def test_a_batch_with_gaps(span: int) -> None:
    builder = BatchBuilder()
    add(builder, PLAIN)
    base = OFFSET_MAX - span
    data = b"".join(builder.encode_sparse(SEED, base, [base + span - 1], base + span))
    assert decoded(data) == [PLAIN._replace(offset=base + span - 1)]
    assert decode_header(data, 0, SEED).span == span
    assert "span" in Header._fields


@pytest.mark.parametrize("stands_alone", [False, True])
def test_what_a_crash_leaves(tmp_path: Path, stands_alone: bool) -> None:
    """By the way that messages go, of which times are found in their payloads."""
    wanted = [
        row for row in rows() if row.offset == 0 and row.received_us == 5
        and (row.event_us, row.sent_us) == (NULL, NULL)
    ]  # fmt: skip
    writing = Writing(tmp_path)
    writing.create()
    stream = writing.log.streams[NAME]
    for record in wanted:
        taken = writing.writer.append(
            stream, record.topic, record.client_id, [record.payload], record.received_us,
            qos=record.qos, retain=record.retain, properties=record.section, is_promised=True,
        )  # fmt: skip
        assert taken == 1
    assert writing.writer.assign(1)
    ends = writing.writer.write(1, stands_alone=stands_alone)
    writing.log.close()  # and nobody was told of the ends but the journal, or not even that
    journal = {} if stands_alone else decoded_ends(ends)
    with Writing(tmp_path, journal):
        found = read(tmp_path)
    assert found == [row._replace(offset=at) for at, row in enumerate(wanted)]


def test_json_of_a_record_with_any_time() -> None:
    for record in rows():
        if 0 <= record.received_us < TIME_US_MAX and record.section[1:2] != b"\x01":
            us = [u if 0 <= u < TIME_US_MAX else NULL for u in (record.event_us, record.sent_us)]
            found = record._replace(event_us=us[0], sent_us=us[1])
            assert as_dict(found, 255)["topic"] == record.topic


def test_places_in_segments() -> None:
    for position in (0, 8, (1 << 32) - 8, 1 << 32, (1 << 35) - 8):
        for base in (0, OFFSET_MAX):
            entry = segment_index.IndexEntry(base, NULL, position)
            assert segment_index.Index(segment_index.encode(entry, SEED), SEED).entry(0) == entry


def test_sealed_segments() -> None:
    for value in (0, *NUMBERS, OFFSET_MAX - 2):
        sealed = segment_catalog.SealedSegment(value, value + 1, value, NULL, NEVER, value)
        found = segment_catalog.Catalog.of([sealed], value + 1)
        again = segment_catalog.Catalog.decode(found.encode(SEED), SEED)
        assert again.encode(SEED) == found.encode(SEED)


@pytest.mark.parametrize("partitions", [1, file_names.PARTITIONS_MAX])
@pytest.mark.parametrize("end", [0, OFFSET_MAX])
def test_ends_of_every_partition(partitions: int, end: int) -> None:
    offsets = Offsets("e" * 36, (end,) * partitions)
    assert Offsets.decode(offsets.text()) == offsets
    size = committed.size_of(partitions)
    assert len(committed.encode(offsets.text(), size)) == size

"""The bytes of a batch: pinned, round trips, and nothing that is damaged passes for good."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format.batch import (
    NEVER,
    NULL,
    Batch,
    Malformed,
    check_body,
    decode_header,
    seed_of,
    times_of,
)
from mqtt_broker.streams.format.batch_builder import BYTES_MAX, BatchBuilder, Run

VECTOR = (
    "464d0107d04b6f95ae48747f000100006400000000000000030000000a0000000300000000000000"
    "05000000000000000500000003000000080000000400000005000000000000000300000000000000"
    "03000000000000000a00000000000000000000000000008000000000000000800000000000000080"
    "0b000000000000000c00000000000000000000000300000008000000000000000106060000000000"
    "00000000010000000300000005000000000000000100000002000000030000000000000003000000"
    "03000000080000000000000000000000020000000400000074747474740000006363630000000000"
    "6f6e6574687265650100010000000000"
)
SEED = seed_of("00000000-0000-0000-0000-000000000000", 3)


def decoded(data: bytes, seed: int = SEED) -> Batch:
    header = decode_header(data, 0, seed)
    if header.length != len(data):
        raise Malformed("a length")
    batch = Batch(header, memoryview(data))
    check_body(header, batch.data)
    batch.check()
    return batch


def run(*payloads: bytes, at: int = 1_000, flags: int = 0, section: bytes = b"") -> BatchBuilder:
    builder = BatchBuilder()
    builder.append_run(Run(len(payloads), b"a/b", b"dev", section, flags, at), payloads, 1)
    return builder


@pytest.mark.parametrize("rows_max", [1, 3, 20, 400])
def test_runs_of_any_length(rows_max: int) -> None:
    """Short runs are packed row by row, long ones by multiplication."""
    rng = random.Random(rows_max)
    builder = BatchBuilder()
    wanted: list[tuple[bytes, bytes, bytes]] = []
    for _ in range(40):
        topic, client = (bytes(rng.choices(b"abc", k=rng.randint(0, 170))) for _ in "tc")
        payloads = [rng.randbytes(rng.randint(0, 3)) for _ in range(rng.randint(1, rows_max))]
        builder.append_run(Run(len(payloads), topic, client, b"", 0, 1), payloads, 1)
        wanted += [(topic, client, payload) for payload in payloads]
    batch = decoded(b"".join(builder.encode(SEED, 0)))
    found = zip(batch.topics(), batch.client_ids(), batch.payloads(), strict=True)
    assert list(found) == wanted


def test_two_messages_by_bytes() -> None:
    data = b"".join(
        run(b"21.5", b"", at=1_700_000_000_000_001, flags=5, section=b"\x01\x01").encode(SEED, 7)
    )
    columns = (
        struct.pack("<2q", 1_700_000_000_000_001, 1_700_000_000_000_001)
        + b"\x05\x05".ljust(8, b"\0")
        + struct.pack("<3i4x", 0, 3, 6)  # topics
        + struct.pack("<3i4x", 0, 3, 6)  # client ids
        + struct.pack("<3i4x", 0, 4, 4)  # payloads
        + struct.pack("<3i4x", 0, 2, 4)  # properties
        + b"a/ba/b\0\0"
        + b"devdev\0\0"
        + b"21.5\0\0\0\0"
        + b"\x01\x01\x01\x01\0\0\0\0"
    )
    length = 64 + len(columns)
    fields = struct.pack("<IqIIqq4I", length, 7, 2, 2, *2 * (1_700_000_000_000_001,), 6, 6, 4, 4)
    head = b"FM\x01\x00"
    crc = zlib.crc32(columns)
    checked = struct.pack("<I", crc) + fields
    header_crc = zlib.crc32(checked, zlib.crc32(head, SEED))
    assert data == head + struct.pack("<I", header_crc) + checked + columns


def test_the_vector_in_hex() -> None:
    """As it was when the format was made: readers of today read it for ever."""
    vector = bytes.fromhex(VECTOR)
    builder = BatchBuilder()
    builder.append_run(Run(1, b"t", b"c", b"", 1, 5), [b"one"], 1, [10], ())
    builder.append_run(Run(2, b"tt", b"c", b"\x01\x00", 6, 3), [b"", b"three"], 1, (), [11, 12])
    assert b"".join(builder.encode_sparse(SEED, 100, [100, 103, 108], 110)) == vector
    batch = decoded(vector)
    assert (batch.base, batch.end, batch.count) == (100, 110, 3)
    assert list(batch.offsets()) == [100, 103, 108]
    assert batch.topics() == [b"t", b"tt", b"tt"]
    assert batch.client_ids() == [b"c"] * 3
    assert batch.payloads() == [b"one", b"", b"three"]
    assert batch.properties() == [b"", b"\x01\x00", b"\x01\x00"]
    assert batch.flags() == bytes((1, 6, 6))
    assert batch.received() == [5, 3, 3]
    assert batch.event() == [10, NULL, NULL]
    assert batch.sent() == [NULL, 11, 12]
    assert times_of(vector) == (3, 5)


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    builder = run(b"one", b"two", section=b"\x01\x00")
    builder.append_run(Run(1, b"other", b"d", b"", 2, 9), [b"x" * 20], 1, [4], [5])
    for parts in (builder.encode(SEED, 5), builder.encode_sparse(SEED, 5, [5, 7, 9], 12)):
        data = b"".join(parts)
        decoded(data)
        for place in range(len(data)):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[place] ^= 1 << bit
                with pytest.raises(Malformed):
                    decoded(bytes(flipped))


def test_a_batch_cut_short_is_found() -> None:
    data = b"".join(run(b"one", b"two").encode(SEED, 0))
    for length in range(len(data)):
        with pytest.raises(Malformed):
            decoded(data[:length])


def test_a_batch_of_another_partition_or_stream_is_none_of_this_one() -> None:
    data = b"".join(run(b"one").encode(SEED, 0))
    for seed in (seed_of("00000000-0000-0000-0000-000000000000", 2), seed_of("another", 3)):
        with pytest.raises(Malformed, match="checksum"):
            decoded(data, seed)


def test_a_batch_of_a_later_format_is_said_to_be_one() -> None:
    data = bytearray(b"".join(run(b"one").encode(SEED, 0)))
    data[2] = 2
    crc = zlib.crc32(data[8:64], zlib.crc32(data[:4], SEED))
    data[4:8] = struct.pack("<I", crc)
    with pytest.raises(Malformed, match="too old"):
        decode_header(bytes(data), 0, SEED)


def test_a_batch_without_rows_covers_offsets() -> None:
    batch = decoded(b"".join(BatchBuilder().encode_sparse(SEED, 40, [], 90)))
    assert (batch.base, batch.end, batch.count) == (40, 90, 0)
    assert (batch.header.min_us, batch.header.max_us) == (NEVER, NULL)
    assert not (batch.payloads() or batch.topics() or batch.properties() or batch.offsets())
    assert batch.row_at(50) == batch.row_since(0) == 0


def test_columns_that_contradict_each_other_are_found_without_a_checksum() -> None:
    builder = run(b"one", b"two")
    good = b"".join(builder.encode(SEED, 0))
    at = decoded(good).places()[7]  # offsets of payloads
    for bounds in ((1, 3, 6), (0, 7, 6), (0, 3, 5)):
        data = bytearray(good)
        data[at : at + 12] = struct.pack("<3i", *bounds)
        batch = Batch(decode_header(good, 0, SEED), memoryview(data))
        with pytest.raises(Malformed, match="not in order"):
            batch.check()


TIMES = st.integers(min_value=0, max_value=1 << 60)
RUNS = st.lists(
    st.tuples(
        st.binary(max_size=12),
        st.binary(max_size=8),
        st.binary(max_size=8),
        st.integers(0, 6),
        TIMES,
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(RUNS, st.integers(0, 1 << 62), st.integers(0, 6))
def test_what_goes_in_comes_out(
    runs: list[tuple[bytes, bytes, bytes, int, int, list[bytes], bool, bool]],
    base: int,
    split: int,
) -> None:
    """In one builder, or joined from two."""
    builders = [BatchBuilder(), BatchBuilder()]
    rows: list[tuple[object, ...]] = []
    for number, (topic, client, section, flags, at, payloads, has_event, has_sent) in enumerate(
        runs
    ):
        count = len(payloads)
        events = [at + 1 + row for row in range(count)] if has_event else []
        sents = [at + 2 + row for row in range(count)] if has_sent else []
        builders[number >= split].append_run(
            Run(count, topic, client, section, flags, at), payloads, 1, events, sents
        )
        for row, payload in enumerate(payloads):
            rows.append(
                (
                    topic,
                    client,
                    payload,
                    section,
                    flags,
                    at,
                    events[row] if events else NULL,
                    sents[row] if sents else NULL,
                )
            )
    first, second = builders
    assert first.takes(second)
    first.join(second)
    batch = decoded(b"".join(first.encode(SEED, base)))
    nulls = [NULL] * len(rows)
    assert rows == list(
        zip(
            batch.topics(),
            batch.client_ids(),
            batch.payloads(),
            batch.properties(),
            batch.flags(),
            batch.received(),
            batch.event() or nulls,
            batch.sent() or nulls,
            strict=True,
        )
    )
    assert list(batch.offsets()) == list(range(base, base + len(rows)))
    received = [row[5] for row in rows]
    assert (batch.header.min_us, batch.header.max_us) == (min(received), max(received))  # type: ignore[type-var]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30, unique=True), st.integers(0, 1100))
def test_rows_are_found_by_offset_and_by_time(offsets: list[int], wanted: int) -> None:
    offsets.sort()
    builder = BatchBuilder()
    for offset in offsets:
        builder.append_run(Run(1, b"t", b"c", b"", 0, offset * 7 % 100), [b""], 1)
    batch = decoded(b"".join(builder.encode_sparse(SEED, 0, offsets, 2000)))
    assert batch.row_at(wanted) == sum(offset < wanted for offset in offsets)
    times = [offset * 7 % 100 for offset in offsets]
    expected = next((row for row, at in enumerate(times) if at >= wanted), len(times))
    assert batch.row_since(wanted) == expected


def test_a_builder_is_full_by_rows_and_by_bytes() -> None:
    builder = BatchBuilder()
    builder.append_run(Run(1, b"t", b"c", b"", 0, 1), [b""], BYTES_MAX - 1)
    assert not builder.is_full
    other = BatchBuilder()
    other.append_run(Run(1, b"t", b"c", b"", 0, 2), [b""], 2)
    assert not builder.takes(other)
    builder.append_run(Run(1, b"t", b"c", b"", 0, 1), [b""], 1)
    assert builder.is_full

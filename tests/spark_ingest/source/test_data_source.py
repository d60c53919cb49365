"""The data source as Spark's processes ask it, without them: offsets, limits, ranges, errors.

What a task gets went through pickle, as it does there.
"""

from __future__ import annotations

import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from mqtt_broker.streams.format.errors import OffsetGone
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from spark_ingest.payloads.columns import spark_schema, value_shape
from spark_ingest.payloads.schemas import shape_of
from spark_ingest.source.batch_planning import TASK_ROWS_MIN, share_rows, split
from spark_ingest.source.data_source import FleetmqDataSource, LogReader, LogStreamReader
from tests.spark_ingest.filled import SCHEMA, everything, options, put
from tests.streams.logs import NAME, Writing

ALL: Final = ReadAllAvailable()


def opened(log: Writing, **more: str) -> FleetmqDataSource:
    return FleetmqDataSource(options(log, **more))


def rows(reader: LogReader | LogStreamReader, tasks: Any) -> list[tuple[int, int]]:
    """Where the rows stand that tasks read."""
    found: list[tuple[int, int]] = []
    for task in tasks:
        there: Any = pickle.loads(pickle.dumps(reader))
        for part in there.read(pickle.loads(pickle.dumps(task))):
            found += zip(
                part.column("partition").to_pylist(), part.column("offset").to_pylist(), strict=True
            )
    return sorted(found)


def batch(log: Writing, **more: str) -> list[tuple[int, int]]:
    source = opened(log, **more)
    reader = source.reader(source.schema())
    return rows(reader, reader.partitions())


def stream(log: Writing, **more: str) -> LogStreamReader:
    source = opened(log, **more)
    return source.streamReader(source.schema())


def step(reader: LogStreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> Any:
    """(the next offsets, the rows up to them)."""
    end = reader.latestOffset(start, limit)
    return end, rows(reader, reader.partitions(start, end))


def test_ranges(log: Writing) -> None:
    put(log, 0, 30_000)
    log.now_us += 60_000_000
    put(log, 30_000, 100)
    time = "2023-11-14T22:13:50Z"
    with Source.open(log.root, NAME) as source:
        at = source.resolve(time)
        ends = source.ends()
    first = [(n, k) for n, end in enumerate(at.ends) for k in range(end)]
    last = [(n, k) for n, end in enumerate(ends.ends) for k in range(at.ends[n], end)]
    assert first
    assert last
    for tasks in ("1", "3", "50"):
        assert batch(log, minPartitions=tasks) == everything(log)
    assert batch(log, maxRecordsPerPartition="7000") == everything(log)
    assert batch(log, endingOffsets=time) == first
    assert batch(log, startingOffsets=time) == last
    assert batch(log, startingOffsets=at.text(), parse="none") == last
    assert batch(log, startingOffsets=at.text(), endingOffsets=at.text()) == []


def test_a_stream_goes_on_where_it_was(log: Writing) -> None:
    put(log, 0, 1000)
    reader = stream(log, startingOffsets="earliest", maxRowsPerTrigger="300")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    at = reader.initialOffset()
    found: list[tuple[int, int]] = []
    for wanted in (300, 300, 300, 100, 0):
        at, some = step(reader, at, limit)
        assert len(some) == wanted
        found += some
    assert sorted(found) == everything(log)
    assert at == reader.reportLatestOffset()
    assert list(at) == sorted(at)
    put(log, 1000, 500)
    reader.stop()
    again = stream(log, maxRowsPerTrigger="300")
    at, found = step(again, at)  # all: the limit is not for this
    assert len(found) == 500


def test_available_now_ends_where_it_began(log: Writing) -> None:
    put(log, 0, 100)
    reader = stream(log, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    put(log, 100, 100)
    at, found = step(reader, reader.initialOffset())
    assert len(found) == 100
    assert reader.latestOffset(at, ALL) == at
    late = stream(log)
    late.prepareForTriggerAvailableNow()
    put(log, 200, 100)
    at = late.initialOffset()
    assert late.latestOffset(at, ALL) == at


def test_a_trigger_has_a_size(log: Writing) -> None:
    for start in range(0, 4000, 50):
        put(log, start, 50)
    with Source.open(log.root, NAME) as source:
        each = max(_bytes_each(source, number) for number in range(3))
    reader = stream(log, startingOffsets="earliest", maxBytesPerTrigger="20000")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(20_000)
    at = reader.initialOffset()
    sizes = []
    while (end := reader.latestOffset(at, limit)) != at:
        sizes.append(sum(end[key] - at[key] for key in end if key != "epoch"))
        at = end
    assert sum(sizes) == 4000
    assert all(20_000 / each * 0.6 < size < 20_000 / each * 1.2 for size in sizes[:-1])
    one = stream(log, startingOffsets="earliest", maxBytesPerTrigger="1")
    at = one.initialOffset()
    end = one.latestOffset(at, one.getDefaultReadLimit())
    assert sum(end[key] - at[key] for key in end if key != "epoch") == 1
    both = stream(log, startingOffsets="earliest", maxBytesPerTrigger="1MB", maxRowsPerTrigger="7")
    assert len(step(both, both.initialOffset(), both.getDefaultReadLimit())[1]) == 7


def _bytes_each(source: Source, number: int) -> float:
    length = rows = 0
    with Reader(source, number, 0) as reader:
        while (extent := reader.extent(1 << 20)) is not None:
            length += extent.length
            rows += sum(header.rows for header in extent.headers)
    return length / rows


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stream": "other"}, "stream: there is no stream 'other' in "),
        ({"stream": "../x"}, "stream: '../x' is invalid: expected up to 100"),
        ({"stream": ""}, "stream: it is empty"),
        ({"path": "/nowhere"}, "stream: there is no stream 'telemetry' in /nowhere"),
        ({"path": ""}, "path: it is missing"),
        ({"url": "http://x"}, "url: path is given too"),
        ({"path": "", "url": "ftp://x"}, "url: 'ftp://x' begins with neither"),
        ({"startingOffset": "earliest"}, "startingOffset: there is no such option: there are"),
        ({"startingOffsets": "yesterday"}, "startingOffsets: 'yesterday' is none of"),
        ({"startingOffsets": '{"p0":1}'}, "startingOffsets: p1 of stream"),
        ({"startingOffsets": '{"p0":'}, "is not valid JSON"),
        ({"startingOffsets": "latest"}, "startingOffsets: from latest on there is nothing"),
        ({"startingOffsets": '{"p0":9,"p1":0,"p2":0}'}, "offset 9 is beyond the end"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest is no end"),
        ({"maxRowsPerTrigger": "5"}, "maxRowsPerTrigger: it is for streams"),
        ({"maxBytesPerTrigger": "5MB"}, "maxBytesPerTrigger: it is for streams"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger: 'much' is not a size"),
        ({"minPartitions": "0"}, "minPartitions: '0' is no whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
        ({"parse": "xml"}, "parse: 'xml' is none of none, json, cbor, auto"),
        ({"columns": "topic,color"}, "columns: there is no column 'color'"),
        ({"columns": "topic,topic"}, "columns: 'topic,topic' is no list of different names"),
        ({"columns": "value", "parse": "none"}, "no column 'value' when payloads are not parsed"),
        ({"schemaFile": "/nowhere"}, "schemaFile: /nowhere: No such file"),
        ({"keepPayload": "some"}, "keepPayload: 'some' is none of all, rejected"),
    ],
)
def test_what_is_wrong_names_its_option(log: Writing, wrong: dict[str, str], said: str) -> None:
    with pytest.raises(Exception) as caught:
        batch(log, **wrong)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text


def test_a_stream_has_no_end(log: Writing) -> None:
    with pytest.raises(ValueError, match="endingOffsets: it is for batches"):
        stream(log, endingOffsets="latest")


def test_a_token_is_in_no_text(log: Writing) -> None:
    source = opened(log, token="secret")
    reader = source.reader(source.schema())
    assert "secret" not in repr(reader.reading.options) + repr(reader.reading.task)


def struct(name: str, kind: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind)])


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (struct("temperature", t.DoubleType()), {}, "no column 'temperature': what payloads have"),
        (struct("offset", t.StringType()), {}, "schema: column 'offset' is bigint, not string"),
        (struct("reject_reason", t.StringType()), {}, "only beside `value`"),
        (
            struct("value", struct("n", t.LongType())),
            {"parse": "none"},
            "parse: none, but there is to be a column",
        ),
        (
            struct("value", struct("b", t.BinaryType())),
            {"parse": "json"},
            "parse: json: JSON has no bytes",
        ),
        (
            struct("value", t.MapType(t.StringType(), t.LongType())),
            {},
            "schema: value: payloads are not read as map<string,bigint>",
        ),
        (
            struct("value", struct("a", t.ArrayType(t.DateType()))),
            {},
            "schema: value.a[]: payloads are not read as date",
        ),
        (struct("value", t.DoubleType()), {"parse": "auto"}, "parse: auto: JSON is told from CBOR"),
    ],
)
def test_wrong_columns_are_said(
    log: Writing, given: t.StructType, more: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        opened(log, **more).reader(given)
    assert said in str(caught.value)


def test_a_schema_comes_back_from_its_columns() -> None:
    columns = spark_schema(SCHEMA, ())
    assert value_shape(columns) == shape_of(SCHEMA)[0]
    again = t.StructType.fromJson(json.loads(columns.json()))
    assert value_shape(again) == shape_of(SCHEMA)[0]


def test_another_life_of_the_stream_is_not_taken_for_it(log: Writing) -> None:
    put(log, 0, 100)
    reader = stream(log)
    at = reader.initialOffset()
    [task, *_] = reader.partitions({**at, "p0": 0}, at)
    log.log.delete(NAME)
    log.create(3, schema=SCHEMA)
    put(log, 0, 200)
    with pytest.raises(Exception, match="another stream"):
        rows(reader, [task])
    again = stream(log, failOnDataLoss="false")
    for ask in (lambda: again.latestOffset(at, ALL), lambda: again.partitions(at, at)):
        with pytest.raises(Exception, match="these offsets are of another stream"):
            ask()
    with pytest.raises(Exception, match="these offsets are of another stream"):
        batch(log, startingOffsets=json.dumps(at))


def test_what_retention_took_is_an_error_or_left_out(log: Writing) -> None:
    for part in range(10):
        put(log, 100 * part, 100)
    start = {"epoch": log.log.streams[NAME].epoch, "p0": 0, "p1": 0, "p2": 0}
    before = stream(log)
    planned = before.partitions(start, before.initialOffset())
    log.log.trim(NAME)
    put(log, 1100, 100)
    with Source.open(log.root, NAME) as source:
        kept, ends = source.starts().ends, source.ends().ends
    assert min(kept) > 0
    rest = [(n, k) for n in range(3) for k in range(kept[n], ends[n])]
    strict, lenient = stream(log), stream(log, failOnDataLoss="false")
    for ask in (
        lambda: strict.latestOffset(start, ALL),
        lambda: strict.partitions(start, strict.initialOffset()),
        lambda: rows(strict, planned),
        lambda: batch(log, startingOffsets=json.dumps(start)),
    ):
        with pytest.raises(Exception, match="is no longer kept, the earliest is"):
            ask()
    assert step(lenient, start)[1] == rest
    assert set(rows(lenient, planned)) <= set(rest)
    assert batch(log, startingOffsets=json.dumps(start), failOnDataLoss="false") == rest
    assert batch(log) == rest


def test_a_log_that_is_behind_the_checkpoint_is_an_error(log: Writing, tmp_path: Path) -> None:
    put(log, 0, 100)
    shutil.copytree(log.root, tmp_path / "backup")
    put(log, 100, 100)
    ahead = stream(log).initialOffset()
    behind = stream(log, path=str(tmp_path / "backup"), failOnDataLoss="false")
    for ask in (
        lambda: behind.latestOffset(ahead, ALL),
        lambda: behind.partitions(behind.initialOffset(), ahead),
    ):
        with pytest.raises(Exception, match="is beyond the end"):
            ask()
    with pytest.raises(Exception, match="is before the start"):
        stream(log).partitions(ahead, behind.initialOffset())


def test_damage_is_an_error_or_left_out(log: Writing) -> None:
    for part in range(5):
        put(log, 100 * part, 100)
    path = min((log.root / NAME / "p1").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(Exception, match="does not match its checksum"):
        batch(log)
    lost = set(everything(log)) - set(batch(log, failOnDataLoss="false"))
    assert 0 < len(lost) < 60
    assert {number for number, _ in lost} == {1}


lists = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20)


@given(lists, st.integers(1, 10**6))
def test_a_limit_is_kept_and_nobody_waits_for_ever(
    found: list[tuple[int, int]], rows_max: int
) -> None:
    starts = [start for start, _ in found]
    ends = [start + rows for start, rows in found]
    shared = share_rows(starts, ends, rows_max)
    assert all(a <= b <= c for a, b, c in zip(starts, shared, ends, strict=True))
    assert sum(shared) - sum(starts) == min(rows_max, sum(ends) - sum(starts))


@given(lists, st.integers(1, 64), st.integers(1, 10**6))
def test_tasks_are_the_range_and_no_more(
    found: list[tuple[int, int]], tasks_min: int, task_rows_max: int
) -> None:
    starts = [start for start, _ in found]
    ends = [start + rows % 20_000 for start, rows in found]
    total = sum(ends) - sum(starts)
    tasks = split(starts, ends, tasks_min, max(task_rows_max, 100))
    at = list(starts)
    for task in tasks:
        assert 0 < sum(part.rows for part in task) <= max(task_rows_max, 100)
        for part in task:
            assert part.start == at[part.partition] < part.end
            at[part.partition] = part.end
    assert at == ends
    if total >= tasks_min * TASK_ROWS_MIN:
        assert len(tasks) >= tasks_min or total == 0


def test_what_is_older_than_the_retention_is_not_read(log: Writing) -> None:
    log.log.change(NAME, retain_s=1_800)
    log.now_us = time.time_ns() // 1_000 - 3_570_000_000
    for number in range(60):
        put(log, number, 1)
        log.now_us += 60_000_000
    found = batch(log)
    assert len(found) == 30
    old = json.dumps({f"p{number}": 0 for number in range(len(log.log.streams[NAME].partitions))})
    with pytest.raises(OffsetGone):
        batch(log, startingOffsets=old)
    assert batch(log, startingOffsets=old, failOnDataLoss="false") == found
    reader = stream(log, startingOffsets="earliest")
    assert step(reader, reader.initialOffset())[1] == found

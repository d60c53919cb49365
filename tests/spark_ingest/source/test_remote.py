"""The data source over HTTP: the same rows, limits and errors as of files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyspark")

from mqtt_broker.streams.remote import remote_source
from mqtt_broker.streams.remote.http_client import Unreachable
from spark_ingest.source import data_source as source_module
from spark_ingest.source.data_source import FleetmqDataSource, LogStreamReader
from tests.http_api.brokers import LogBroker, Serving
from tests.spark_ingest.filled import SCHEMA, everything, put
from tests.spark_ingest.source.test_data_source import rows, step
from tests.streams.logs import NAME

TOKEN: Final = "s3cret-token"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    broker = LogBroker(tmp_path / "data" / "streams")
    broker.create(3, schema=SCHEMA, segment_bytes=4096)
    yield broker
    broker.close()


@pytest.fixture
def http(broker: LogBroker) -> Iterator[Serving]:
    with Serving(broker, broker.root, TOKEN) as serving:
        yield serving


def fill(broker: LogBroker, start: int, count: int) -> None:
    broker.do(lambda: put(broker.writing, start, count))


def opened(http: Serving, **more: str) -> FleetmqDataSource:
    return FleetmqDataSource({"url": http.url, "stream": NAME, "token": TOKEN, **more})


def batch(http: Serving, **more: str) -> list[tuple[int, int]]:
    source = opened(http, **more)
    reader = source.reader(source.schema())
    return rows(reader, reader.partitions())


@contextmanager
def stream(http: Serving, **more: str) -> Iterator[LogStreamReader]:
    source = opened(http, **more)
    reader = source.streamReader(source.schema())
    try:
        yield reader
    finally:
        reader.stop()


def test_a_batch_is_the_log(broker: LogBroker, http: Serving) -> None:
    assert batch(http) == []
    for start in range(0, 30_000, 10_000):
        fill(broker, start, 10_000)
    assert batch(http) == everything(broker.writing)
    assert batch(http, minPartitions="7") == everything(broker.writing)


def test_payloads_are_parsed_there_as_here(broker: LogBroker, http: Serving) -> None:
    fill(broker, 0, 1000)
    found = []
    for where in ({}, {"url": "", "token": "", "path": str(broker.root)}):
        source = opened(http, **where)
        reader = source.reader(source.schema())
        parts = [part for task in reader.partitions() for part in reader.read(task)]
        found.append([row for part in parts for row in part.to_pylist()])
    assert found[0] == found[1]
    assert sum(row["reject_reason"] is None for row in found[0]) == 1000 - 143


def test_a_stream_has_its_limits(broker: LogBroker, http: Serving) -> None:
    for start in range(0, 3000, 100):
        fill(broker, start, 100)
    found: list[tuple[int, int]] = []
    with stream(http, startingOffsets="earliest", maxBytesPerTrigger="20000") as reader:
        limit = reader.getDefaultReadLimit()
        at, some = step(reader, reader.initialOffset(), limit)
        while some:
            assert len(some) < 1000
            found += some
            at, some = step(reader, at, limit)
    assert sorted(found) == everything(broker.writing)


def test_what_is_wrong_is_said(broker: LogBroker, http: Serving) -> None:
    fill(broker, 0, 10)
    for more, said in (
        ({"token": "wrong"}, "the token is missing or wrong"),
        ({"stream": "other"}, "stream: there is no stream 'other'"),
        ({"startingOffsets": '{"p0":99,"p1":0,"p2":0}'}, "offset 99 is beyond the end"),
        ({"startingOffsets": '{"p0":0}'}, "startingOffsets: p1 of stream"),
    ):
        with pytest.raises(Exception) as caught:
            batch(http, **more)
        assert said in str(caught.value)
        assert TOKEN not in str(caught.value)


def test_what_is_gone_over_there_is_an_error(broker: LogBroker, http: Serving) -> None:
    for number in range(0, 1000, 100):
        fill(broker, number, 100)
    with stream(http) as reader:
        at = reader.initialOffset()
        start = {"epoch": at["epoch"], "p0": 0, "p1": 0, "p2": 0}
        planned = reader.partitions(start, at)
        broker.do(lambda: broker.writing.log.trim(NAME))
        with pytest.raises(Exception, match="is no longer kept"):
            rows(reader, planned)
        with pytest.raises(Exception, match="is no longer kept"):
            reader.latestOffset(start, reader.getDefaultReadLimit())
        broker.do(lambda: broker.writing.log.delete(NAME))
        broker.create(3, schema=SCHEMA)
        with pytest.raises(Exception, match="of another stream"):
            rows(reader, planned)


def test_a_task_does_not_ask_what_the_planner_knew(broker: LogBroker, http: Serving) -> None:
    """Else a broker that restarts when a task begins would end the query."""
    fill(broker, 0, 10)
    source = opened(http)
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    sent = pickle.dumps((reader, tasks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_source.RemoteSource, "__init__", None)
        again, tasks = pickle.loads(sent)
        assert rows(again, tasks) == everything(broker.writing)


def test_who_does_not_answer_at_the_start_is_asked_again(
    broker: LogBroker, http: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refusing_twice(where: str, name: str, token: str | None) -> object:
        tries.append(where)
        if len(tries) < 3:
            raise Unreachable(where, "Connection refused")
        return remote_source.open_source(where, name, token)

    monkeypatch.setattr(source_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(source_module, "open_source", refusing_twice)
    opened(http).schema()
    assert len(tries) == 3
    monkeypatch.setattr(source_module, "START_PATIENCE_S", 0.0)
    tries.clear()
    with pytest.raises(Unreachable, match="Connection refused"):
        opened(http).schema()
    assert len(tries) == 1

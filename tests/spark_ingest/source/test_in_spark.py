"""`format("fleetmq")` in a real Spark: batches and streams of a log, whole, once, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_ingest
from tests.spark_ingest.filled import SCHEMA, everything, numbers, options, put
from tests.streams.logs import NAME, START_US, Sent, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    spark_ingest.register(spark)
    return spark


def batch(session: SparkSession, log: Writing, **more: str) -> DataFrame:
    return session.read.format("fleetmq").options(**options(log, **more)).load()


def where(rows: DataFrame) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in rows.select("partition", "offset").collect())


class Streaming:
    """A query that takes what there is, each time anew from its checkpoint."""

    def __init__(self, session: SparkSession, log: Writing, place: Path) -> None:
        self._session = session
        self._log = log
        self._place = place
        self.rows: list[tuple[int, int]] = []
        self.batches: list[int] = []

    def drain(self, **more: str) -> list[int]:
        """How many rows each of its batches had."""
        batches: list[int] = []

        def take(rows: DataFrame, number: int) -> None:
            found = [(row[0], row[1]) for row in rows.select("partition", "offset").collect()]
            batches.append(len(found))
            self.rows += found

        rows = self._session.readStream.format("fleetmq").options(**options(self._log, **more))
        query = (
            rows.load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._place))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
            assert not query.isActive
        finally:
            query.stop()
        self.batches += batches
        return batches


@pytest.fixture
def streaming(session: SparkSession, log: Writing, tmp_path: Path) -> Streaming:
    return Streaming(session, log, tmp_path / "checkpoint")


def test_a_batch_is_the_log(session: SparkSession, log: Writing) -> None:
    section = b"\x03\x00\x01j\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01c"
    payload = (
        b'{"n":1,"t":2,"at":"2026-11-18T12:00:00.5Z","mode":"on","pos":{"x":1},"l":[1,2],"z":0}'
    )
    log.append([Sent("a/b", "c", payload)], qos=1, retain=True, properties=section)
    log.append([Sent("a/ü", "d", b"\xff")])
    log.commit()
    first, second = (row.asDict(True) for row in batch(session, log).orderBy("topic").collect())
    value = first.pop("value")
    assert value.pop("at").isoformat() == "2026-11-18T12:00:00.500000"
    assert value == {"n": 1, "t": 2.0, "mode": "on", "pos": {"x": 1.0}, "l": [1, 2]}
    assert first.pop("properties") == {
        "payload_format": None,
        "content_type": "j",
        "response_topic": None,
        "correlation_data": None,
        "user": [{"name": "a", "value": "b"}, {"name": "a", "value": "c"}],
    }
    assert first.pop("received").timestamp() * 1e6 == START_US
    assert first.pop("event").isoformat() == "2026-11-18T12:00:00.500000"
    del first["partition"]
    assert first == {
        "offset": 0,
        "sent": None,
        "topic": "a/b",
        "client_id": "c",
        "payload": payload,
        "qos": 1,
        "retain": True,
        "reject_reason": None,
    }
    assert (second["topic"], second["payload"]) == ("a/ü", b"\xff")
    assert (second["value"], second["properties"]) == (None, None)
    assert second["reject_reason"] == "no UTF-8"


def test_good_rows_and_rejects_are_all_rows(session: SparkSession, log: Writing) -> None:
    from spark_ingest.rejects import split

    put(log, 0, 1000)
    good, rejected = split(batch(session, log, keepPayload="rejected"))
    assert "reject_reason" not in good.columns
    assert sorted(row[0] for row in good.select("value.n").collect()) == numbers(1000)
    assert good.where("payload is not null").count() == 0
    bad = rejected.collect()
    assert {bytes(row.payload) for row in bad} == {b"%d!" % n for n in range(0, 1000, 7)}
    assert {row.reject_reason for row in bad} == {"no JSON: Extra data at character 1"} | {
        f"no JSON: Extra data at character {digits}" for digits in (2, 3)
    }


def test_a_long_partition_goes_to_many_tasks(session: SparkSession, log: Writing) -> None:
    put(log, 0, 50_000)
    rows = batch(session, log, columns="partition,offset", minPartitions="7")
    assert rows.rdd.getNumPartitions() == 5
    assert where(rows) == everything(log)


def test_columns_are_chosen(session: SparkSession, log: Writing, tmp_path: Path) -> None:
    put(log, 1, 3)
    rows = batch(session, log, columns="value, topic")
    assert rows.columns == ["value", "topic"]
    assert sorted(row.value.n for row in rows.collect()) == [1, 2, 3]
    assert "value" not in batch(session, log, parse="none").columns
    other = tmp_path / "schema.json"
    other.write_text(
        '{"type":"object","properties":{"z":{"type":"integer"},"n":{"type":"number"}}}'
    )
    rows = batch(session, log, schemaFile=str(other), columns="value")
    assert rows.schema["value"].dataType.simpleString() == "struct<z:bigint,n:double>"
    given = "offset LONG, value STRUCT<n: INT, missing: STRING NOT NULL>, reject_reason STRING"
    rows = session.read.format("fleetmq").schema(given).options(**options(log)).load()
    assert rows.columns == ["offset", "value", "reject_reason"]
    assert {row.reject_reason for row in rows.collect()} == {"missing: missing"}
    given = "value STRUCT<n: INT>"
    rows = session.read.format("fleetmq").schema(given).options(**options(log)).load()
    assert sorted(row.value.n for row in rows.collect()) == [1, 2, 3]


def test_an_empty_log_is_no_rows(session: SparkSession, log: Writing) -> None:
    assert batch(session, log).count() == 0


def test_a_stream_takes_everything_once(streaming: Streaming, log: Writing) -> None:
    put(log, 0, 1000)
    assert streaming.drain(startingOffsets="earliest", maxRowsPerTrigger="300") == [300] * 3 + [100]
    put(log, 1000, 500)
    assert streaming.drain(maxRowsPerTrigger="300") == [300, 200]
    assert streaming.drain() == []
    assert sorted(streaming.rows) == everything(log)


def test_a_stream_begins_with_what_comes(streaming: Streaming, log: Writing) -> None:
    put(log, 0, 100)
    assert sum(streaming.drain()) == 0
    put(log, 100, 50)
    assert streaming.drain() == [50]


def test_errors_are_told_with_their_option(
    session: SparkSession, streaming: Streaming, log: Writing
) -> None:
    put(log, 0, 10)
    with pytest.raises(Exception, match="startingoffset: there is no such option: there are"):
        batch(session, log, startingOffset="earliest")
    streaming.drain(startingOffsets="earliest")
    log.log.delete(NAME)
    log.create(3, schema=SCHEMA)
    with pytest.raises(Exception, match="these offsets are of another stream"):
        streaming.drain()

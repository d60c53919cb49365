"""Sinks: what is written, that writing it twice writes it once, and what is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import MetaData, create_engine, text

from spark_ingest.contract.job import Output
from spark_ingest.contract.sink import Batch, SinkError, open_sink
from spark_ingest.sinks import tables
from spark_ingest.sinks.console import lines
from spark_ingest.sinks.mqtt import messages, parse
from spark_ingest.sinks.parquet import read_current
from tests.spark_ingest import results

THINGS = Output("things", ("name",))
NEWEST = Output("newest", ("name",), newer_by=("at", "number"))
_DDL = (
    "things struct<name: string, at: timestamp, amount: double, raw: binary>,"
    " newest struct<name: string, at: timestamp, number: bigint>"
)


def batch(spark: SparkSession, number: int, rows: Sequence[Any], query: str = "q") -> Batch:
    """Rows of (thing, newest), each with its time as text, either may be None."""
    flat = [
        (thing and thing[0], thing and thing[1], thing and thing[2], thing and thing[3],
         newest and newest[0], newest and newest[1], newest and newest[2])
        for thing, newest in rows
    ]  # fmt: skip
    frame: DataFrame = spark.createDataFrame(
        flat, "a string, b string, c double, d binary, e string, f string, g bigint"
    ).selectExpr(
        "CASE WHEN a IS NOT NULL THEN"
        " named_struct('name', a, 'at', CAST(b AS timestamp), 'amount', c, 'raw', d) END AS things",
        "CASE WHEN e IS NOT NULL THEN"
        " named_struct('name', e, 'at', CAST(f AS timestamp), 'number', g) END AS newest",
    )
    return Batch(query, number, "test", frame, (THINGS, NEWEST))


FIRST = [
    (("x", "2026-01-01 00:00:01.5", 1.5, b"\x00\xff"), None),
    (("y'\"", None, None, None), None),
    (None, ("n", "2026-01-01 00:00:05", 1)),
]
SECOND = [
    (("x", "2026-01-01 00:00:02", 2.5, None), ("n", "2026-01-01 00:00:04", 9)),
]
THIRD = [(None, ("n", "2026-01-01 00:00:05", 2))]


def test_sql_replaces_by_key_and_takes_no_batch_twice(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    sink = open_sink(results.url(out), prefix="p_")
    sink.write(batch(spark, 0, FIRST))
    sink.write(batch(spark, 1, SECOND))
    sink.write(batch(spark, 0, FIRST))  # would take x back
    assert results.rows(out, "SELECT * FROM p_things ORDER BY name") == [
        ("x", "2026-01-01 00:00:02.000000", 2.5, None),
        ("y'\"", None, None, None),
    ]
    # A row that is older than the one that is there does not replace it.
    assert results.rows(out, "SELECT * FROM p_newest") == [("n", "2026-01-01 00:00:05.000000", 1)]
    sink.write(batch(spark, 2, THIRD))
    assert results.rows(out, "SELECT number FROM p_newest") == [(2,)]
    assert results.rows(out, "SELECT batch, rows FROM fleetmq_spark_ledger") == [
        (0, 3), (1, 2), (2, 1),
    ]  # fmt: skip
    sink.close()


def test_sql_commits_all_of_a_batch_or_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.db"
    sink = open_sink(results.url(out))
    real = tables.upsert

    def fail(connection: Any, table: Any, output: Output, rows: pa.Table) -> None:
        real(connection, table, output, rows)
        if output is NEWEST:
            raise sqlite3.OperationalError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "upsert", fail)
        with pytest.raises(sqlite3.OperationalError):
            sink.write(batch(spark, 0, FIRST))
    assert results.rows(out, "SELECT name FROM sqlite_master") == []
    sink.write(batch(spark, 0, FIRST))
    assert results.rows(out, "SELECT count(*) FROM things") == [(2,)]
    sink.close()


def test_a_key_that_stands_twice_in_a_batch_is_the_last_one() -> None:
    """PostgreSQL would refuse the batch: a gap that begins and ends in it is such a key."""
    names, at, numbers = ["a", "b", "a", "b"], [1, 9, 2, 3], [1, 2, 3, 4]
    rows = pa.table({"name": names, "at": at, "number": numbers})
    assert tables.last_of_each(rows, THINGS).column("number").to_pylist() == [3, 4]
    assert tables.last_of_each(rows, NEWEST).column("number").to_pylist() == [3, 2]
    assert tables.last_of_each(rows.slice(0, 2), THINGS).equals(rows.slice(0, 2))


def test_any_other_database_gets_the_same_by_two_statements(tmp_path: Path) -> None:
    """The way for databases without ON CONFLICT, on SQLite."""
    engine = create_engine(f"sqlite:///{tmp_path / 'any.db'}")
    schema = pa.schema([("name", pa.string()), ("at", pa.int64()), ("number", pa.int64())])
    rows = [[("a", 5, 1), ("b", 1, 1)], [("a", 4, 9), ("b", 1, 2)], [("a", 5, 2)]]
    with engine.begin() as connection:
        table = tables.table_of(MetaData(), "newest", schema, NEWEST)
        tables.prepare(connection, table)
        for some in rows:
            columns = dict(zip(schema.names, zip(*some, strict=True), strict=True))
            given = pa.table(columns, schema=schema)
            tables.upsert_any(connection, table, NEWEST, given)
        found = connection.execute(text("SELECT * FROM newest ORDER BY name")).fetchall()
    assert [tuple(row) for row in found] == [("a", 5, 2), ("b", 1, 2)]
    engine.dispose()


def test_a_table_of_somebody_else_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    connection = sqlite3.connect(out)
    connection.execute("CREATE TABLE things (name TEXT PRIMARY KEY, colour TEXT)")
    connection.close()
    sink = open_sink(results.url(out))
    with pytest.raises(SinkError, match=r"'things' has no column 'at', 'amount', 'raw'"):
        sink.write(batch(spark, 0, FIRST))
    sink.close()


def test_parquet_replaces_a_batch_that_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = open_sink(f"parquet:{tmp_path}/out")
    for number, rows in ((0, FIRST), (1, SECOND), (1, SECOND)):
        sink.write(batch(spark, number, rows))
    place = f"{tmp_path}/out/things"
    everything = spark.read.parquet(place)
    assert everything.count() == 3
    current = read_current(spark, place, "name").orderBy("name").select("name", "amount")
    assert [tuple(row) for row in current.collect()] == [("x", 2.5), ("y'\"", None)]


def test_messages_depend_on_rows_alone() -> None:
    rows = pa.table({"device": ["a/b", "c"], "kind": ["k", "k"], "value": [1.5, None]})
    output = Output("alerts", ("device", "kind"))
    first, second = messages(rows, output, "alerts/{device}/{kind}")
    assert (first.topic, first.payload) == (
        "alerts/a_b/k",
        b'{"device":"a/b","kind":"k","value":1.5}',
    )
    assert second.topic == "alerts/c/k"
    assert first.id != second.id
    again = messages(rows.set_column(2, "value", [[9.0, 9.0]]), output, "x")
    assert [one.id for one in again] == [first.id, second.id]
    with pytest.raises(SinkError, match="has no 'site' for the topic"):
        messages(rows, output, "alerts/{site}")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "is no URL"),
        ("nosuchdb://host/x", "nosuchdb"),
        ("parquet:", "names no directory"),
        ("python:nosuch.module:Sink", "nosuch"),
        ("mqtt://", "the host is missing"),
        ("mqtt://h?qos=0", "not '0'"),
        ("mqtt://h?colour=red", "unknown option 'colour'"),
        ("mqtt://h?topic=a/%23", "has no wildcards"),
        ("mqtt://h?expiry=soon", "'soon' is not a duration"),
        ("mqtt://h:x", "the port is not a number"),
        ("sqlite:////nosuch/dir/x.db", "unable to open"),
    ],
)
def test_wrong_sinks_are_told_in_a_line(url: str, said: str) -> None:
    with pytest.raises(SinkError, match=said) as caught:
        open_sink(url)
    assert "\n" not in str(caught.value)


def test_the_mqtt_url_says_everything() -> None:
    target = parse("mqtts://me:p%40ss@h/?topic=x/{device}&retain=false&expiry=2m&output=o&qos=2")
    assert (target.host, target.port, target.is_tls) == ("h", 8883, True)
    assert (target.username, target.password) == ("me", "p@ss")
    assert (target.topic, target.retain, target.expiry_s) == ("x/{device}", False, 120)
    assert (target.output, target.qos) == ("o", 2)


def test_the_console_shows_the_first_rows() -> None:
    table = pa.table({"name": ["a", "long\nname"], "value": [1.23456789, None]})
    assert lines(table, 1) == ["name  value", "a     1.23457", "... 1 more"]
    assert lines(table, 9)[2] == "'long\\nname'"

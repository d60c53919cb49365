"""The SQL sink on a real PostgreSQL: COPY, upserts, and the order of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from spark_ingest.sinks.sql import SqlSink, open_engine
from tests.fault.postgres import PostgreSQL
from tests.spark_ingest.sinks.test_sinks import FIRST, SECOND, THIRD, batch

_numbers = itertools.count(1)


@pytest.fixture
def sink(postgresql: PostgreSQL) -> Iterator[SqlSink]:
    sink = SqlSink(open_engine(postgresql.database(f"sink_{next(_numbers)}")))
    yield sink
    sink.close()


def test_postgresql_replaces_by_key_and_takes_no_batch_twice(
    spark: SparkSession, sink: SqlSink
) -> None:
    for number, rows in ((0, FIRST), (1, SECOND), (0, FIRST), (2, THIRD), (2, THIRD)):
        sink.write(batch(spark, number, rows))
    with sink.engine.connect() as connection:
        things = connection.execute(
            text("SELECT name, at AT TIME ZONE 'UTC', amount, raw FROM things ORDER BY name")
        )
        assert [(name, str(at), amount, raw) for name, at, amount, raw in things] == [
            ("x", "2026-01-01 00:00:02", 2.5, None),
            ("y'\"", "None", None, None),
        ]
        assert connection.execute(text("SELECT number FROM newest")).fetchall() == [(2,)]
        ledger = connection.execute(text("SELECT batch FROM fleetmq_spark_ledger ORDER BY 1"))
        assert [tuple(row) for row in ledger] == [(0,), (1,), (2,)]


def test_a_batch_with_binary_values_arrives_as_it_is(spark: SparkSession, sink: SqlSink) -> None:
    sink.write(batch(spark, 0, FIRST))
    with sink.engine.connect() as connection:
        raw = connection.execute(text("SELECT raw FROM things WHERE name = 'x'")).scalar()
        assert raw == b"\x00\xff"

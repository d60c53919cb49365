"""The extremes of every type through every job and every sink: nothing ends a job for good."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, text

from mqtt_broker.testing import ThreadedBroker
from spark_ingest.analysis.findings import Findings
from spark_ingest.analysis.findings import QualityLimits as QualityLimits
from spark_ingest.analysis.keyed import Reading
from spark_ingest.analysis.statistics import AnomalyLimits, Statistics
from spark_ingest.contract.job import Context, Output
from spark_ingest.contract.sink import Sink, open_sink
from spark_ingest.jobs import SUMMARIES
from spark_ingest.payloads.decoder import Decoder
from spark_ingest.payloads.schemas import shape_of
from spark_ingest.sinks import tables
from spark_ingest.sinks.console import ConsoleSink
from spark_ingest.sinks.mqtt import MqttSink, messages, parse
from spark_ingest.sinks.sql import SqlSink, open_engine
from tests.fault.postgres import PostgreSQL, Unavailable
from tests.property_examples import examples
from tests.spark_ingest import extremes, results

LONG: Final = st.sampled_from([n for n in extremes.INTEGERS if -(2**63) <= n < 2**63])
DOUBLE: Final = st.sampled_from(extremes.NUMBERS) | st.floats(allow_nan=False, allow_infinity=False)
TIMES: Final = st.sampled_from([0, 1, 10**15, 253_402_300_799_999_999])
# What is said on the command line, and how many messages the job's outputs account for.
SETTINGS: Final[dict[str, dict[str, str]]] = {
    "windows": {"time": "value:ts", "without": "seq"},
    "clock": {"time": "value:ts"},
    "enrich": {"time": "value:ts"},
    "correlate": {"time": "value:ts", "requests": "plant/#", "answers": "+/d/#", "key": "client"},
    "latest": {"time": "value:ts"},
    "quality": {"time": "value:ts", "stuck_count": "2", "stuck_us": "0"},
    "anomalies": {"time": "value:ts", "warm_up": "2"},
}


def test_every_job_is_asked() -> None:
    assert SETTINGS.keys() == SUMMARIES.keys()


# Pure machines.


@given(st.lists(st.tuples(LONG | st.none(), DOUBLE, TIMES, TIMES, st.booleans()), max_size=12))
@examples(200)
def test_machines_say_only_what_a_column_has_room_for(
    rows: list[tuple[int | None, float, int, int, bool]],
) -> None:
    machines = (
        Findings("d", QualityLimits(2, 0, 10**6)),
        Statistics("d", AnomalyLimits(warm_up=2, silence_us=10**6)),
    )
    for machine in machines:
        found: list[Any] = []
        for at, (number, value, event, received, is_rejected) in enumerate(rows):
            reading = Reading(0, at, event, received, number, is_rejected, {"x": value})
            found += [*machine.read(reading), *machine.summary()]
            machine.restore(machine.state())
        found += machine.on_silence()
        for one in found:
            for name, value in one.items():
                assert not isinstance(value, int) or -(2**63) <= value < 2**63, (name, value)
                is_double = name in ("value", "usual", "score")
                assert not is_double or value is None or isinstance(value, float), (name, value)
                assert not isinstance(value, float) or value - value == 0, (name, value)


def test_a_huge_value_does_not_blind_a_machine_for_ever() -> None:
    machine = Statistics("d", AnomalyLimits(warm_up=5))
    values = [1e300, 20.0, 1.7e308, *[20.0 + n % 3 / 10 for n in range(40)], 900.0]
    found: list[Any] = []
    for at, value in enumerate(values):
        reading = Reading(0, at, at * 10**6, at * 10**6, None, False, {"x": value})
        found += machine.read(reading)
    assert [one["value"] for one in found if one["kind"] == "outlier"][-1] == 900.0


@pytest.mark.parametrize("parse", ["json", "auto"])
def test_times_are_those_that_python_has(parse: str) -> None:
    """By the fast way, and one by one."""
    shape, _ = shape_of(extremes.SCHEMA)
    payloads = [b'{"at":"%s"}' % moment.encode() for moment in extremes.MOMENTS]
    for some in (payloads, *([one] for one in payloads)):
        values, reasons = Decoder(shape, parse).decode(pa.array(some, pa.binary()))
        found = [value and value["at"] for value in values.to_pylist()]
        assert [value is None for value in found] == reasons.is_valid().to_pylist()


# Sinks, without Spark.

THINGS: Final = Output("things", ("name", "at"))
_SCHEMA: Final = pa.schema(
    [
        ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()),
        ("x", pa.float64()), ("s", pa.string()), ("raw", pa.binary()), ("b", pa.bool_()),
    ]
)  # fmt: skip
_TIME_US: Final = (-(2**63), -62_135_596_800_000_001, -62_135_596_800_000_000, -1, 0,
                   253_402_300_799_999_999, 253_402_300_800_000_000, 2**63 - 1)  # fmt: skip


def things() -> pa.Table:
    """A row an extreme, each with the others as they should be, and three good rows."""
    good = ["good", 0, 1, 1.0, "s", b"r", True]
    rows = [[f"good{n}", *good[1:]] for n in range(3)]
    wide = [number for number in extremes.INTEGERS if -(2**63) <= number < 2**63]
    numbers = [*extremes.NUMBERS, float("nan"), float("inf"), float("-inf")]
    columns = ((0, extremes.TEXTS), (1, _TIME_US), (2, wide), (3, numbers), (4, extremes.TEXTS))
    for at, values in columns:
        for number, value in enumerate(values):
            row = [f"{at} {number}", *good[1:]]
            row[at] = value
            rows.append(row)
    arrays = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), _SCHEMA.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


class Batch:
    """As far as sinks look at it."""

    job, query, number, outputs = "test", "q", 0, (THINGS,)

    def __init__(self) -> None:
        self.tables = {"things": things()}
        self.dead_letters = 0


def check_sql(sink: SqlSink) -> list[tuple[str, str]]:
    """(keys, reason) of dead letters; with the rest they are all rows."""
    batch: Any = Batch()
    sink.write(batch)
    with sink.engine.connect() as connection:
        names = {row[0] for row in connection.execute(text("SELECT name FROM things"))}
        dead = connection.execute(
            text("SELECT keys, reason FROM dead_letters ORDER BY number")
        ).fetchall()
        count = connection.execute(text("SELECT count(*) FROM things")).scalar_one()
    assert names >= {"good0", "good1", "good2"}
    assert count + len(dead) == batch.tables["things"].num_rows
    assert batch.dead_letters == len(dead)
    assert all(keys.isascii() and len(keys) <= 1_024 for keys, _ in dead)
    return [(keys, reason) for keys, reason in dead]


def test_sqlite_takes_what_it_can(tmp_path: Path) -> None:
    sink = SqlSink(open_engine(results.url(tmp_path / "out.db")))
    dead = check_sql(sink)
    assert {reason for _, reason in dead} == {"at: a time outside the years 1 to 9999"}
    sink.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    try:
        with PostgreSQL() as server:
            yield server.database("extremes")
    except Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")


def test_postgresql_takes_what_it_can(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known before, and what is told by trying alone, are the same rows."""
    sink = SqlSink(open_engine(postgres))
    known = check_sql(sink)
    assert {reason.partition(":")[0] for _, reason in known} == {
        "name", "s", "at", "keys of more than 2,560 bytes",
    }  # fmt: skip
    with sink.engine.begin() as connection:
        for name in ("things", "dead_letters", "fleetmq_spark_ledger"):
            connection.execute(text(f"DROP TABLE {name}"))
    sink.close()
    monkeypatch.setattr(tables, "troubles", lambda rows, output, dialect: {})
    sink = SqlSink(open_engine(postgres))
    tried = check_sql(sink)
    # 2,800 bytes of one letter are packed into a short row of the index.
    assert {keys for keys, _ in tried} <= {keys for keys, _ in known}
    assert any("index row" in reason for _, reason in tried) or len(tried) < len(known)
    sink.close()


def test_a_database_in_trouble_is_not_taken_for_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(results.url(tmp_path / "out.db"))
    rows = things()

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tables, "upsert", fail)
    table = tables.table_of(MetaData(), "things", rows.schema, THINGS)
    with engine.begin() as connection, pytest.raises(OSError, match="no space"):
        tables.upsert_or_dead_letter(connection, table, THINGS, rows)
    engine.dispose()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_console_shows_everything(encoding: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    batch: Any = Batch()
    ConsoleSink(out, rows_max=10**6).write(batch)
    out.seek(0)
    assert len(out.read().split("\n")) == batch.tables["things"].num_rows + 3


def test_mqtt_sends_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = things()
    assert len(messages(rows, THINGS, "t/{name}")) == rows.num_rows
    with ThreadedBroker(packet_bytes_max=40_000) as broker:
        sink = MqttSink(parse(f"{broker.url}?output=things&topic={'t' * 1000}/{{s}}&timeout=20s"))
        batch: Any = Batch()
        try:
            sink.write(batch)
        finally:
            sink.close()
    # 65,535 letters in the key, and in the topic.
    assert batch.dead_letters == 2


# All of it, through Spark.


def run(spark: SparkSession, job: str, log: Path, sinks: list[str | Sink], **more: Any) -> None:
    results.run(spark, job, log, sinks, context=Context(), **{**SETTINGS[job], **more})


@pytest.mark.slow
@pytest.mark.parametrize("job", ["windows", "quality"])
def test_all_extremes_at_once(spark: SparkSession, tmp_path: Path, job: str) -> None:
    log, count = extremes.write_log(tmp_path / "log")
    out = tmp_path / "out.db"
    run(spark, job, log, [results.url(out)], checkpoint=tmp_path / "c")
    reasons = {row[0].partition(":")[0] for row in results.rows(out, "SELECT reason FROM rejects")}
    assert reasons >= {"device", "ts", "no JSON", "empty", "n"}
    told = "coalesce(sum(count), 0) FROM windows WHERE metric = ''"
    if job == "windows":
        left = results.rows(out, "SELECT sum(count) FROM left_out")[0][0]
        rejected = results.rows(out, "SELECT count(*) FROM rejects")[0][0]
        assert results.rows(out, f"SELECT {told}")[0][0] + left + rejected == count
    else:
        assert results.rows(out, "SELECT sum(messages) FROM device_quality") == [(count,)]
    # Spark knows the log is read: the run after this one has nothing to do.
    run(spark, job, log, [results.url(out)], checkpoint=tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("job", SUMMARIES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_every_job_to_every_sink(
    spark: SparkSession, tmp_path: Path, postgres: str, job: str, is_stream: bool
) -> None:
    log, _ = extremes.write_log(tmp_path / "log")
    prefix = f"{job}_{is_stream}_".lower()
    output = {"enrich": "enriched", "correlate": "correlated", "quality": "findings"}.get(job, job)
    with ThreadedBroker() as broker:
        output = "alerts" if job == "anomalies" else output
        topic = "out/{device}" if job != "correlate" else "out/{key}"
        run(
            spark, job, log,
            [
                open_sink(postgres, prefix=prefix),
                results.url(tmp_path / "out.db"),
                f"parquet:{tmp_path / 'parquet'}",
                f"{broker.url}?output={output}&topic={topic}",
                ConsoleSink(io.StringIO(), rows_max=10**6),
            ],
            checkpoint=tmp_path / "c" if is_stream else None,
        )  # fmt: skip
    assert results.rows(tmp_path / "out.db", "SELECT count(*) FROM rejects")[0][0] > 0
    assert list((tmp_path / "parquet" / "rejects").rglob("*.parquet"))

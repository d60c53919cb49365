"""Every other job over a small log, against what is known of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ingest.contract.job import Context, OptionError
from spark_ingest.contract.sink import SinkError
from spark_ingest.jobs import SUMMARIES, load
from spark_ingest.registry import Registry
from tests.spark_ingest import results
from tests.spark_ingest.telemetry import SECOND, START_US, Message, Writing, write_log


def steady(device: str, count: int, *, ahead_us: int = 0, way_us: int = 50_000) -> list[Message]:
    """One a second; the device's clock is wrong by so much, a message takes so long at least."""
    return [
        Message(
            device, n + 1, START_US + n * SECOND + ahead_us,
            START_US + n * SECOND + way_us + n % 7 * 10_000, 20.0 + n % 5,
        )
        for n in range(count)
    ]  # fmt: skip


def in_order(*told: list[Message]) -> list[Message]:
    return sorted((one for some in told for one in some), key=lambda one: one.received_us)


def test_clock_finds_how_wrong_each_clock_is(spark: SparkSession, tmp_path: Path) -> None:
    told = in_order(
        steady("right", 60), steady("ahead", 60, ahead_us=30 * SECOND),
        steady("behind", 60, ahead_us=-90 * SECOND),
    )  # fmt: skip
    log = write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"
    results.run(spark, "clock", log, [results.url(out)], fastest_us="50ms")
    found = results.rows(
        out,
        "SELECT device, round(clock_ahead_s, 3), late_share, future_share, last_event_corrected"
        " FROM clock ORDER BY device",
    )
    last = "2026-01-01 00:00:59.000000"
    assert found == [
        ("ahead", 30.0, 0.0, 1.0, last),
        ("behind", -90.0, 1.0, 0.0, last),
        ("right", 0.0, 0.0, 0.0, last),
    ]


def registry(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE devices (device TEXT, valid_from TIMESTAMP, valid_to TIMESTAMP, hall TEXT)"
    )
    connection.executemany(
        "INSERT INTO devices VALUES (?, ?, ?, ?)",
        [
            ("d0", None, "2026-01-01 00:00:10", "old"),
            ("d0", "2026-01-01 00:00:10", None, "new"),
        ],
    )
    connection.commit()
    connection.close()
    return path


def test_enrich_takes_the_version_of_that_time(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", in_order(steady("d0", 20), steady("d1", 2)))
    context = Context(Registry(results.url(registry(tmp_path / "reg.db")), "devices"))
    out = tmp_path / "out.db"
    results.run(
        spark, "enrich", log, [results.url(out)], context=context, checkpoint=tmp_path / "c"
    )
    found = results.rows(
        out,
        "SELECT device, registry_hall, known, count(*), sum(temperature) FROM enriched"
        " GROUP BY 1, 2, 3 ORDER BY 1, 2",
    )
    assert found == [
        ("d0", "new", 1, 10, 220.0), ("d0", "old", 1, 10, 220.0), ("d1", None, 0, 2, 41.0),
    ]  # fmt: skip


def test_versions_that_overlap_are_refused(tmp_path: Path) -> None:
    path = registry(tmp_path / "reg.db")
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO devices VALUES ('d0', '2026-01-02', NULL, 'third')")
    connection.commit()
    connection.close()
    with pytest.raises(SinkError, match="two versions of device 'd0'"):
        Registry(results.url(path), "devices").read()
    with pytest.raises(SinkError, match="no table 'nosuch'"):
        Registry(results.url(path), "nosuch")


def test_latest_keeps_the_newest_state(spark: SparkSession, tmp_path: Path) -> None:
    told = in_order(steady("d0", 5), steady("d1", 3))
    late = Message("d0", 99, START_US, START_US + 60 * SECOND, 99.0)
    writing = Writing(tmp_path / "log")
    writing.add(told)
    out = tmp_path / "out.db"
    context = Context(Registry(results.url(registry(tmp_path / "reg.db")), "devices"))

    def run() -> list[tuple[Any, ...]]:
        results.run(
            spark, "latest", writing.root, [results.url(out)],
            context=context, checkpoint=tmp_path / "c",
        )  # fmt: skip
        return [
            (device, json.loads(value)["seq"], hall)
            for device, value, hall in results.rows(
                out, "SELECT device, value, registry_hall FROM latest ORDER BY device"
            )
        ]

    assert run() == [("d0", 5, "old"), ("d1", 3, None)]
    writing.add([late])
    assert run() == [("d0", 5, "old"), ("d1", 3, None)]
    writing.add([Message("d0", 6, START_US + 11 * SECOND, START_US + 70 * SECOND, 1.0)])
    assert run() == [("d0", 6, "new"), ("d1", 3, None)]
    writing.close()


def correlation(data: bytes) -> bytes:
    return b"\x09" + len(data).to_bytes(2, "big") + data


@pytest.mark.parametrize("is_stream", [False, True])
def test_correlate_finds_answers_in_time(
    spark: SparkSession, tmp_path: Path, is_stream: bool
) -> None:
    writing = Writing(tmp_path / "log")

    def put(kind: str, client: str, key: bytes, at_s: float) -> None:
        topic = f"plant/d0/{kind}"
        writing.put(topic, client, b"{}", START_US + int(at_s * SECOND), correlation(key))

    put("cmd/go", "boss", b"\x01", 0)
    put("response/go", "d0", b"\x01", 0.25)
    put("response/go", "d1", b"\x01", 0.5)  # two devices answer
    put("cmd/go", "boss", b"\x02", 5)
    put("response/go", "d0", b"\x02", 16)  # too late
    put("cmd/go", "boss", b"\x03", 20)
    put("response/other", "d0", b"\x04", 21)  # nobody asked
    put("telemetry", "d0", b"", 300)
    put("cmd/go", "boss", b"\x05", 600)
    put("response/go", "boss", b"\x05", 601)
    writing.commit()
    writing.close()
    out = tmp_path / "out.db"
    results.run(
        spark, "correlate", writing.root, [results.url(out)],
        checkpoint=tmp_path / "c" if is_stream else None,
    )  # fmt: skip
    found = results.rows(
        out, "SELECT key, outcome, answer_client, took_s FROM correlated ORDER BY key, took_s"
    )
    assert found == [
        ("01", "answered", "d0", 0.25),
        ("01", "answered", "d1", 0.5),
        ("02", "unanswered", None, None),
        ("03", "unanswered", None, None),
        ("05", "answered", "boss", 1.0),
    ]


@pytest.mark.parametrize("max_rows", [0, pytest.param(70, marks=pytest.mark.slow)])
def test_quality_is_the_same_wherever_batches_are_cut(
    spark: SparkSession, tmp_path: Path, max_rows: int
) -> None:
    good = steady("d0", 100)
    told = in_order(
        [one for one in good if one.seq not in (50, 51)],
        [Message("d0", 20, good[19].at_us, START_US + 60 * SECOND, 1.0)],
        [one for one in steady("d1", 100) if not 30 < one.seq < 80],
        [Message("d2", n, START_US + n * SECOND, START_US + n * SECOND, 7.0) for n in range(90)],
    )
    log = write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"
    checkpoint = tmp_path / "c" if max_rows else None
    results.run(
        spark, "quality", log, [results.url(out)], checkpoint=checkpoint, max_rows=max_rows,
        silence_us="30s",
    )  # fmt: skip
    found = results.rows(
        out,
        "SELECT device, kind, metric, number, count, ended_at IS NOT NULL FROM findings"
        " ORDER BY 1, 2, 3, 4",
    )
    duplicate = next(row for row in found if row[1] == "duplicate")
    assert found == [
        duplicate,
        ("d0", "gap", "", 50, 2, 0),
        ("d1", "gap", "", 31, 49, 0),
        ("d1", "silent", "", 0, None, 1),
        ("d2", "stuck", "temperature", 0, 61, 0),
    ]
    totals = results.rows(
        out,
        "SELECT device, messages, duplicates, missing, stuck, silences FROM device_quality"
        " ORDER BY 1",
    )
    assert totals == [("d0", 99, 1, 2, 0, 0), ("d1", 51, 0, 49, 0, 1), ("d2", 90, 0, 0, 1, 0)]


def test_anomalies_are_alerts_and_silence_needs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    spiky = steady("d0", 100)
    spiky[60] = Message("d0", 61, spiky[60].at_us, spiky[60].received_us, 500.0)
    told = in_order(spiky, steady("d1", 30), steady("d2", 200))
    log = write_log(tmp_path / "log", told)
    out = tmp_path / "out.db"
    results.run(
        spark, "anomalies", log, [results.url(out)], checkpoint=tmp_path / "c", max_rows=120,
        silence_us="1m", skew_us="10s",
    )  # fmt: skip
    found = results.rows(
        out, "SELECT device, kind, began_at, ended_at IS NOT NULL FROM alerts ORDER BY 1, 2, 3"
    )
    assert found == [
        ("d0", "jump", "2026-01-01 00:01:00.000000", 1),
        ("d0", "outlier", "2026-01-01 00:01:00.000000", 1),
        ("d0", "silent", "2026-01-01 00:02:39.060000", 0),
        ("d1", "silent", "2026-01-01 00:01:29.060000", 0),
    ]


@pytest.mark.parametrize(
    ("job", "settings", "said"),
    [
        ("windows", {"size_us": "soon"}, "--size: 'soon' is not a duration"),
        ("windows", {"size_us": "0"}, "--size: '0' is not longer than nothing"),
        ("windows", {"slide_us": "2m"}, "--slide: it is not from"),
        ("windows", {"gap_us": "1m", "slide_us": "1m"}, "--slide: sessions"),
        ("windows", {"percentiles": "some"}, "--percentiles: 'some' is none of"),
        ("windows", {"device": "topic:0"}, "--device: 'topic:0' is none of"),
        ("windows", {"topics": "a/#/b"}, "--topics: 'a/#/b': # must be the last level"),
        ("anomalies", {"alpha": "2"}, "--alpha: '2' is not a number"),
        ("quality", {"stuck_count": "1"}, "--stuck-after: '1' is not a whole number"),
    ],
)
def test_wrong_options_are_told_in_a_line(job: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(job).parse(settings)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("job", "settings", "said"),
    [
        ("windows", {"metrics": "nosuch"}, "--metrics: the stream's schema has no field 'nosuch'"),
        ("windows", {"device": "value:x.y"}, "--device: the stream's schema has no field 'x.y'"),
        ("windows", {"time": "value:no"}, "--time: the stream's schema has no field 'no'"),
        ("quality", {"sequence": "n"}, "--sequence: the stream's schema has no field 'n'"),
    ],
)
def test_fields_that_are_not_there_are_told_before_anything_runs(
    spark: SparkSession, tmp_path: Path, job: str, settings: dict[str, Any], said: str
) -> None:
    log = write_log(tmp_path / "log", [])
    with pytest.raises(OptionError) as caught:
        results.run(spark, job, log, [], **settings)
    assert str(caught.value) == said


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_job_says_what_it_is(name: str) -> None:
    job = load(name)
    assert job.name == name and job.parse({}) is not None
    assert len({output.name for output in job.outputs}) == len(job.outputs)

"""What reading the telemetry log into Spark costs, and what parsing in the reader is worth.

    python tests/bench/spark.py [decode] [read] [spark] [--messages N] [--master local[2]]

Without names, all. `decode` and `read` are one core without Spark: payloads to columns, and log
to RecordBatches, CPU time, the best of several rounds. `spark` is wall time of whole queries,
each run twice and the better taken: raw rows, parsed rows, and a one-minute mean per device, with
payloads parsed in the reader and by `from_json` side by side in the same session. The exit code
is 1 when a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import pyarrow as pa

from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from spark_ingest.payloads.decoder import AUTO, CBOR, JSON, Decoder
from spark_ingest.payloads.schemas import shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = pathlib.Path(__file__).resolve().parents[2]
NAME: Final = "bench"
START_US: Final = 1_700_000_000_000_000
DEVICES: Final = 200
PARTITIONS: Final = 4
RUN: Final = 20
GROUP: Final = 4_000
ROWS: Final = 16_384
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "ts": {"type": "integer"},
        "temperature": {"type": "number"},
        "humidity": {"type": "number"},
    },
    "required": ["ts", "temperature"],
}
NESTED: Final = {
    "type": "object",
    "properties": {
        **SCHEMA["properties"],  # type: ignore[dict-item]
        "at": {"type": "string", "format": "date-time"},
        "mode": {"enum": ["on", "off"]},
        "pos": {"properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
        "l": {"type": "array", "items": {"type": "number"}},
    },
}
DDL: Final = "ts LONG, temperature DOUBLE, humidity DOUBLE"
failures = 0


def say(what: str, value: float, unit: str, limit: float = 0.0) -> None:
    """A figure; `limit` is the least it may be."""
    global failures
    line = f"  {what:<52} {value:>9,.2f} {unit}"
    if limit:
        line += f"   at least {limit:,.2f}"
        if value < limit:
            failures += 1
            line += "  TOO SLOW"
    print(line, flush=True)


def payload(number: int) -> bytes:
    return b'{"ts": %d, "temperature": %d.5, "humidity": 40}' % (
        START_US + 100 * number,
        20 + number % 7,
    )


def nested(number: int) -> bytes:
    return (
        payload(number)[:-1] + b', "at": "2026-11-18T12:00:00.123Z", "mode": "on", '
        b'"pos": {"lat": 47.25, "lon": 8.5}, "l": [1, 2, 3]}'
    )


def best(call: Callable[[], object], rounds: int = 7) -> float:
    """Seconds of CPU time."""
    found = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        call()
        found = min(found, time.process_time() - began)
    return found


def bench_decode() -> None:
    import cbor2

    print("decode: payloads to typed columns, batches of 16,384, one core")
    plain, deep = shape_of(SCHEMA)[0], shape_of(NESTED)[0]
    good = [payload(number) for number in range(ROWS)]
    some = [b'{"ts": "x"}' if number % 100 == 0 else text for number, text in enumerate(good)]
    cut = [text[:-1] if number % 100 == 0 else text for number, text in enumerate(good)]
    for what, decoder, payloads, limit in (
        ("JSON, three fields", Decoder(plain, JSON), good, 1.5),
        ("the same, told from CBOR by the first byte", Decoder(plain, AUTO), good, 0.0),
        ("JSON, nested, with a time, an enum and an array", Decoder(deep, JSON),
         [nested(number) for number in range(ROWS)], 0.0),
        ("JSON, 1 % cut short", Decoder(plain, JSON), cut, 0.0),
        ("JSON, 1 % of another type", Decoder(plain, JSON), some, 0.0),
        ("JSON, nothing fits", Decoder(plain, JSON), [b'{"ts": "x"}'] * ROWS, 0.0),
        ("CBOR, three fields", Decoder(plain, CBOR),
         [cbor2.dumps(json.loads(text)) for text in good], 0.0),
    ):  # fmt: skip
        found = pa.array(payloads, pa.binary())
        spent = best(lambda decoder=decoder, found=found: decoder.decode(found))  # type: ignore[misc]
        say(what, ROWS / spent / 1e6, "M rows/s", limit)
    found = pa.array(good, pa.binary())
    spent = best(lambda: [json.loads(text) for text in found.to_pylist()])
    say("for comparison: json.loads alone", ROWS / spent / 1e6, "M rows/s")


def fill(root: pathlib.Path, messages: int) -> None:
    with_log = Log.open(root, report=print)
    stream = with_log.create(StreamSettings(NAME, partitions=PARTITIONS, schema=SCHEMA))
    writer = LogWriter(with_log)
    names = [(f"fleet/device{n:04d}/telemetry", f"device{n:04d}") for n in range(DEVICES)]
    began = time.perf_counter()
    for at in range(0, messages, RUN):
        topic, client_id = names[at // RUN % DEVICES]
        parts = [payload(number) for number in range(at, min(at + RUN, messages))]
        writer.append(stream, topic, client_id, parts, START_US + 100 * at)
        if (at // RUN + 1) % (GROUP // RUN) == 0:
            _write(writer, at + 1)
    _write(writer, messages + 1)
    with_log.close()
    size = sum(path.stat().st_size for path in root.rglob("*.seg"))
    spent = time.perf_counter() - began
    print(f"log: {messages:,} messages, {size / 1e6:,.0f} MB, written in {spent:.1f} s", flush=True)


def _write(writer: LogWriter, number: int) -> None:
    writer.assign(number)
    writer.committed(writer.write(number))


def bench_read(root: pathlib.Path, messages: int) -> None:
    from spark_ingest.source.data_source import FleetmqDataSource

    print("read: the log to RecordBatches as Spark takes them, one core, without Spark")
    with Source.open(root, NAME) as source:
        ends = source.ends().ends
    assert sum(ends) == messages
    for what, options in (
        ("all columns, not parsed", {"parse": "none"}),
        ("client id and payload", {"parse": "none", "columns": "client_id,payload"}),
        ("all columns, JSON parsed", {"parse": "json"}),
        ("client id and value, JSON parsed", {"parse": "json", "columns": "client_id,value"}),
    ):
        opened = FleetmqDataSource({"path": str(root), "stream": NAME, **options})
        reader = opened.reader(opened.schema())
        tasks = list(reader.partitions())

        def run(reader: Any = reader, tasks: Any = tasks) -> None:
            rows = sum(part.num_rows for task in tasks for part in reader.read(task))
            assert rows == messages

        say(what, messages / best(run, 3) / 1e6, "M rows/s")


def bench_spark(root: pathlib.Path, messages: int, master: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import spark_ingest

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    spark: SparkSession = (
        SparkSession.builder.master(master)
        .appName("fleetmq-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark_ingest.register(spark)

    def rows(**options: str) -> DataFrame:
        reader = spark.read.format("fleetmq").options(path=str(root), stream=NAME, **options)
        return reader.load()

    def windows(found: DataFrame) -> DataFrame:
        at = F.timestamp_micros("value.ts")
        measured = F.col("value.temperature")
        return (
            found.where("value is not null")
            .groupBy("client_id", F.window(at, "1 minute"))
            .agg(F.count("*"), F.avg(measured), F.min(measured), F.max(measured))
        )

    parsed = {"parse": "json", "columns": "client_id,value,reject_reason"}
    raw = {"parse": "none", "columns": "client_id,payload"}

    def by_spark() -> DataFrame:
        text = F.col("payload").cast("string")
        return rows(**raw).select("client_id", F.from_json(text, DDL).alias("value"))

    print(f"spark: whole queries, {master}, noop sink")
    queries: dict[str, Callable[[], DataFrame]] = {
        "all columns, not parsed": lambda: rows(parse="none"),
        "client id and payload, not parsed": lambda: rows(**raw),
        "all columns, parsed in the reader": lambda: rows(parse="json"),
        "client id and value, parsed in the reader": lambda: rows(**parsed),
        "client id and value, by from_json": by_spark,
        "one-minute windows, parsed in the reader": lambda: windows(rows(**parsed)),
        "one-minute windows, by from_json": lambda: windows(by_spark()),
    }
    speeds: dict[str, float] = {}
    for what in list(queries) * 2:
        began = time.perf_counter()
        queries[what]().write.format("noop").mode("overwrite").save()
        speed = messages / (time.perf_counter() - began) / 1e6
        speeds[what] = max(speed, speeds.get(what, 0.0))
    for what, speed in speeds.items():
        say(what, speed, "M rows/s")
    ours, theirs = (
        speeds["one-minute windows, parsed in the reader"],
        speeds["one-minute windows, by from_json"],
    )
    say("windows: parsed in the reader to from_json", ours / theirs, "x", 1.4)
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    chosen = args.what or ["decode", "read", "spark"]
    if "decode" in chosen:
        bench_decode()
    if "read" in chosen or "spark" in chosen:
        with tempfile.TemporaryDirectory(dir=".", prefix="bench-spark-") as directory:
            root = pathlib.Path(directory).resolve()
            fill(root, args.messages)
            if "read" in chosen:
                bench_read(root, args.messages)
            if "spark" in chosen:
                bench_spark(root, args.messages, args.master)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

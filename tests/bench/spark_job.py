"""End to end on local[2]: read the log, parse safely, one-minute windows per device, SQL sink.

    python tests/bench/spark_job.py --messages 5000000

Beside it, in the same session, the same query that takes raw payloads and parses them with Spark's
`from_json`. Both run once over the whole log as a batch, into a new SQLite file; the first, short
run of each only warms up. Rows of both results are compared, so that speed is of the same answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ingest
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from spark_ingest.contract.job import Context
from spark_ingest.contract.sink import Batch, open_sink
from spark_ingest.jobs import load
from spark_ingest.run import spark_session
from spark_ingest.run.runner import log_rows

STREAM: Final = "telemetry"
DEVICES: Final = 200
BATCH: Final = 1_000
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer"},
        "ts": {"type": "integer"},
        "temperature": {"type": "number"},
        "humidity": {"type": "number"},
    },
    "required": ["seq", "ts"],
}
FROM_JSON: Final = "seq LONG, ts LONG, temperature DOUBLE, humidity DOUBLE"
START_MS: Final = 1_767_225_600_000


def write_log(root: Path, count: int) -> None:
    """As a broker would have: batches of a thousand, 2,000 messages a second of event time."""
    log = Log.open(root, None, report=print)
    stream = log.create(
        StreamSettings(STREAM, partitions=2, event_time="json:$.ts ms", schema=SCHEMA)
    )
    writer = LogWriter(log)
    draw = random.Random(1).random
    for number in range(count):
        device = number % DEVICES
        at_ms = START_MS + number // 2
        payload = b'{"seq": %d, "ts": %d, "temperature": %.2f, "humidity": %.1f}' % (
            number // DEVICES,
            at_ms,
            18 + 8 * draw(),
            30 + 40 * draw(),
        )
        writer.append(
            stream, f"plant/d{device}/telemetry", f"d{device}", [payload], at_ms * 1_000 + 20_000
        )
        if number % BATCH == BATCH - 1 or number == count - 1:
            writer.assign(number)
            writer.committed(writer.write(number))
    log.close()


def from_json_rows(spark: SparkSession, root: Path) -> DataFrame:
    """The same columns, parsed by Spark."""
    raw = (
        spark.read.format("fleetmq")
        .options(path=str(root), stream=STREAM, parse="none",
                 columns="partition,offset,received,event,topic,client_id,payload")
        .load()
    )  # fmt: skip
    parsed = F.from_json(F.col("payload").cast("string"), FROM_JSON)
    reason = F.when(F.col("value").isNull(), F.lit("it cannot be read"))
    return raw.withColumn("value", parsed).withColumn("reject_reason", reason)


def job_rows(spark: SparkSession, root: Path) -> DataFrame:
    job = load("windows")
    source = {"path": str(root), "stream": STREAM}
    return log_rows(source, job, job.parse({}), is_stream=False)(spark)


def descendants() -> dict[int, float]:
    """This process and all that it started, by their numbers: seconds of CPU each has used."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                parents[int(path.name)] = int(fields[1])
                used[int(path.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {one: used[one] for one in ours}


def cpu_s() -> float:
    """Of this process and all that it started: what moves least with what else is running."""
    return sum(descendants().values())


def measure(rows: DataFrame, out: Path, percentiles: str) -> tuple[float, float]:
    """Seconds, and seconds of all cores, until everything is committed."""
    out.unlink(missing_ok=True)
    job = load("windows")
    settings: Any = job.parse({"percentiles": percentiles})
    sink = open_sink(f"sqlite:///{out}")
    began, cpu_began = time.perf_counter(), cpu_s()
    frame = job.build(rows, settings, Context())
    sink.write(Batch(str(out), 0, "windows", frame, job.outputs))
    took = time.perf_counter() - began, cpu_s() - cpu_began
    sink.close()
    return took


def answer(out: Path) -> list[Any]:
    connection = sqlite3.connect(out)
    try:
        return connection.execute(
            "SELECT device, metric, window_start, count, round(mean, 6), min, max FROM windows"
            " ORDER BY 1, 2, 3"
        ).fetchall()
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percentiles", choices=("exact", "approx", "none"), default="none")
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fleetmq-bench-"))
    try:
        small, whole = directory / "small", directory / "whole"
        write_log(small, 50_000)
        began = time.perf_counter()
        write_log(whole, args.messages)
        print(f"{args.messages:,} messages written in {time.perf_counter() - began:.0f} s")
        spark_session.check()
        spark = spark_session.start("bench", args.master, {"spark.local.dir": str(directory)})
        spark_ingest.register(spark)
        kinds = {"reader": job_rows, "from_json": from_json_rows}
        for kind, rows in kinds.items():
            measure(rows(spark, small), directory / f"{kind}.db", args.percentiles)
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        costs: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(args.rounds):
            for kind, rows in kinds.items():
                took, cpu = measure(rows(spark, whole), directory / f"{kind}.db", args.percentiles)
                rates[kind].append(args.messages / took)
                costs[kind].append(cpu / args.messages * 1e6)
                print(f"round {number + 1}: {kind:10} {took:6.1f} s {rates[kind][-1]:12,.0f} rows/s"
                      f" {costs[kind][-1]:6.2f} us of CPU a row", flush=True)  # fmt: skip
        spark.stop()
        same = answer(directory / "reader.db") == answer(directory / "from_json.db")
        middle = {kind: statistics.median(found) for kind, found in rates.items()}
        print(json.dumps({
            "messages": args.messages,
            "percentiles": args.percentiles,
            **{f"{kind}_rows_per_s": round(rate) for kind, rate in middle.items()},
            **{f"{kind}_cpu_us": round(statistics.median(us), 2) for kind, us in costs.items()},
            "ratio": round(middle["reader"] / middle["from_json"], 2),
            "same_answer": same,
        }))  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Publish to window row: how old a message is when its window is committed, at a 1 s trigger.

    python tests/bench/spark_latency.py --rate 20000 --seconds 60
    python tests/bench/spark_latency.py --rate 3000 --seconds 600 --short

A writer appends to a log at a steady rate, as the broker's does; `windows` follows it into SQLite.
After each commit the windows say how many messages they have counted, and the schedule when those
were published. The first seconds, in which Spark starts and compiles, do not count.

Every so often a line says what memory is used: of the driver's Python and of Python workers what
is resident (shared pages counted), of the JVM what is resident and what its last collection left
of the old generation, and of the state its rows. `--short` lets windows go after two minutes rather
than after more than an hour, so that ten minutes are enough to see whether it is steady.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import spark_ingest
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from spark_ingest.contract.job import Context
from spark_ingest.contract.sink import Batch
from spark_ingest.jobs import load
from spark_ingest.run import runner, spark_session
from spark_ingest.sinks.sql import SqlSink, open_engine
from tests.bench.spark_job import DEVICES, SCHEMA, STREAM, descendants

TICK_S: Final = 0.02
SHORT: Final = {"allowed_us": "30s", "ahead_us": "10s", "skew_us": "10s"}


class Fleet(threading.Thread):
    """Publishes at a rate; `published_at` says when a message was."""

    def __init__(self, root: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self._log = Log.open(root, None, report=print)
        self._stream = self._log.create(
            StreamSettings(STREAM, partitions=2, event_time="json:$.ts ms", schema=SCHEMA)
        )
        self._writer = LogWriter(self._log)
        self._rate = rate
        self._marks: list[tuple[int, float]] = []  # so many messages by then
        self.is_stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        began = time.time()
        while not self.is_stopped.wait(TICK_S):
            now = time.time()
            self._publish(int((now - began) * self._rate) - self.count, now)
        self._log.close()

    def _publish(self, count: int, now: float) -> None:
        for number in range(self.count, self.count + count):
            device = number % DEVICES
            payload = b'{"seq": %d, "ts": %d, "temperature": %.1f, "humidity": 50}' % (
                number // DEVICES,
                int(now * 1_000),
                20 + number % 7,
            )
            self._writer.append(
                self._stream, f"plant/d{device}/t", f"d{device}", [payload], int(now * 1e6)
            )
        self.count += count
        self._writer.assign(self.count)
        self._writer.committed(self._writer.write(self.count))
        self._marks.append((self.count, now))

    def ages(self, first: int, last: int, now: float) -> list[tuple[float, int]]:
        """(age, how many) of the messages from one number to another."""
        found, before = [], 0
        for count, at in self._marks:
            part = min(count, last) - max(before, first)
            if part > 0:
                found.append((now - at, part))
            before = count
        return found


class Watched(SqlSink):
    """Notes after each commit how old was what it made visible."""

    def __init__(self, out: Path, fleet: Fleet, warm_up_s: float) -> None:
        super().__init__(open_engine(f"sqlite:///{out}"))
        self._out = out
        self._fleet = fleet
        self._counted = 0
        self._from = time.time() + warm_up_s
        self.ages: list[tuple[float, int]] = []

    def write(self, batch: Batch) -> None:
        super().write(batch)
        now = time.time()
        connection = sqlite3.connect(self._out)
        counted = connection.execute("SELECT sum(count) FROM windows WHERE metric = ''").fetchone()
        connection.close()
        seen = counted[0] or 0
        if now >= self._from:
            self.ages += self._fleet.ages(self._counted, seen, now)
        self._counted = seen


class Memory:
    """What the driver, the JVM and the Python workers hold, looked at now and then."""

    def __init__(self, spark: SparkSession, every_s: float) -> None:
        self._spark = spark
        self._every_s = every_s
        self._began = self._looked = time.monotonic()
        self.found: list[dict[str, float]] = []

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked < self._every_s:
            return
        self._looked = now
        told = {"s": round(now - self._began), **self._resident_mb(), **self._state()}
        told["jvm_old_mb"] = self._old_mb()
        self.found.append(told)
        print(json.dumps(told), flush=True)

    def _resident_mb(self) -> dict[str, float]:
        found = {"driver_mb": 0.0, "jvm_mb": 0.0, "workers_mb": 0.0, "workers": 0}
        for process in descendants():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{process}/comm").read_text().strip()
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                size_mb = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
                if process == os.getpid():
                    found["driver_mb"] += size_mb
                elif name == "java":
                    found["jvm_mb"] += size_mb
                else:
                    found["workers_mb"] += size_mb
                    found["workers"] += 1
        return {name: round(value) for name, value in found.items()}

    def _state(self) -> dict[str, float]:
        for query in self._spark.streams.active:
            if said := query.lastProgress:
                rows = sum(one.numRowsTotal for one in said.stateOperators)
                used = sum(one.memoryUsedBytes for one in said.stateOperators)
                return {"state_rows": rows, "state_mb": round(used / (1 << 20))}
        return {}

    def _old_mb(self) -> float:
        """What the last collection left: what is resident is what was ever allowed to be used."""
        jvm: Any = self._spark._jvm
        pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        for pool in pools:
            if "Old Gen" in pool.getName() or "Tenured" in pool.getName():
                used_bytes: int = pool.getCollectionUsage().getUsed()
                return round(used_bytes / (1 << 20))
        return 0


def percentile(ages: list[tuple[float, int]], part: float) -> float:
    left = part * sum(count for _, count in ages)
    for age, count in sorted(ages):
        left -= count
        if left <= 0:
            return age
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=30)
    parser.add_argument("--every", type=float, default=30, help="seconds between looks at memory")
    parser.add_argument("--short", action="store_true", help="windows go after two minutes")
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fleetmq-bench-"))
    try:
        spark_session.check()
        spark = spark_session.start("latency", args.master, {"spark.local.dir": str(directory)})
        spark_ingest.register(spark)
        fleet = Fleet(directory / "log", args.rate)
        fleet.start()
        sink = Watched(directory / "out.db", fleet, args.warm_up)
        job = load("windows")
        source = {
            "path": str(directory / "log"), "stream": STREAM, "startingOffsets": "earliest",
        }  # fmt: skip
        settings: Any = job.parse(SHORT if args.short else {})
        read = runner.log_rows(source, job, settings, is_stream=True)
        plan = runner.Plan(
            job, settings, Context(), (sink,), read,
            checkpoint=str(directory / "checkpoint"), trigger="1 second",
        )  # fmt: skip
        until = time.time() + args.warm_up + args.seconds
        memory = Memory(spark, args.every)
        runner.stream(
            spark, plan, is_stopped=lambda: time.time() > until, on_progress=lambda _: memory.look()
        )
        fleet.is_stopped.set()
        fleet.join()
        spark.stop()
        print(json.dumps({
            "rate": args.rate,
            "published": fleet.count,
            **{f"p{round(part * 100)}_s": round(percentile(sink.ages, part), 2)
               for part in (0.5, 0.95, 0.99)},
        }))  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Drivers killed with SIGKILL while the log is written to; then everything is counted.

    python -m tests.spark.killing --kills 12 --messages 60000
    python -m tests.spark.killing --kills 6 --cluster

Each kill is at one of three moments: before the sink's commit, between it and Spark's own, and at
random. With `--cluster` every third one is an executor's instead, on a standalone cluster. At the
end the log is drained, and every window has to be the one computed in plain Python, and totals
those of the log, to the unit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.spark import results, telemetry
from tests.spark.cluster import Cluster
from tests.spark.telemetry import Message, Rule, Writing

ROOT: Final = Path(__file__).parents[2]
MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
PATIENCE_S: Final = 240.0
BATCH: Final = 200  # messages that are written at a time
EXECUTOR: Final = "executor"
RANDOM: Final = "random"


class Writer(threading.Thread):
    """Writes the log while drivers come and go; all of it is there when it was joined."""

    def __init__(self, writing: Writing, told: Sequence[Message], seconds: float) -> None:
        super().__init__(daemon=True)
        self._writing = writing
        self._told = told
        self._pause_s = seconds * BATCH / max(1, len(told))
        self.is_hurried = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for at in range(0, len(self._told), BATCH):
                self._writing.add(self._told[at : at + BATCH])
                self.is_hurried.wait(self._pause_s)
        except Exception as error:
            self.error = error


class Ground:
    """One log, one sink, one checkpoint, and as many drivers as it takes."""

    def __init__(self, directory: Path, master: str) -> None:
        self.log = directory / "log"
        self.out = directory / "out.db"
        self._directory = directory
        self._master = master
        self.lives = 0
        self._code: Path | None = None
        if not master.startswith("local"):  # as deploy/README.md says it
            self._code = directory / "code.zip"
            subprocess.run(
                [sys.executable, "deploy/spark_zip.py", str(self._code)],
                cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def start(self, moments: str = "", *, once: bool = False) -> subprocess.Popen[bytes]:
        self.lives += 1
        sink = f"python:tests.spark.deadly:DeadlySink?url={results.url(self.out)}&moments={moments}"
        arguments = [
            *("run", "windows", "--log", str(self.log), "--sink", sink),
            *("--checkpoint", str(self._directory / "checkpoint"), "--master", self._master),
            *("--trigger", "200ms", "--max-rows", "3000", "--skew", "2h"),
            *("--conf", f"spark.local.dir={self._directory}"),
            *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"),
            *("--conf", "spark.executor.memory=512m"),
            *(["--once"] if once else []),
            *(["--py-files", str(self._code)] if self._code else []),
        ]
        with (self._directory / f"driver{self.lives}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", MAIN, "spark", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def batches(self) -> int:
        """How many are committed."""
        if not self.out.exists():
            return 0
        found = results.rows(
            self.out, "SELECT name FROM sqlite_master WHERE name = 'fleetmq_spark_ledger'"
        )
        if not found:
            return 0
        return int(results.rows(self.out, "SELECT count(*) FROM fleetmq_spark_ledger")[0][0])

    def tail(self) -> str:
        path = self._directory / f"driver{self.lives}.log"
        return path.read_text(errors="replace")[-3_000:]


def end(process: subprocess.Popen[bytes]) -> None:
    """The driver, and the JVM that would otherwise notice by itself a moment later."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_batches(ground: Ground, process: subprocess.Popen[bytes], count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while ground.batches() < count:
        assert process.poll() is None, f"the driver ended by itself: {ground.tail()}"
        assert time.monotonic() < until, f"no batch for {PATIENCE_S} s: {ground.tail()}"
        time.sleep(0.05)


def kill_once(ground: Ground, how: str, draw: random.Random, cluster: Cluster | None) -> None:
    if how == EXECUTOR:
        assert cluster is not None
        process = ground.start()
        wait_for_batches(ground, process, ground.batches() + 1)
        victims = cluster.executors()
        assert victims, "no executor runs"
        os.kill(draw.choice(victims), signal.SIGKILL)
        wait_for_batches(ground, process, ground.batches() + 1)  # it goes on without
        end(process)
    elif how == RANDOM:
        process = ground.start()
        wait_for_batches(ground, process, ground.batches() + 1)
        time.sleep(draw.random())
        end(process)
    else:
        process = ground.start(f"{how}:{draw.randint(1, 2)}")
        code = process.wait(PATIENCE_S)
        end(process)
        assert code == -signal.SIGKILL, f"it was to be killed {how} a commit: {ground.tail()}"


def prove(
    directory: Path, told: Sequence[Message], kills: Sequence[str], *, seed: int = 1,
    cluster: Cluster | None = None, report: bool = False,
) -> int:  # fmt: skip
    """Kills, then counts; how many drivers there were."""
    draw = random.Random(seed)
    ground = Ground(directory, cluster.url if cluster else "local[2]")
    writing = Writing(ground.log)
    writer = Writer(writing, told, seconds=12.0 * (len(kills) + 1))
    writer.start()
    try:
        for number, how in enumerate(kills):
            kill_once(ground, how, draw, cluster)
            if report:
                line = f"kill {number + 1} of {len(kills)}: {how}; {ground.batches()} batches\n"
                sys.stdout.write(line)
                sys.stdout.flush()
    finally:
        writer.is_hurried.set()
        writer.join()
        writing.close()
    assert writer.error is None, writer.error
    process = ground.start(once=True)
    try:
        code = process.wait(PATIENCE_S)
    finally:
        end(process)
    assert code == 0, ground.tail()
    check(ground.out, told)
    return ground.lives


def check(out: Path, told: Sequence[Message]) -> None:
    wanted, left_out = telemetry.windows(told, Rule())
    telemetry.assert_same(results.windows_in(out), wanted)
    counted = results.rows(out, "SELECT sum(count) FROM windows WHERE metric = ''")[0][0]
    left = results.rows(out, "SELECT coalesce(sum(count), 0) FROM left_out")[0][0]
    rejects = results.rows(out, "SELECT count(*) FROM rejects")[0][0]
    assert left == left_out
    assert counted + left + rejects == len(told), (counted, left, rejects, len(told))


def main() -> None:
    parser = argparse.ArgumentParser(prog="killing", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="a standalone one, on loopback")
    args = parser.parse_args()
    kinds = ["before", "after", EXECUTOR if args.cluster else RANDOM]
    kills = [kinds[number % len(kinds)] for number in range(args.kills)]
    told = telemetry.messages(args.messages, seed=args.seed, step_us=100_000, devices=20)
    directory = Path(tempfile.mkdtemp(prefix="fleetmq-kill-"))
    try:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster(directory / "cluster")) if args.cluster else None
            began = time.monotonic()
            lives = prove(directory, told, kills, seed=args.seed, cluster=cluster, report=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(
        f"{args.messages:,} messages, {lives} drivers, {len(kills)} kills in"
        f" {time.monotonic() - began:.0f} s: every window and every total is right\n"
    )


if __name__ == "__main__":
    main()

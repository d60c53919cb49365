"""Drivers killed with SIGKILL while the log is written to; then everything is counted.

    python -m tests.spark_ingest.killing --kills 12 --messages 60000
    python -m tests.spark_ingest.killing --kills 6 --cluster
    python -m tests.spark_ingest.killing --kills 9 --broker [--http] [--cluster]

Each kill is at one of three moments: before the sink's commit, between it and Spark's own, and at
random. With `--cluster` every third one is an executor's instead, on a standalone cluster. At the
end the log is drained, and every window has to be the one computed in plain Python, and totals
those of the log, to the unit.

With `--broker` it is a real broker that writes the log, of what devices publish at QoS 2, and it is
killed as well, every few seconds. What counts is then what the devices say they sent: the log has
to have each of it once, and windows are computed from that. With `--http` jobs read over that
broker's HTTP server, and have to bear that it is gone for a moment.
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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.spark_ingest import results, telemetry
from tests.spark_ingest.cluster import Cluster
from tests.spark_ingest.kept import BrokerLog, Kept, LibraryLog
from tests.spark_ingest.telemetry import SECOND, Message, Rule

ROOT: Final = Path(__file__).parents[2]
MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
PATIENCE_S: Final = 240.0
EXECUTOR: Final = "executor"
RANDOM: Final = "random"


# A live broker is watched for a minute or two, so windows have to be short.
SHORT: Final = Rule(size_us=10 * SECOND, slide_us=10 * SECOND)


class Ground:
    """One log, one sink, one checkpoint, and as many drivers as it takes."""

    def __init__(
        self, directory: Path, master: str, kept: Kept, rule: Rule, rows_max: int = 3_000
    ) -> None:
        self._kept = kept
        self._rule = rule
        self._rows_max = rows_max
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
        database = results.url(self.out)
        sink = f"python:tests.spark_ingest.deadly:DeadlySink?url={database}&moments={moments}"
        arguments = [
            *("run", "windows", *self._kept.options, "--sink", sink),
            *("--checkpoint", str(self._directory / "checkpoint"), "--master", self._master),
            *("--trigger", "200ms", "--max-rows", str(self._rows_max), "--skew", "2h"),
            *("--size", f"{self._rule.size_us // SECOND}s"),
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
    directory: Path, kept: Kept, kills: Sequence[str], *, rule: Rule | None = None, seed: int = 1,
    cluster: Cluster | None = None, report: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """Kills, then counts: (how many drivers there were, how many messages)."""
    draw = random.Random(seed)
    rule = rule or Rule()
    ground = Ground(directory, cluster.url if cluster else "local[2]", kept, rule)
    with kept:
        for number, how in enumerate(kills):
            kill_once(ground, how, draw, cluster)
            if report:
                line = f"kill {number + 1} of {len(kills)}: {how}; {ground.batches()} batches\n"
                sys.stdout.write(line)
                sys.stdout.flush()
        told = kept.finish()
        process = ground.start(once=True)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            end(process)
        assert code == 0, ground.tail()
    check(ground.out, told, rule)
    return ground.lives, len(told)


def check(out: Path, told: Sequence[Message], rule: Rule) -> None:
    wanted, left_out = telemetry.windows(told, rule)
    telemetry.assert_same(results.windows_in(out), wanted)
    counted = results.rows(out, "SELECT sum(count) FROM windows WHERE metric = ''")[0][0]
    left = results.rows(out, "SELECT coalesce(sum(count), 0) FROM left_out")[0][0]
    rejects = results.rows(out, "SELECT count(*) FROM rejects")[0][0]
    assert left == left_out
    assert rejects == sum(one.is_broken for one in told)
    assert counted + left + rejects == len(told), (counted, left, rejects, len(told))


def library_log(directory: Path, told: Sequence[Message], kills: Sequence[str]) -> LibraryLog:
    """It is written for about as long as the drivers live."""
    return LibraryLog(directory / "log", told, seconds=12.0 * (len(kills) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="killing", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="a standalone one, on loopback")
    parser.add_argument("--broker", action="store_true", help="a real one writes, and is killed")
    parser.add_argument("--http", action="store_true", help="read over that broker's HTTP server")
    parser.add_argument("--rate", type=float, default=300.0, help="of messages to the broker")
    args = parser.parse_args()
    if args.http and not args.broker:
        parser.error("--http: there is a server only with --broker")
    kinds = ["before", "after", EXECUTOR if args.cluster else RANDOM]
    kills = [kinds[number % len(kinds)] for number in range(args.kills)]
    directory = Path(tempfile.mkdtemp(prefix="fleetmq-kill-"))
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster(directory / "cluster")) if args.cluster else None
            kept: Kept
            broker: BrokerLog | None = None
            if args.broker:
                kept = broker = BrokerLog(
                    directory / "broker", seed=args.seed, is_remote=args.http, rate=args.rate
                )
            else:
                told = telemetry.messages(
                    args.messages, seed=args.seed, step_us=100_000, devices=20
                )
                kept = library_log(directory, told, kills)
            lives, messages = prove(
                directory, kept, kills, rule=SHORT if args.broker else None, seed=args.seed,
                cluster=cluster, report=True,
            )  # fmt: skip
            of_broker = f", {broker.kills} of the broker" if broker else ""
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(
        f"{messages:,} messages, {lives} drivers, {len(kills)} kills{of_broker} in"
        f" {time.monotonic() - began:.0f} s: every window and every total is right\n"
    )


if __name__ == "__main__":
    main()

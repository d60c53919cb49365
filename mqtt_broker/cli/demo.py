"""`fleetmq demo`: broker, devices, log and Spark jobs on one machine, in about a minute.

It runs a broker that acknowledges messages when they are on disk, 200 simulated devices, the
telemetry log, two Spark jobs on it, and an alert that returns over MQTT, and kills the broker once
with kill -9. Then it compares the counts of messages sent, acknowledged, delivered, in the log, and
in windows. A valve that was away gets its command late, and the recorder reports why. Without Java
the demo leaves the Spark jobs out and says so.

Each part is a process of its own, started by the command that a user would type. Their files stay
in the directory that is named at the end; the processes end with the demo, also after SIGINT,
SIGTERM or SIGHUP. The exit code is 1 if a count is wrong or a process ended unexpectedly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from mqtt_broker import interrupts
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError
from mqtt_broker.http_api import address_file
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.read.source import Source
from spark_ingest.run import spark_session

DEVICES: Final = 200
SECONDS: Final = 25
SECONDS_MIN: Final = 10  # the first half of it teaches the usual values of a device
_OUTLIERS: Final = 25  # of all devices together, about
KILL_AT_S: Final = 10
_JOBS: Final = ("windows", "anomalies")
_MARK: Final = "demo.json"  # marks a directory as a demo's, which the next demo may remove
_STREAM: Final = "telemetry"
_VALVE: Final = "valve-1"  # it is away when its command is published
_COMMAND: Final = "plant/1/valve/command"  # a topic that is not in the log
_PATIENCE_S: Final = 90.0
_SAY_EVERY_S: Final = 3.0
# Less compilation suits a JVM that lives for a minute: Spark answers a third sooner.
_BRISK: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"

_BROKER: Final = """\
[[streams]]
name = "telemetry"
filter = "plant/+/telemetry"
partitions = 2
schema = "telemetry.schema.json"
"""
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        name: {"type": "number"} for name in ("temperature", "humidity", "pressure", "co2", "light")
    },
}
_SCENARIO: Final = """\
name = "demo"
summary = "{devices} environmental sensors in a plant, some of them with outliers"
duration_s = {seconds}
seed = 1
connect_rate_per_s = 200

[[fleets]]
name = "sensors"
model = "environment"
count = {devices}
interval_s = 0.5
topic = "plant/{{number}}"
qos = 2
session_expiry_s = 600
options = {{ outliers_per_day = {outliers:.1f} }}

[limits]
dropped_max = 1000000
connect_failures_max = 1000000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", default="fleetmq-demo", metavar="DIR", help="working directory (fleetmq-demo)"
    )
    parser.add_argument(
        "--devices", type=int, default=DEVICES, metavar="N", help=f"number of devices ({DEVICES})"
    )
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, metavar="S", help=f"seconds of traffic ({SECONDS})"
    )
    parser.add_argument("--no-spark", action="store_true", help="leave the Spark jobs out")


def run(args: argparse.Namespace) -> int:
    for option, value, least in (
        ("--devices", args.devices, 1),
        ("--seconds", args.seconds, SECONDS_MIN),
    ):
        if value < least:
            raise UsageError(f"{option} is {least} or more, not {value}")
    folder = make_folder(Path(args.dir))
    no_spark = "as --no-spark asks" if args.no_spark else why_no_spark()
    interrupts.include(signal.SIGHUP)
    with contextlib.ExitStack() as stack:
        demo = Demo(folder.resolve(), args.devices, args.seconds, no_spark, stack)
        demo.go()
        return DONE if demo.judge() else FAILED


def why_no_spark() -> str:
    """Say why Spark cannot run here; empty if it can."""
    try:
        spark_session.check()
    except spark_session.NotThere as error:
        return str(error)
    return ""


def make_folder(folder: Path) -> Path:
    """Make an empty directory; remove one that is there only if it is of a finished demo."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--dir: {folder} is not a directory")
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARK).is_file():
                raise UsageError(
                    f"--dir: {folder} exists and is not of a demo: give another directory"
                )
            with contextlib.suppress(address_file.NoAddress):
                address_file.read(folder / "data")
                raise UsageError(
                    f"--dir: a broker still runs in {folder}: stop it, or give another directory"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text(json.dumps({"made_by": "fleetmq demo"}) + "\n")
    except OSError as error:
        raise Failure(f"--dir: {folder}: {error.strerror}", 2) from None
    return folder


class Demo:
    def __init__(
        self,
        folder: Path,
        devices: int,
        seconds: int,
        no_spark: str,  # why its jobs are left out; empty: they run
        stack: contextlib.ExitStack,
    ) -> None:
        self.folder = folder
        self._no_spark = no_spark
        self._devices = devices
        self._seconds = seconds
        self._stack = stack
        self._start = time.monotonic()
        self._port = free_port()
        self._http_port = free_port()  # the same after the kill -9: a page that is open goes on
        self._report: dict[str, Any] = {}
        self._alerts: list[str] = []
        self._reason = ""  # why the valve got its command late
        self._names: dict[int, str] = {}

    # The run.

    def go(self) -> None:
        (self.folder / "broker.toml").write_text(_BROKER)
        (self.folder / "telemetry.schema.json").write_text(json.dumps(_SCHEMA, indent=1))
        outliers = _OUTLIERS * 86_400 / (self._devices * self._seconds)  # a day and device
        scenario = _SCENARIO.format(devices=self._devices, seconds=self._seconds, outliers=outliers)
        (self.folder / "plant.toml").write_text(scenario)
        broker = self._broker()
        self._say(f"a broker listens on 127.0.0.1:{self._port}, and keeps a log of telemetry")
        self._say(f"its page is at http://127.0.0.1:{self._http_port}/")
        jobs = self._start_jobs(broker)
        needed = [*jobs, broker]
        self._say(f"{self._devices} devices begin to measure, QoS 2, for {self._seconds} s")
        fleet = self._spawn(
            "fleet",
            *("sim", "run", "plant.toml", "--broker", f"mqtt://127.0.0.1:{self._port}"),
            *("--report", "fleet.json", "--quiet"),
        )
        self._watch(needed, KILL_AT_S * self._seconds / SECONDS)
        os.kill(broker.pid, signal.SIGKILL)
        broker.wait()
        self._say("kill -9: the broker is gone in the middle of it")
        broker = self._broker()
        self._say("the broker is back, on what was on disk")
        needed = [*jobs, broker]
        self._command_valve()
        self._watch(needed, self._seconds, fleet)
        if not (self.folder / "fleet.json").exists():
            self._check([fleet])
        self._report = json.loads((self.folder / "fleet.json").read_text())
        if jobs:
            self._say("the devices are done; the jobs read what is left")
            self._wait_until(self._is_counted, needed, self._what_is_counted)
            self._alerts = self._retained_alerts()
        self._reason = self._ask_why()
        self._stop(jobs)
        self._stop([broker])

    def _command_valve(self) -> None:
        """Publish a command to a device that has subscribed to it and is away."""
        port = ("--port", str(self._port))
        valve = (*port, "--id", _VALVE, "--disable-clean-session", "--qos", "1")
        self._run("valve", "sub", *valve, "--topic", _COMMAND, "-E")
        command = ("--qos", "1", "--topic", _COMMAND, "--message", "open")
        self._run("valve", "pub", *port, "--id", "control-room", *command)
        self._say(f"{_VALVE} is away, and a command to it waits")

    def _ask_why(self) -> str:
        """Let the device come back for its command, and ask the recorder why it came late."""
        valve = ("--id", _VALVE, "--disable-clean-session", "--qos", "1", "--topic", _COMMAND)
        self._run("valve", "sub", "--port", str(self._port), *valve, "-C", "1")
        self._say(f"{_VALVE} is back, and has its command")
        question = ("--client", _VALVE, "--topic", _COMMAND)
        return self._run("why", "ctl", "why", "--data-dir", "data", *question).splitlines()[0]

    def _run(self, name: str, *words: str) -> str:
        """Run one of our commands to its end; return what it printed last."""
        process = self._spawn(name, *words)
        log = self.folder / f"{name}.log"
        try:
            code = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"fleetmq {words[0]} does not end: see {self._log_tail(name)}") from None
        if code:
            raise Failure(f"fleetmq {words[0]} failed: see {self._log_tail(name)}")
        return log.read_text(errors="replace").rpartition("$ fleetmq ")[2].partition("\n")[2]

    def _start_jobs(self, broker: subprocess.Popen[bytes]) -> list[subprocess.Popen[bytes]]:
        """Start the Spark jobs, and wait until they read the log."""
        if self._no_spark:
            self._say(f"no Spark jobs: {self._no_spark}")
            return []
        jobs = [self._windows(), self._anomalies()]
        self._say("two Spark jobs start on the log, each in a JVM: 10 to 30 s")
        self._wait_until(
            lambda: all(map(self._has_started, _JOBS)), [*jobs, broker], self._who_has_started
        )
        return jobs

    def _who_has_started(self) -> str:
        return ", ".join(
            f"{name} {'reads the log' if self._has_started(name) else 'starts'}" for name in _JOBS
        )

    def _is_counted(self) -> bool:
        return self._counted() >= self._logged()

    def _what_is_counted(self) -> str:
        return f"{self._counted():,} of {self._logged():,} messages in windows"

    def _broker(self) -> subprocess.Popen[bytes]:
        process = self._spawn(
            "broker",
            *("broker", "--config", "broker.toml", "--port", str(self._port)),
            *("--data-dir", "data", "--http", f"127.0.0.1:{self._http_port}"),
        )
        # The broker writes this file when it listens; it may also be left from the last start.
        place = self.folder / "data" / address_file.FILE
        for _ in _ticks(time.monotonic() + _PATIENCE_S, 0.02):
            self._check([process])
            with contextlib.suppress(OSError, ValueError, KeyError):
                if json.loads(place.read_text())["pid"] == process.pid:
                    return process
        raise Failure(f"the broker did not start: see {self._log_tail('broker')}")

    def _windows(self) -> subprocess.Popen[bytes]:
        return self._job("windows", "--size", "10s", "--sink", "sqlite:///windows.db")

    def _anomalies(self) -> subprocess.Popen[bytes]:
        alerts = f"mqtt://127.0.0.1:{self._port}?topic=alerts/{{device}}&expiry=1h"
        return self._job(
            *("anomalies", "--warm-up", "10", "--sigma", "8", "--silence", "0s"),
            *("--sink", "sqlite:///alerts.db", "--sink", alerts),
        )

    def _job(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        return self._spawn(
            name,
            *("spark", "run", name, "--log", "data/streams", "--stream", _STREAM),
            *("--checkpoint", f"checkpoints/{name}", "--trigger", "1s", *options),
        )

    def _spawn(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start one of our commands in the demo's directory; its output goes to a log file."""
        with interrupts.deferred():
            process = self._popen(name, words)
            self._names[process.pid] = name
            interrupts.before_exit(partial(_kill_session, process))
            self._stack.callback(_kill_session, process)
        return process

    def _popen(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            log.write(f"$ fleetmq {shlex.join(words)}\n".encode())
            log.flush()
            return subprocess.Popen(
                [sys.executable, "-c", _MAIN, *words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )

    # Counts.

    def _logged(self) -> int:
        """Count the messages in the log."""
        with (
            contextlib.suppress(StreamError, OSError),
            Source.open(self.folder / "data" / "streams", _STREAM) as source,
        ):
            return sum(source.ends().ends)
        return 0

    def _query(self, database: str, query: str) -> list[tuple[Any, ...]]:
        path = self.folder / database
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:  # the table does not exist yet
                return []

    def _sum(self, database: str, query: str) -> int:
        rows = self._query(database, query)
        return int(rows[0][0] or 0) if rows else 0

    def _counted(self) -> int:
        """Count the messages in windows, left out of them, and rejected."""
        return (
            self._sum("windows.db", "SELECT sum(count) FROM windows WHERE metric = ''")
            + self._sum("windows.db", "SELECT sum(count) FROM left_out")
            + self._sum("windows.db", "SELECT count(*) FROM rejects")
        )

    def _has_started(self, job: str) -> bool:
        """Tell whether a job has finished its first, empty batch: later ones take seconds."""
        return any((self.folder / "checkpoints" / job / "commits").glob("[0-9]*"))

    def _retained_alerts(self) -> list[str]:
        """Return the retained alerts, as any subscriber gets them."""
        found = subprocess.run(
            [sys.executable, "-c", _MAIN, "sub", "-p", str(self._port), "-t", "alerts/#",
             "-v", "-q", "1", "-W", "2"],
            cwd=self.folder, capture_output=True, text=True, check=False,
            env=_environment(),
        )  # fmt: skip
        return [line for line in found.stdout.splitlines() if line]

    def _watch(
        self,
        needed: Sequence[subprocess.Popen[bytes]],
        seconds: float,
        fleet: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Report progress for some seconds, or until the fleet is done."""
        deadline = time.monotonic() + (seconds if fleet is None else _PATIENCE_S + seconds)
        for _ in _ticks(deadline, 2.0):
            self._check(needed)
            if fleet is not None and fleet.poll() is not None:
                break
            self._say(f"  {self._logged():,} messages in the log{self._what_jobs_did()}")
        if fleet is not None and fleet.poll() is None:
            raise Failure("the fleet did not finish in time: see fleet.log")

    def _what_jobs_did(self) -> str:
        if self._no_spark:
            return ""
        alerts = self._sum("alerts.db", "SELECT count(*) FROM alerts")
        return f", {self._counted():,} in windows, {alerts:,} alerts"

    def _wait_until(
        self,
        condition: Callable[[], bool],
        needed: Sequence[subprocess.Popen[bytes]],
        progress: Callable[[], str],
    ) -> None:
        """Wait, and report progress every few seconds."""
        start = said = time.monotonic()
        for _ in _ticks(start + _PATIENCE_S, 0.3):
            if condition():
                return
            self._check(needed)
            now = time.monotonic()
            if now - said >= _SAY_EVERY_S:
                said = now
                self._say(f"  waiting for {now - start:.0f} s: {progress()}")
        raise Failure(
            f"timed out after {_PATIENCE_S:g} s: {progress()}; see the *.log files in {self.folder}"
        )

    def _check(self, needed: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in needed:
            if (code := process.poll()) is not None:
                name = self._names[process.pid]
                raise Failure(f"{name} ended with exit code {code}: see {self._log_tail(name)}")

    def _stop(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Stop processes with SIGTERM and check their exit codes."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            name = self._names[process.pid]
            try:
                code = process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise Failure(f"{name} did not stop: see {self._log_tail(name)}") from None
            if code:
                raise Failure(f"{name} stopped with exit code {code}: see {self._log_tail(name)}")

    def _log_tail(self, name: str) -> str:
        """Name the log file of a process, and its last line."""
        path = self.folder / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()
        place = min(os.path.relpath(path), str(path), key=len)
        return f"{place} ({lines[-1][:200] if lines else 'empty'})"

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:5.1f} s  {text}", flush=True)

    # The verdict.

    def judge(self) -> bool:
        totals = self._report["totals"]
        logged = self._logged()
        measured = _telemetry(self._report)
        rows = [
            ("sent", measured["sent"], True),
            ("acknowledged", measured["acknowledged"], measured["acknowledged"] > 0),
            ("delivered", measured["delivered"], measured["delivered"] == measured["sent"]),
            ("lost", totals["lost"], totals["lost"] == 0),
            ("repeated", totals["repeated"], totals["repeated"] == 0),
            ("in the log", logged, logged == measured["sent"]),
        ]
        if not self._no_spark:
            self._show_windows()
            counted = self._counted()
            rows += [
                ("in windows", counted, counted == logged),
                ("alerts over MQTT", len(self._alerts), bool(self._alerts)),
            ]
        print("\nVerdict, after one kill -9 of the broker")
        for name, value, is_right in rows:
            print(f"  {name:18} {value:>10,}  {'' if is_right else '<- WRONG'}".rstrip())
        is_right = all(right for _, _, right in rows) and self._report["verdict"]["passed"]
        print("everything adds up" if is_right else "some counts are wrong")
        print(f"\nWhy did {_VALVE} get its command late? fleetmq ctl why says:")
        print(textwrap.fill(self._reason, 96, initial_indent="  ", subsequent_indent="  "))
        self._show_next_steps()
        return is_right

    def _show_windows(self) -> None:
        print("\nTemperature of three devices, in windows of 10 s (windows.db)")
        print("  device        window       count    mean     min     max     p95")
        query = (
            "SELECT device, window_start, count, mean, min, max, p95 FROM windows WHERE "
            "metric = 'temperature' AND device IN (SELECT DISTINCT device FROM windows "
            "WHERE metric = 'temperature' ORDER BY device LIMIT 3) ORDER BY 1, 2"
        )
        for device, start, count, *values in self._query("windows.db", query):
            cells = "".join(f"{value:>8.2f}" for value in values)
            print(f"  {device:12}  {str(start)[11:19]:10} {count:>6} {cells}")
        for line in self._alerts[:3]:
            print(f"  {line[:96]}")

    def _show_next_steps(self) -> None:
        folder = min(os.path.relpath(self.folder), str(self.folder), key=len)
        fleetmq = own_command()
        print(f"\nWhat it wrote is in {folder}/; where to look next:")
        print(f"  {fleetmq} stream tail {_STREAM} --log {folder}/data -n 5")
        if self._no_spark:
            print(f"  without Spark: {self._no_spark}")
        elif shutil.which("sqlite3"):
            print(f"  sqlite3 {folder}/windows.db 'SELECT * FROM windows LIMIT 5'")
        print(f"  {fleetmq} broker --config {folder}/broker.toml --data-dir {folder}/data")
        print("  docs/STREAMS.md, docs/SPARK.md, docs/DURABILITY.md")


def own_command() -> str:
    """Return how this program is called here: the bare name where the shell finds it."""
    found = shutil.which("fleetmq")
    ours = Path(sys.argv[0]).absolute()
    if found is not None and ours.exists() and Path(found).samefile(ours):
        return "fleetmq"
    short = min(os.path.relpath(ours), str(ours), key=len)
    return shlex.quote(short if os.sep in short else os.path.join(os.curdir, short))


def _environment() -> dict[str, str]:
    """Return our environment without the variables that configure another broker."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FLEETMQ_")}
    # The same code, in whatever directory they run.
    return {**_BRISK, **kept, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def _telemetry(report: dict[str, Any]) -> dict[str, int]:
    """Sum the counts of telemetry, which is what the log keeps."""
    rows = [row for row in report["messages"] if row["class"] == "telemetry"]
    return {key: sum(row[key] for row in rows) for key in ("sent", "acknowledged", "delivered")}


def _ticks(deadline: float, seconds: float) -> Iterator[None]:
    while time.monotonic() < deadline:
        yield
        time.sleep(min(seconds, max(0.0, deadline - time.monotonic())))


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and the processes it started, such as a JVM."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

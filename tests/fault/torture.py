"""Kill the broker again and again, and see whether its acknowledgements meant it.

    python -m tests.fault.torture --kills 200 --database sqlite --seed 1

A supervisor starts the broker and processes that load it, kills the broker at random moments
(SIGKILL, sometimes SIGTERM, during start too), starts it again on the same port and data, and
at the end lets everything come to rest and reads the ledgers of all processes. It ends with
0 when nothing acknowledged was lost, nothing at QoS 2 was repeated, and nothing else was
wrong; with 1 otherwise, and then the ledgers and the data are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import selectors
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final, Protocol

import psycopg

from tests.fault import plan
from tests.fault.lives import Ended, Lives
from tests.fault.log_witness import CONFIG, LogRow, LogWitness, judge_log
from tests.fault.postgres import PostgreSQL, Unavailable
from tests.fault.tether import tied
from tests.fault.verdict import Judge, Verdict, explain, table
from tests.server.broker_process import ROOT

PARTS: Final = 3
_PROGRESS_S: Final = 5.0
_READY_S: Final = 60.0
_DRAIN_S: Final = 120.0  # without progress
_DRAIN_MAX_S: Final = 1_800.0
_QUIET_S: Final = 1.5
_TERMINATE_S: Final = 30.0
# What the plan needs: long queues for who comes late, and bursts. All else is as delivered.
_SETTINGS: Final = {
    "FLEETMQ_RECEIVE_MAXIMUM": "100",
    "FLEETMQ_QUEUE_MESSAGES_MAX": "10000000",
    "FLEETMQ_QUEUE_BYTES_MAX": str(8 << 30),
    "FLEETMQ_QUEUE_TOTAL_BYTES_MAX": str(8 << 30),
}


@dataclass(frozen=True, slots=True)
class Options:
    kills: int = 200
    database: str = "sqlite"
    durability: str = "commit"
    seed: int = 1
    clients: int = 4  # publishers; takers follow from them
    rate: float = 1200.0
    life_s: float = 0.9
    command: str = ""
    deaths: str = "any"  # or orderly: SIGTERM alone
    faults: bool = False  # the store fails now and then as well
    keep: bool = False
    without: str = ""  # kinds of findings that are not looked for
    sabotage: str = ""  # a defect that is put into the broker, see tests/sabotage.py

    @property
    def has_log(self) -> bool:
        """Whether there is a telemetry log too: it is to be as good as the acknowledgements."""
        return self.durability == "commit"

    def again(self) -> str:
        words = [
            "python", "-m", "tests.fault.torture", "--kills", str(self.kills),
            "--database", self.database, "--durability", self.durability,
            "--seed", str(self.seed), "--clients", str(self.clients),
            "--rate", f"{self.rate:g}", "--seconds-per-life", f"{self.life_s:g}",
        ]  # fmt: skip
        words += ["--deaths", self.deaths] + ["--faults"] * self.faults
        words += ["--without", self.without] if self.without != Options().without else []
        words += ["--sabotage", self.sabotage] if self.sabotage else []
        return shlex.join(words + (["--command", self.command] if self.command else []))


class SupportsClose(Protocol):
    def close(self) -> object: ...


class Load:
    """One process of clients."""

    def __init__(self, number: int, port: int, ledger: Path, options: Options) -> None:
        self.ledger = ledger
        self.told: dict[str, int] = {}
        self.has_spoken = False
        self.errors = ledger.with_suffix(".err")
        command = [sys.executable, "-m", "tests.fault.load", str(number), str(PARTS), str(port)]
        command += [str(ledger), str(options.seed), str(options.clients), str(options.rate)]
        command.append(str(options.has_log))
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                tied(command),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._input = bytearray()

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        self.has_spoken = False  # what it said before does not count any longer

    def hear(self) -> None:
        data = self.stdout.read1(65_536)  # type: ignore[attr-defined]
        if not data:
            raise Ended(f"a load process ended: {self.errors.read_text()[-2000:]}")
        self._input += data
        *lines, rest = self._input.split(b"\n")
        self._input = bytearray(rest)
        if lines:
            self.told = json.loads(lines[-1])
            self.has_spoken = True

    def end(self) -> None:
        """Let it write its ledger out; kill it where it does not."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()


class Torture:
    """One run, from the first start to the verdict."""

    def __init__(self, options: Options, directory: Path, out: IO[str]) -> None:
        self.options = options
        self.directory = directory
        self._out = out
        self._rng = random.Random(f"{options.seed}/supervisor")
        self._plan = plan.make(options.seed, options.clients, options.rate, has_log=options.has_log)
        self._selector = selectors.DefaultSelector()
        self._loads: list[Load] = []
        self._kill_log: list[tuple[float, str]] = []
        self._fault_log: list[tuple[float, str]] = []
        self._troubles: list[str] = []  # beside what the ledgers say
        self._start = time.monotonic()
        self._next_progress = 0.0
        self._start_s = 0.5  # how long the last start took
        self._server: PostgreSQL | None = None
        self.log: LogRow | None = None

    def run(self) -> Verdict:
        with contextlib.ExitStack() as stack:
            url = ""
            server: PostgreSQL | None = None
            if self.options.database == "postgresql":
                server = stack.enter_context(PostgreSQL())
                url = server.database("torture")
            stack.callback(self._selector.close)
            has_log = self.options.has_log
            broker = stack.enter_context(
                Lives(
                    self.directory,
                    *(self._configured() if has_log else ()),
                    durability=self.options.durability,
                    database_url=url,
                    command=self.options.command,
                    env=_SETTINGS,
                    sabotage=self.options.sabotage,
                )
            )
            self._server = server
            witness = LogWitness(broker.data)
            if has_log:
                witness.start()
                stack.callback(witness.stop)
            try:
                self._go_through(broker, stack)
            except (Ended, subprocess.TimeoutExpired) as error:
                self._troubles.append(str(error))
            self._end_loads()
            broker.kill()
            complaints = broker.complaints(store_may_fail=self.options.faults)
            self._troubles += [f"in its log: {line}" for line in complaints[:20]]
            judge = Judge(self._plan, frozenset(self.options.without.split(",")), broker.ready_at)
            verdict = judge.read(load.ledger for load in self._loads)
            if has_log:
                witness.stop()
                self.log = judge_log(broker.data, witness, judge.flows, verdict)
            for trouble in self._troubles:
                verdict.find("troubles", trouble)
            if server is not None and not verdict.is_clean:
                server.keep(self.directory / "postgresql")
        return verdict

    def explain(self, verdict: Verdict) -> str:
        return explain(verdict, sorted(self._kill_log + self._fault_log), self._start)

    def _configured(self) -> tuple[str, str]:
        path = self.directory / "broker.toml"
        path.write_text(CONFIG)
        return "--config", str(path)

    # The course of it.

    def _go_through(self, broker: Lives, stack: contextlib.ExitStack) -> None:
        broker.start()
        for number in range(PARTS):
            load = Load(number, broker.port, self.directory / f"ledger-{number}", self.options)
            self._loads.append(load)
            self._selector.register(load.stdout, selectors.EVENT_READ, load)
        stack.callback(self._end_loads)
        self._until(lambda: self._all("settled"), _READY_S, "every subscription acknowledged")
        if not self.options.kills:  # how it goes when nobody dies
            self._wait(5 * self.options.life_s)
        while len(self._kill_log) < self.options.kills:
            self._live_and_die(broker)
        if not broker.is_running:
            broker.start()
        self._say("finish")
        self._until(lambda: not self._sum("sending"), _DRAIN_S, "every message acknowledged")
        self._say("gather")
        self._until_quiet()
        if self.options.kills:  # what is delivered and acknowledged stays so over one more
            self._kill(broker, "last SIGKILL")
            broker.start()
            self._until_quiet()
        self._terminate(broker)

    def _live_and_die(self, broker: Lives) -> None:
        """One life, until one kind of death or another."""
        rng = self._rng
        chance = rng.random()
        is_orderly = self.options.deaths == "orderly"
        if not broker.is_running:
            broker.spawn()
            if chance < 0.12 and not is_orderly:  # during its start, recovery and all
                self._wait(rng.uniform(0.0, 1.2) * self._start_s)
                self._kill(broker, "SIGKILL in start")
                return
            self._ready(broker)
            self._start_s = time.monotonic() - broker.started_at
        if chance < 0.25:  # when all come back at once
            self._wait(rng.uniform(0.0, 0.08))
        else:
            self._wait(self.options.life_s * rng.uniform(0.2, 1.8))
        if self.options.faults and rng.random() < 0.6:
            self._fail_store(broker)
        if rng.random() < 0.2 and not is_orderly and self._is_killed_while_stopped(broker):
            return
        if chance > 0.92 or is_orderly:
            self._terminate(broker)
        elif chance > 0.88:  # killed while it ends in order
            broker.process.send_signal(signal.SIGTERM)
            self._wait(rng.uniform(0.0, 0.05))
            self._kill(broker, "SIGTERM and SIGKILL")
        elif chance > 0.5 and self.options.durability != "memory":
            self._kill_slow(broker)
        else:
            self._kill(broker, "SIGKILL")

    def _is_killed_while_stopped(self, broker: Lives) -> bool:
        """SIGSTOP for a moment, and then SIGCONT or SIGKILL."""
        broker.pause()
        self._wait(self._rng.uniform(0.0, 0.6))
        if self._rng.random() < 0.5:
            self._kill(broker, "SIGKILL while stopped")
            return True
        broker.go_on()
        self._wait(self._rng.uniform(0.0, 0.02))
        return False

    def _kill_slow(self, broker: Lives) -> None:
        """No commit for a moment; killed in the middle of it, or just when all comes at once.

        What is answered too early shows when the disk is slow: else it is so for 3 ms.
        """
        rng = self._rng
        with contextlib.closing(self._lock(broker, "journal")):
            self._wait(rng.uniform(0.0, 0.25))
            if rng.random() < 0.5:
                self._kill(broker, "SIGKILL before a commit")
                return
        self._wait(rng.uniform(0.0, 0.012))
        self._kill(broker, "SIGKILL after a commit")

    def _fail_store(self, broker: Lives) -> None:
        """For a moment; the broker is often killed as soon as it is over."""
        rng = self._rng
        self._fault_log.append((time.monotonic(), "store fails"))
        if self._server is not None:
            self._server.stop("immediate")
            self._wait(rng.uniform(0.0, 1.0))
            self._server.start()
        else:
            with contextlib.closing(self._lock(broker, rng.choice(("journal", "fleetmq")))):
                self._wait(rng.uniform(0.1, 1.5))
        self._fault_log.append((time.monotonic(), "store is back"))
        self._wait(rng.choice((0.0, 0.05, 1.0)))

    def _lock(self, broker: Lives, name: str) -> SupportsClose:
        """Nobody else writes until it is closed."""
        if self._server is not None:
            connection = psycopg.connect(self._server.conninfo("torture"))
            connection.execute(f"LOCK TABLE {name} IN EXCLUSIVE MODE")
            return connection
        file = sqlite3.connect(broker.data / f"{name}.db", isolation_level=None, timeout=10)
        file.execute("BEGIN EXCLUSIVE")
        return file

    def _ready(self, broker: Lives) -> None:
        while not broker.wait_ready(0.05):
            self._wait(0.0)
            if time.monotonic() - broker.started_at > _READY_S:
                raise Ended(f"the broker does not listen after {_READY_S} s")

    def _kill(self, broker: Lives, kind: str) -> None:
        self._kill_log.append((time.monotonic(), kind))
        broker.kill()

    def _terminate(self, broker: Lives) -> None:
        self._kill_log.append((time.monotonic(), "SIGTERM"))
        code = broker.terminate(_TERMINATE_S)
        if code:
            self._troubles.append(f"exit code {code} after SIGTERM: {broker.last_words()}")

    # What the loads say.

    def _say(self, word: str) -> None:
        for load in self._loads:
            load.say(word)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left)):
                key.data.hear()
            self._progress()
            if left <= 0:
                return

    def _all(self, name: str) -> bool:
        return all(load.told.get(name, False) for load in self._loads)

    def _sum(self, name: str) -> int:
        """Over all that have spoken since they were told something; at least 1 until then."""
        if not all(load.has_spoken for load in self._loads):
            return 1
        return sum(load.told[name] for load in self._loads)

    def _until(self, condition: object, seconds: float, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self._troubles.append(f"not within {seconds:g} s: {what}")
                return
            self._wait(0.05)

    def _until_quiet(self) -> None:
        """Nothing was delivered for a while, and no handshake is open.

        The takers that pause before each acknowledgement fall behind with every kill, so what
        they have left may take long; it must not stand still.
        """
        delivered, since = -1, time.monotonic()
        deadline = since + _DRAIN_MAX_S
        while time.monotonic() < deadline:
            self._wait(0.1)
            now = self._sum("delivered")
            still_s = time.monotonic() - since
            if now != delivered:
                delivered, since = now, time.monotonic()
            elif still_s > _DRAIN_S:
                self._troubles.append(f"handshakes are open, nothing came for {_DRAIN_S:g} s")
                return
            elif still_s > _QUIET_S and not self._sum("taking"):
                return
        self._troubles.append(f"not within {_DRAIN_MAX_S:g} s: every handshake at its end")

    def _progress(self) -> None:
        now = time.monotonic() - self._start
        if now < self._next_progress:
            return
        self._next_progress = now + _PROGRESS_S
        told = [
            f"{sum(load.told.get(name, 0) for load in self._loads):,} {name}"
            for name in ("sent", "acknowledged", "delivered")
        ]
        kills = f"{len(self._kill_log)}/{self.options.kills} kills"
        self._out.write(f"{now:6.0f} s  {kills}  {', '.join(told)}\n")
        self._out.flush()

    def _end_loads(self) -> None:
        for load in self._loads:
            if load.process.returncode is None:
                load.end()


def torture(options: Options, out: IO[str], where: Path | None = None) -> Verdict:
    """Run, tell, and tidy up; what is kept stands in a folder of its own in `where`."""
    directory = Path(tempfile.mkdtemp(prefix="fmq-torture-", dir=where))
    is_clean = False
    try:
        run = Torture(options, directory, out)
        verdict = run.run()
        is_clean = verdict.is_clean
        out.write(table(verdict) + "\n")
        if run.log is not None:
            out.write(f"  {run.log}\n")
        if not is_clean:
            out.write(run.explain(verdict) + "\n")
            out.write(f"again: {options.again()}\nkept: {directory}\n")
    finally:
        if is_clean and not options.keep:
            shutil.rmtree(directory)
    return verdict


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tests.fault.torture", description=__doc__
    )
    default = Options()
    parser.add_argument("--kills", type=int, default=default.kills)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default=default.database)
    parser.add_argument("--durability", default=default.durability)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument(
        "--clients", type=int, default=default.clients, help="publishers, 3 or more"
    )
    parser.add_argument("--rate", type=float, default=default.rate, help="messages a second")
    parser.add_argument("--seconds-per-life", type=float, default=default.life_s, dest="life_s")
    parser.add_argument("--command", default="", help="another fleetmq than this tree's")
    parser.add_argument("--deaths", choices=("any", "orderly"), default=default.deaths)
    parser.add_argument("--faults", action="store_true", help="fail the store now and then, too")
    parser.add_argument("--keep", action="store_true", help="keep the ledgers in any case")
    parser.add_argument("--without", default=default.without, help="kinds of findings")
    parser.add_argument("--sabotage", default="", help="put a defect into the broker")
    options = Options(**vars(parser.parse_args(arguments)))
    signal.signal(signal.SIGTERM, _stop)
    try:
        verdict = torture(options, sys.stdout)
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
        return 130
    except Unavailable as error:
        sys.stdout.write(f"no PostgreSQL: {error}\n")
        return 2
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

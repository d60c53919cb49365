"""Signals at any step of any command: one line each, an exit code, and no traceback."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker import interrupts
from mqtt_broker.testing import ThreadedBroker
from tests import forked
from tests.server.broker_process import ROOT, environment
from tests.spark_ingest.conftest import what_is_missing

PATIENCE_S: Final = 60.0
SEED: Final = int(os.environ.get("SIGNAL_SEED", "1"))
SEEDS: Final = [SEED, *(pytest.param(SEED + n, marks=pytest.mark.slow) for n in (1, 2))]
STEPS: Final = {"broker": 1_400_000}  # until it runs; others: fewer
STEPS_OTHERS: Final = 500_000
RETAINED: Final = 100
_MAIN: Final = "from mqtt_broker.cli.main import main; sys.exit(main())"
_START: Final = "from tests.cli.signalled import run; run()"
_SCENARIO: Final = """
name = "small"
duration_s = 60
drain_s = 1
[[fleets]]
name = "f"
model = "tests.iot_sim.stub_device:Stub"
count = 3
interval_s = 0.1
qos = 1
"""
STOPPING: Final = re.compile(r"^fleetmq( \w+)?: SIG(INT|TERM), stopping$", re.MULTILINE)
AT_ONCE: Final = re.compile(r"^fleetmq( \w+)?: SIG(INT|TERM) again, stopped at once$", re.MULTILINE)


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadedBroker() as broker:
        yield broker.url


@pytest.fixture
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return COMMANDS[request.param](request, tmp_path)


def broker(_: pytest.FixtureRequest, home: Path) -> list[str]:
    """It has something to restore."""
    with ThreadedBroker(data_dir=str(home / "data")) as before:
        for number in range(RETAINED):
            before.publish(f"kept/{number}", b"x" * 100, qos=1, retain=True)
    return ["broker", "--port", "0", "--data-dir", str(home / "data"), "--durability", "commit",
            "--http", "127.0.0.1:0"]  # fmt: skip


def _client(request: pytest.FixtureRequest, *words: str) -> list[str]:
    return [words[0], "-L", f"{request.getfixturevalue('url')}/a/b", *words[1:]]


def simulator(request: pytest.FixtureRequest, home: Path) -> list[str]:
    (home / "one.toml").write_text(_SCENARIO)
    url: str = request.getfixturevalue("url")
    return ["sim", "run", str(home / "one.toml"), "--broker", url, "--quiet"]


def bridge(request: pytest.FixtureRequest, home: Path) -> list[str]:
    url: str = request.getfixturevalue("url")
    return ["spark", "bridge", "--broker", url, "--filter", "a/#", "--log", str(home / "log"),
            "--stream", "one"]  # fmt: skip


COMMANDS: Final[dict[str, Callable[[pytest.FixtureRequest, Path], list[str]]]] = {
    "broker": broker,
    "sub": lambda request, _: _client(request, "sub", "-q", "1"),
    "pub": lambda request, _: _client(
        request, "pub", "-m", "x", "-q", "1", "--repeat", "99999", "--repeat-delay", "0.01"
    ),
    "rr": lambda request, _: _client(request, "rr", "-m", "x"),
    "pub -l": lambda request, _: _client(request, "pub", "-l", "-q", "1"),
    "sim": simulator,
    "sim of two": lambda request, home: [*simulator(request, home), "--workers", "2"],
    "bridge": bridge,
}
# What a command returns that was running and was stopped in order; others: 128 + the signal.
IN_ORDER: Final = {"broker": {0}, "sub": {0}, "sim": {0, 1}, "spark": {0}}


class Run:
    """A command with signals at steps of it."""

    def __init__(self, words: list[str], *plan: int) -> None:
        self.words = words
        self._reader, self._writer = os.pipe()  # standard input without an end
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _START, *map(str, plan), *words],
            cwd=ROOT,
            env=environment({"FLEETMQ_HTTP": "", "PYTHONPATH": str(ROOT)}),
            stdin=self._reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> str:
        """Wait for its end; return standard error."""
        try:
            _, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
            pytest.fail(f"{self.words[0]} did not end\n{errors}")
        finally:
            os.close(self._reader)
            os.close(self._writer)
        return errors

    def check(self, errors: str, plan: object, *, again: bool) -> None:
        told = f"{self.words}, {plan}: {self.process.returncode}\n{errors}"
        code = self.process.returncode
        assert "Traceback" not in errors and "Exception ignored" not in errors, told
        assert len(STOPPING.findall(errors)) == 1, told
        insisted = AT_ONCE.findall(errors)
        assert len(insisted) <= int(again), told
        number = insisted[-1][1] if insisted else STOPPING.findall(errors)[0][1]
        asked = 128 + signal.Signals[f"SIG{number}"]
        assert code == asked or (not insisted and code in IN_ORDER.get(self.words[0], ())), told


def steps(chance: random.Random, most: int) -> int:
    """Early steps as often as late ones."""
    return int(most ** chance.random()) if chance.random() < 0.4 else chance.randint(1, most)


@pytest.mark.parametrize("words", COMMANDS, indirect=True)
@pytest.mark.parametrize("number", interrupts.SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("seed", SEEDS)
def test_signals_at_any_step(words: list[str], number: int, again: bool, seed: int) -> None:
    chance = random.Random(f"{seed} {words[0]} {number} {again}")  # each at a step of its own
    most = STEPS.get(words[0], STEPS_OTHERS)
    delay = steps(chance, 5_000) if again else 0
    plan = steps(chance, most), number, delay, chance.choice(interrupts.SIGNALS)
    run = Run(words, *plan)
    run.check(run.end(), plan, again=again)
    if words[0] == "broker":
        with ThreadedBroker(data_dir=words[words.index("--data-dir") + 1]) as after:
            reader = ["sub", "-L", f"{after.url}/kept/#", "-C", str(RETAINED), "-W", "60"]
            done = forked.run(
                [sys.executable, "-c", f"import sys; {_MAIN}", *reader],
                cwd=ROOT, capture_output=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, b"")


def jvms(pid: int, kind: bytes) -> list[int]:
    """Processes that this one has started, by a word of their command line."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            with contextlib.suppress(OSError):
                if kind in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


@pytest.mark.slow
@pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "there is Spark")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("kind", [b"-version", b"SparkSubmit"], ids=["version", "gateway"])
def test_no_jvm_stays_behind_when_a_job_starts(tmp_path: Path, again: bool, kind: bytes) -> None:
    (tmp_path / "log").mkdir()
    words = [
        "spark",
        "run",
        "windows",
        "--log",
        str(tmp_path / "log"),
        "--stream",
        "one",
        "--sink",
        f"sqlite:///{tmp_path}/one.db",
        "--checkpoint",
        str(tmp_path / "c"),
    ]
    run = Run(words, 0, 0, 20 if again else 0, signal.SIGINT)
    while not (started := jvms(run.process.pid, kind)):
        assert run.process.poll() is None
        time.sleep(0.01)
    run.process.send_signal(signal.SIGTERM)
    errors = run.end()  # once the JVM has closed it, too
    run.check(errors, words, again=again)
    assert "Exception" not in errors
    assert run.process.returncode == (130 if again else 143), errors
    for jvm in started:
        with contextlib.suppress(OSError):
            assert kind not in Path(f"/proc/{jvm}/cmdline").read_bytes()

"""The torture, short; and that its harness sees what it is there to see."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fault.lives import PATIENCE_S, Ended, Lives
from tests.fault.postgres import PostgreSQL, Unavailable
from tests.fault.torture import Options, torture
from tests.fault.verdict import Verdict
from tests.server.broker_process import ROOT

SHORT = Options(kills=6, rate=800.0, life_s=0.5, clients=3)


def run(options: Options, where: Path) -> tuple[Verdict, str]:
    out = io.StringIO()
    return torture(options, out, where), out.getvalue()


@pytest.mark.slow
def test_six_kills_on_sqlite(tmp_path: Path) -> None:
    verdict, said = run(SHORT, tmp_path)
    assert verdict.is_clean, said
    assert " 0 missing" in said
    assert verdict.rows[1].due > 600 and verdict.rows[2].due > 300, said


@pytest.mark.slow
def test_five_kills_on_postgresql(tmp_path: Path) -> None:
    try:
        with PostgreSQL():
            pass
    except Unavailable as error:
        pytest.skip(f"PostgreSQL: {error}")  # the word that TESTS_REQUIRE looks for
    options = Options(kills=5, database="postgresql", rate=800.0, life_s=0.5, clients=3)
    verdict, said = run(options, tmp_path)
    assert verdict.is_clean, said
    assert verdict.rows[1].due > 500 and verdict.rows[2].due > 250, said


def test_want_of_postgresql_is_named_where_nothing_may_be_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the word that `TESTS_REQUIRE` looks for, whatever is wanting."""

    class Missing:
        def __init__(self) -> None:
            raise Unavailable("initdb: exit code 1")

    monkeypatch.setattr(f"{__name__}.PostgreSQL", Missing)
    with pytest.raises(pytest.skip.Exception, match=r"PostgreSQL.*initdb"):
        test_five_kills_on_postgresql(tmp_path)


def test_without_a_store_the_same_kills_lose(tmp_path: Path) -> None:
    """Else nothing of the above would mean anything."""
    options = Options(kills=3, durability="memory", rate=800.0, life_s=0.5, clients=3)
    verdict, said = run(options, tmp_path)
    assert verdict.rows[1].lost and verdict.rows[2].lost, said
    assert verdict.counts["sessions lost"] and verdict.counts["retained wrong"], said
    assert "again: python -m tests.fault.torture --kills 3" in said


def test_a_broker_that_does_not_start_is_told(tmp_path: Path) -> None:
    with Lives(tmp_path, "--max-keepalive", "0") as broker, pytest.raises(Ended) as ended:
        broker.start()
    assert "exit code 2: fleetmq broker: --max-keepalive" in str(ended.value)
    assert not broker.is_running


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Not the broker, nor the server that forked it, nor the processes that load it."""
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc")
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "tests.fault.torture", "--kills", "99", "--durability", "memory"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    with supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
        deadline = time.monotonic() + PATIENCE_S
        while len(found := children.read_text().split()) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(found) == 5
        supervisor.send_signal(signal.SIGKILL)
    while time.monotonic() < deadline and any(_is_alive(int(pid)) for pid in found):
        time.sleep(0.01)
    assert not any(_is_alive(int(pid)) for pid in found)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

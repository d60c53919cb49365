"""`fleetmq demo`: a small one, what it says when it cannot, and that no process of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.cli import demo
from mqtt_broker.cli.main import main
from mqtt_broker.http_api import address_file
from spark_ingest.run import spark_session
from tests.server.broker_process import ROOT, environment
from tests.spark_ingest.conftest import what_is_missing

PATIENCE_S: Final = 180.0
_MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
needs_spark: Final = pytest.mark.skipif(
    bool(what_is_missing()), reason=what_is_missing() or "there is Spark"
)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[object, str]:
    """(exit code, what it says on standard error)."""
    try:
        code: object = main(["demo", *argv])
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is Spark here is not what is tested."""
    monkeypatch.setattr(spark_session, "check", lambda: None)


# What it refuses.


def test_without_java_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "NEEDED", ())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java 17 or newer; there is no java" in demo.why_no_spark()


def test_hints_name_a_command_that_the_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "fleetmq"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.chdir(tmp_path)
    assert demo.own_command() == "bin/fleetmq"
    monkeypatch.setenv("PATH", str(program.parent))
    assert demo.own_command() == "fleetmq"


@pytest.mark.usefixtures("fit")
@pytest.mark.parametrize("name", ["thesis.txt", "broker.toml"])
def test_a_directory_that_is_not_of_a_demo_stays_as_it_is(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("years of work")
    code, said = refused(capsys, "--dir", str(tmp_path))
    assert code == 2 and "--dir: " in said and "is not of a demo" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.usefixtures("fit")
def test_a_file_or_no_permission_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "file", "not a directory"), (tmp_path / "file/x", "ot a dir")):
        code, said = refused(capsys, "--dir", str(place))
        assert code == 2 and "--dir: " in said and why in said and "Traceback" not in said


@pytest.mark.usefixtures("fit")
def test_a_demo_that_runs_is_not_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = demo.make_folder(tmp_path / "demo")
    (folder / "data").mkdir()
    address_file.write(folder / "data", "http://127.0.0.1:1")  # of this process, which runs
    code, said = refused(capsys, "--dir", str(folder))
    assert code == 2 and "a broker still runs" in said
    assert (folder / "data" / address_file.FILE).exists()


def test_one_that_is_over_is(tmp_path: Path) -> None:
    folder = demo.make_folder(tmp_path / "demo")
    (folder / "windows.db").touch()
    demo.make_folder(folder)
    assert not (folder / "windows.db").exists()


@pytest.mark.usefixtures("fit")
@pytest.mark.parametrize("option", ["--devices", "--seconds"])
def test_numbers_that_cannot_be(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(capsys, option, "0", "--dir", str(tmp_path / "demo"))
    assert code == 2 and f"{option} is " in said
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("fit")
def test_a_port_that_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter((taken.getsockname()[1], demo.free_port()))  # of MQTT, of HTTP
        monkeypatch.setattr(demo, "free_port", lambda: next(ports))
        code, said = refused(capsys, "--dir", str(folder))
    assert code == 1
    assert "broker ended with exit code 2: see " in said and "broker.log (" in said
    assert "in use" in said
    assert processes_in(folder) == []


# A real one.


def processes_in(folder: Path) -> list[int]:
    """All that the demo starts works in its directory, JVMs and their workers too."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and (path / "cwd").resolve(strict=True) == folder:
                found.append(int(path.name))
    return found


def is_under_way(folder: Path) -> bool:
    """A query was planned: JVM and Python workers are there."""
    return (folder / "checkpoints" / "windows" / "offsets" / "0").exists()


@contextmanager
def running(folder: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "demo", "--dir", str(folder), *argv],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_S)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def gone(folder: Path) -> bool:
    """Killed processes need a moment until they are."""
    deadline = time.monotonic() + 60
    while left := processes_in(folder):
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.02)
    return True


@pytest.mark.slow
@needs_spark
def test_a_small_one_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running(folder, "--devices", "20", "--seconds", "10") as process:
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said + errors
    assert "kill -9: the broker is gone" in said and said.count("WRONG") == 0
    assert "everything adds up" in said
    with contextlib.closing(sqlite3.connect(folder / "windows.db")) as connection:
        query = "SELECT count(DISTINCT device), sum(count) FROM windows WHERE metric = ''"
        devices, messages = connection.execute(query).fetchone()
    assert devices == 20 and messages >= 200
    assert f"in the log         {messages:>10,}" in said
    assert gone(folder)


def test_one_without_spark_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running(folder, "--devices", "20", "--seconds", "10", "--no-spark") as process:
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said + errors
    assert "no Spark jobs: as --no-spark asks" in said and "in windows" not in said
    assert "kill -9: the broker is gone" in said and "everything adds up" in said
    why = " ".join(said.partition("Why did valve-1 get its command late?")[2].split())
    assert "its page is at http://127.0.0.1:" in said
    assert "by `control-room`" in why and "queued (away since" in why and "acknowledged" in why
    assert gone(folder)


@pytest.mark.slow
@needs_spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_runs_on_when_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    with running(folder, "--devices", "5") as process:
        until(lambda: is_under_way(folder), process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert errors == f"fleetmq demo: {number.name}, stopping\n"
    assert gone(folder)


@pytest.mark.slow
@needs_spark
def test_a_job_that_dies_ends_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running(folder, "--devices", "5") as process:
        until(lambda: is_under_way(folder), process)
        for number in processes_in(folder):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
                if words[3:6] == [b"spark", b"run", b"windows"]:
                    os.kill(number, signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "windows ended with exit code -9: see " in errors and "windows.log" in errors
    assert gone(folder)

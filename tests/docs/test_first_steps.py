"""The steps of README, the tutorial and the guides run, and each prints what the document shows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.docs.blocks import IN_ORDER, ROOT, of
from tests.server.broker_process import Process, http_address

PATIENCE_S: Final = 120.0
FAST: Final = ("README.md", "docs/tutorial.md", "docs/how-to/devices.md")
SPARK_S: Final = 300.0  # for the start of a JVM on a busy machine
FLEETMQ: Final = ".venv/bin/fleetmq"


BROKER: Final = re.compile(rf"make run|{re.escape(FLEETMQ)} broker(?!.* --check)( .*)?")


_FILES: Final = re.compile(r'\b(file|cert|key|client_ca|bans_file) = "(?!/)([^"]+)"')


class Step(NamedTuple):
    line: int
    terminal: str
    command: str
    shown: str


def _steps(document: str, *, has_spark: bool = False) -> list[Step]:
    found: list[Step] = []
    for block in of("console"):
        if block.path != ROOT / document or block.key == "not run":
            continue
        if block.key == "needs" and not (has_spark and all(map(_is_there, block.value.split()))):
            continue
        terminal = block.value if block.key == "terminal" else ""
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if line.startswith("$ "):
                found.append(Step(number, terminal, line[2:], ""))
            else:
                last = found[-1]
                found[-1] = last._replace(shown=f"{last.shown}{line}\n")
    return found


def _is_there(program: str) -> bool:
    if program == "java" and importlib.util.find_spec("pyspark") is None:
        return False
    return shutil.which(program) is not None


class World:
    """A newcomer's directory and terminals, and the broker that runs in one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = self.http_port = 0
        self.broker: Process | None = None
        self.running: list[tuple[Step, subprocess.Popen[str]]] = []  # in terminals of their own
        program = folder / FLEETMQ
        program.parent.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from mqtt_broker.cli.main import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)

    def start_broker(self, step: Step) -> None:
        """Start one, with the options and files that the step names."""
        self.stop_broker()
        given = (BROKER.fullmatch(step.command) or [""])[1] or ""
        words = [str(self.folder / w) if is_file(w) else w for w in shlex.split(given)]
        if "--data-dir" not in words:
            words += ["--data-dir", str(self.folder / "fleetmq-data")]
        self.broker = Process(
            *words,
            *("--port", str(self.port), "--http", f"127.0.0.1:{self.http_port}"),
            env={"FLEETMQ_DURABILITY": "commit"},
        ).__enter__()
        [(_, self.port)] = self.broker.addresses
        self.http_port = int(http_address(self.broker).rpartition(":")[2])
        if step.shown:
            shown = re.escape(step.shown.splitlines()[0])
            shown = shown.replace("1883", r"\d+").replace("fleetmq\\-data", r"\S+/fleetmq-data")
            assert re.fullmatch(shown, self.broker.greeting.strip()), self.broker.greeting

    def stop_broker(self) -> None:
        """Wait for the end of one that was killed, or end it."""
        if self.broker is not None:
            self.broker.__exit__(None, None, None)

    def start(self, step: Step) -> None:
        """Start what goes on in a terminal of its own, and wait until it has subscribed."""
        process = self._popen(step.command.replace(f"{FLEETMQ} sub ", f"{FLEETMQ} sub -d "))
        self.running.append((step, process))
        assert process.stderr is not None
        while (line := process.stderr.readline()) != "received SUBACK\n":
            assert line, f"{step.command} ended"

    def end(self) -> None:
        """End what still runs, and check what it has printed."""
        for step, process in self.running:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in step.shown.splitlines()]
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE_S)
            assert "".join(shown) + rest == step.shown, step.command
        self.stop_broker()

    def run(self, command: str) -> str:
        """Return what it prints; wait for the end of a broker that is asked to stop."""
        patience_s = SPARK_S if "fleetmq spark " in command else PATIENCE_S
        said, errors = self._popen(command).communicate(timeout=patience_s)
        if re.match(r"kill (?!-STOP|-CONT|-HUP)", command) and self.broker is not None:
            self.broker.process.wait(PATIENCE_S)
        return said + errors

    def _popen(self, command: str) -> subprocess.Popen[str]:
        """Run a command as it stands, but for the port of this broker."""
        command = re.sub(
            rf"{re.escape(FLEETMQ)} (pub|sub|rr) ", rf"{FLEETMQ} \1 -p {self.port} ", command
        )
        command = command.replace("127.0.0.1:1883", f"127.0.0.1:{self.port}")
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{self.http_port}")
        return subprocess.Popen(
            ["bash", "-c", command if "|" in command else f"exec {command}"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("FLEETMQ_")},
        )


@pytest.mark.parametrize(
    "document",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in IN_ORDER],
)
def test_the_first_steps(document: str, tmp_path: Path) -> None:
    """In the order in which they stand, as a newcomer pastes them into terminals."""
    _run(document, tmp_path, _steps(document))


@pytest.mark.slow
def test_the_tutorial_up_to_its_windows(tmp_path: Path) -> None:
    steps = _steps("docs/tutorial.md", has_spark=True)
    if not any(" spark run " in step.command for step in steps):
        pytest.skip("Spark, Java or sqlite3 is missing")
    _run("docs/tutorial.md", tmp_path, steps)


def _run(document: str, tmp_path: Path, steps: list[Step]) -> None:
    for block in of("toml", "json"):
        if block.path == ROOT / document and (block.key == "file" or block.language == "toml"):
            name = block.value if block.key == "file" else "fleet.toml"
            text = _FILES.sub(rf'\1 = "{tmp_path}/\2"', block.text)  # the broker runs elsewhere
            (tmp_path / name).write_text(text)
    world = World(tmp_path)
    try:
        for step in steps:
            if BROKER.fullmatch(step.command):
                world.start_broker(step)
            elif step.terminal:
                world.start(step)
            else:
                said = world.run(step.command)
                if step.shown:
                    assert _alike(said) == _alike(step.shown), f"{document}:{step.line}"
        for line in _logged(document):
            assert world.broker is not None
            world.broker.wait_for(line)
    finally:
        world.end()


def _logged(document: str) -> list[str]:
    """Parts of lines that the broker logs in the course of a document, in this order."""
    shown = [b for b in of("text") if b.path == ROOT / document and b.key == "logged"]
    return [line for block in shown for line in block.text.splitlines()]


def test_the_first_step_of_each_document_starts_the_broker() -> None:
    for document in ("README.md", "docs/tutorial.md"):
        steps = _steps(document)
        assert BROKER.fullmatch(steps[0].command) and len(steps) > 8, document


def test_nothing_kills_the_brokers_of_others() -> None:
    assert not [block.where for block in of("sh", "console") if "pkill" in block.text]


def is_file(word: str) -> bool:
    return not word.startswith("-") and word.endswith((".toml", "backup", "fleetmq-data"))


def _alike(text: str) -> str:
    """Without what differs from day to day: times in JSON."""
    if text.startswith("{"):
        found = json.loads(text)
        found["tst"] = ""
        return json.dumps(found)
    return text

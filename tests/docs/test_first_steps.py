"""The first steps of README and the tutorial run, and each prints what the document shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.docs.blocks import ROOT, of
from tests.server.process import Process

PATIENCE_S: Final = 30.0
FLEETMQ: Final = ".venv/bin/fleetmq"


class Step(NamedTuple):
    line: int
    command: str
    shown: str


def _steps(document: str) -> list[Step]:
    found: list[Step] = []
    for block in of("console"):
        if block.path != ROOT / document or block.key == "not run":
            continue
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if line.startswith("$ "):
                found.append(Step(number, line[2:], ""))
            else:
                last = found[-1]
                found[-1] = last._replace(shown=f"{last.shown}{line}\n")
    return found


class World:
    """A broker that is killed and started again on one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.broker: Process | None = None
        program = folder / "fleetmq"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from mqtt_broker.cli.main import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)

    def start(self) -> None:
        self.broker = Process(
            *("--port", str(self.port), "--data-dir", str(self.folder / "fleetmq-data")),
            *("--http", "127.0.0.1:0"),
            env={"FLEETMQ_DURABILITY": "commit"},
        ).__enter__()
        [(_, self.port)] = self.broker.addresses

    def kill(self) -> None:
        assert self.broker is not None
        self.broker.__exit__(None, None, None)

    def run(self, command: str) -> str:
        """What it prints. `pub` and `sub` go to this broker's port."""
        ours = str(self.folder / "fleetmq")
        command = re.sub(
            rf"{re.escape(FLEETMQ)} (pub|sub) ", rf"{FLEETMQ} \1 -p {self.port} ", command
        )
        command = command.replace(FLEETMQ, shlex.quote(ours))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={k: v for k, v in os.environ.items() if not k.startswith("FLEETMQ_")},
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.start()
    yield world
    world.kill()


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_first_steps(document: str, world: World) -> None:
    for block in of("toml"):
        if block.path == ROOT / document:
            (world.folder / "fleet.toml").write_text(block.text)
    steps = _steps(document)
    assert len(steps) > 8
    for step in steps:
        if step.command.startswith("pkill"):
            world.kill()
        elif step.command == f"{FLEETMQ} broker &":
            world.start()
        else:
            said = world.run(step.command)
            if step.shown:
                assert _alike(said) == _alike(step.shown), f"{document}:{step.line}"


def _alike(text: str) -> str:
    """Without what differs from day to day: times in JSON."""
    if text.startswith("{"):
        found = json.loads(text)
        found["tst"] = ""
        return json.dumps(found)
    return text

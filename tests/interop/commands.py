"""Commands as people run them: `fleetmq` from this working tree, and mosquitto's clients.

run("fleetmq", "pub", ...)       -> (exit code, stdout, stderr)
start("mosquitto_sub", ...)      a process that is ended with `ended`
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from mqtt_broker.testing import ThreadedBroker
from tests import forked

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 120.0
FLEETMQ: Final = (
    sys.executable,
    "-c",
    "import sys; from mqtt_broker.cli.main import main; sys.exit(main())",
)
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

Outcome = tuple[int, bytes, bytes]


def find(name: str) -> str | None:
    return shutil.which(name, path=_PATH)


def start(
    command: str, *argv: str, broker: ThreadedBroker, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """`fleetmq pub`, `mosquitto_sub`, ...: with the address of the broker in front."""
    name, _, subcommand = command.partition(" ")
    program = [*FLEETMQ, subcommand] if name == "fleetmq" else [find(name) or name]
    return forked.Popen(
        [*program, "-h", broker.host, "-p", str(broker.port), *argv],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes], given: bytes | None = None) -> Outcome:
    with process:
        try:
            out, err = process.communicate(given, PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, out, err


def run(command: str, *argv: str, broker: ThreadedBroker, given: bytes = b"") -> Outcome:
    return ended(start(command, *argv, broker=broker), given)

"""What tests of `fleetmq stream` share: the command run here, on files and on a server alike."""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

import pytest

from mqtt_broker.cli.main import main

TOKEN: Final = "cli-token-4711"
# A shell's background jobs ignore SIGINT, and so would what a test starts there.
PROGRAM: Final = [
    sys.executable,
    "-c",
    (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from mqtt_broker.cli.main import main; sys.exit(main())"
    ),
    "stream",
]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> Outcome:
        self._capsys.readouterr()
        try:
            code = main(["stream", *argv])
        except SystemExit as left:
            code = int(left.code or 0)
        return Outcome(code, *self._capsys.readouterr())

    def fails(self, code: int, says: str, *argv: str) -> Outcome:
        """One line that says it, and nothing else."""
        found = self(*argv)
        assert (found.code, found.out) == (code, ""), found
        assert says in found.err, found.err
        assert found.err.count("\n") == 1 and found.err.startswith("fleetmq stream"), found.err
        return found

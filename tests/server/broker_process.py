"""The broker as its users run it: a process of its own, from this working tree.

Most are forked from a process that has imported all they need (`tests/forked.py`).

with Process("--port", "0") as broker:
    client = broker.client("c")
outcome = refused("--config", "missing.toml")     # (exit code, stdout, stderr)
"""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pytest

from mqtt_broker.codec.constants import V5
from tests import forked
from tests.core.peers import connect
from tests.server.running import Raw

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 120.0
_MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
_LIMITED: Final = (
    "import resource, sys; files = int(sys.argv.pop(1)); "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)); "
    "from mqtt_broker.cli.main import main; sys.exit(main())"
)
_ADDRESS: Final = re.compile(
    r"unix:(?P<path>[^,]+?)(?=,| \()|(?P<host>\[[^]]+\]|[\w.]+):(?P<port>\d+)"
)


def document(name: str) -> str:
    """The text of a document, where the tests stand beside it."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"no {name} beside these tests")
    return path.read_text()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would configure the broker; it keeps nothing unless a test asks."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FLEETMQ_")}
    return {**kept, "FLEETMQ_DURABILITY": "memory", "FLEETMQ_HTTP": "off", **(extra or {})}


def refused(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """A broker that ends by itself: (exit code, stdout, stderr)."""
    done = forked.run(
        [sys.executable, "-c", _MAIN, "broker", *argv],
        cwd=ROOT,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def http_address(process: Process) -> str:
    """Where a broker serves HTTP, from the second line that it prints."""
    assert process.process.stdout is not None
    [url] = re.findall(r"http://\S+", process.process.stdout.readline())
    return str(url)


class Process:
    """`with Process(...)` serves until the block ends; `files` limits its descriptors, and
    `before` is what its Python does first: a new interpreter, which imports when it has to.
    """

    def __init__(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        files: int = 0,
        before: str = "",
    ) -> None:
        program = [before + _LIMITED, str(files)] if files else [before + _MAIN]
        self._command = [sys.executable, "-c", *program, "broker", *argv]
        self._is_new = bool(files or before)
        self._environment = environment(env)
        self.lines: queue.Queue[str] = queue.Queue()  # of stderr
        self.addresses: list[Any] = []  # what `socket.connect` takes

    def __enter__(self) -> Self:
        start: Any = subprocess.Popen if self._is_new else forked.Popen
        self.process: subprocess.Popen[str] = start(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,))
        self._reader.start()
        self.greeting = self.process.stdout.readline()
        self.addresses = [
            found["path"] or (found["host"].strip("[]"), int(found["port"]))
            for found in _ADDRESS.finditer(self.greeting)
        ]
        if not self.addresses:
            self.__exit__(None, None, None)
            raise AssertionError("it did not start:\n" + "".join(self.lines.queue))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.kill()
            self._reader.join()

    def _read(self, errors: IO[str]) -> None:
        for line in errors:
            self.lines.put(line)

    def wait_for(self, words: str) -> str:
        """The next line of the log that holds `words`."""
        while words not in (line := self.lines.get(timeout=PATIENCE_S)):
            pass
        return line

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, in order, and wait for that."""
        self.process.send_signal(number)
        assert self.process.wait(PATIENCE_S) == 0

    def raw(self, address: Any = None) -> Raw:
        to = self.addresses[0] if address is None else address
        family = socket.AF_UNIX
        if not isinstance(to, str):
            family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
        sock = socket.socket(family)
        try:
            sock.connect(to)
        except OSError:
            sock.close()
            raise
        return Raw(sock)

    def client(self, client_id: str, version: int = V5, *, address: Any = None) -> Raw:
        raw = self.raw(address)
        raw.send(connect(client_id, version))
        answer = raw.packet()
        assert answer[0] == 0x20 and answer[3] == 0, answer.hex()
        return raw

"""The broker as a process that is killed and comes back, on one port and one data directory.

    with Lives(directory) as broker:
        broker.start()
        broker.kill()
        broker.start()

What it says on stderr is appended to one file, over all lives. It never outlives us.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tests import forked
from tests.server.broker_process import ROOT, environment

PATIENCE_S: Final = 120.0
_MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
_SABOTAGED: Final = f"from tests.sabotage import put_in; put_in({{!r}}); {_MAIN}"
_COMPLAINT: Final = re.compile(r" (ERROR|CRITICAL) |^Traceback")
_STORE_FAILS: Final = re.compile(
    r" ERROR (store: |unhealthy: the oldest unanswered)|; events of clients are lost until"
)
_GREETING: Final = re.compile(rb"listens on .*\n")
# Below what the system hands out by itself: a client that dials a port of that range while
# nobody listens there may be connected to itself, and then holds the broker's port.
_PORTS: Final = range(20_000, 32_000)


class Ended(Exception):
    """The broker ended by itself."""


def free_port() -> int:
    seed = int.from_bytes(os.urandom(4), "big")
    for step in range(1000):
        port = _PORTS[(seed + 7 * step) % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


class Lives:
    """One broker after the other; `argv` is what follows `fleetmq broker`."""

    def __init__(
        self,
        directory: Path,
        *argv: str,
        durability: str = "commit",
        database_url: str = "",
        command: str = "",
        env: Mapping[str, str] | None = None,
        sabotage: str = "",
    ) -> None:
        self.data = directory / "data"
        self.log_path = directory / "broker.log"
        self.port = free_port()
        main = _SABOTAGED.format(sabotage) if sabotage else _MAIN
        program = [command] if command else [sys.executable, "-c", main]
        self.command = [*program, "broker", "--port", str(self.port), "--durability", durability]
        self.command += ["--data-dir", str(self.data)]
        if database_url:
            self.command += ["--database-url", database_url]
        self.command += argv
        self._environment = environment(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self.is_ready = False
        self.started_at = 0.0
        self.ready_at: list[float] = []  # when each life listened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker is not running"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    # A life.

    def spawn(self, *extra: str) -> None:
        """Begin a life, without waiting until it listens."""
        assert self._process is None, "it is running"
        self.is_ready = False
        self._said = b""
        with self.log_path.open("ab") as log:
            self.started_at = time.monotonic()
            self._process = forked.Popen(
                [*self.command, *extra],
                is_tied=True,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def start(self, *extra: str) -> None:
        self.spawn(*extra)
        if not self.wait_ready(PATIENCE_S):
            raise Ended(f"the broker does not listen after {PATIENCE_S} s")

    def wait_ready(self, seconds: float) -> bool:
        """Until it listens; False when that takes longer, `Ended` when it ends instead."""
        stdout = self._stdout
        deadline = time.monotonic() + seconds
        while not self.is_ready:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([stdout], [], [], left)[0]:
                return False
            data = os.read(stdout.fileno(), 4096)
            if not data:
                code = self._over()
                raise Ended(f"the broker ended with exit code {code}: {self.last_words()}")
            self._said += data
            self.is_ready = _GREETING.search(self._said) is not None
            if self.is_ready:
                self.ready_at.append(time.monotonic())
        return True

    @property
    def _stdout(self) -> IO[bytes]:
        stdout = self.process.stdout
        assert stdout is not None
        return stdout

    def kill(self) -> None:
        """SIGKILL. Nothing to do where nothing runs."""
        if self._process is not None:
            self._process.kill()
            self._over()

    def pause(self) -> None:
        """SIGSTOP: it does nothing until `go_on`, and does not notice."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, seconds: float = PATIENCE_S) -> int:
        """SIGTERM, and its exit code; TimeoutExpired when it does not end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(seconds)
        return self._over()

    def reap(self, seconds: float) -> int:
        """The exit code of a broker that ends by itself."""
        self.process.wait(seconds)
        return self._over()

    def _over(self) -> int:
        process = self.process
        code = process.wait()
        self._stdout.close()
        self._process = None
        self.is_ready = False
        return code

    # What it said.

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def last_words(self) -> str:
        lines = self.log().splitlines()
        return " | ".join(lines[-3:]) or "(nothing in its log)"

    def complaints(self, *, store_may_fail: bool = False) -> list[str]:
        """What no broker may log, whatever is done to it from outside."""
        lines = self.log().splitlines()
        return [
            line
            for line in lines
            if _COMPLAINT.search(line) and not (store_may_fail and _STORE_FAILS.search(line))
        ]

"""The processes of a torture, as its harness sees them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from tests.cluster.proxy import DOWN, Damage, Proxy
from tests.fault.tether import tied
from tests.server.broker_process import ROOT

PATIENCE_S: Final = 300.0
_COMMIT: Final = b"COMMIT\0"  # in the answer of PostgreSQL to COMMIT

OnWords = Callable[["Member", str, list[Any]], None]


class NeverEnds(Exception):
    """Something that must come has not come, and the patience is over."""


class LostCommit(Damage):
    """Passes bytes on until it is armed and an answer to COMMIT comes; then nothing any more."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._is_hit = False

    def take(self, data: bytes) -> list[tuple[float, bytes]]:
        if self._member.is_armed and _COMMIT in data:
            self._member.is_armed = False
            self._is_hit = True
        return [] if self._is_hit else [(0.0, data)]


class Member:
    """One number, the process that is to host it, and the proxy through which that one talks."""

    def __init__(
        self,
        number: int,
        target: Path,
        log: Path,
        on_words: OnWords,
        on_gone: Callable[[Member], None],
    ) -> None:
        self.number = number
        self.proxy = Proxy(target)
        self.is_armed = False
        self.is_troubled = False  # a fault is under way
        self.serves: dict[int, str] = {}  # by number, its epoch
        self._log: IO[bytes] = log.open("ab")
        self._on_words = on_words
        self._on_gone = on_gone
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_dead(self) -> bool:
        """Tell whether nobody can connect to it."""
        return not self.is_connected

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def open(self) -> None:
        self.proxy.__enter__()
        self.proxy.damage(DOWN, lambda: LostCommit(self))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.proxy.__exit__(None, None, None)
        self._log.close()

    # The process.

    def start(self, url: str, port: int, without: str, world: str) -> None:
        assert self._process is None
        command = [sys.executable, "-m", "tests.cluster.torture.program", str(self.number)]
        command += [url.format(port=self.proxy.port), str(port), without, world]
        self._process = subprocess.Popen(
            tied(command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code."""
        await until(lambda: self.exit_code is not None, f"the end of process {self.number}")
        await until(lambda: not self.is_connected, f"the last words of process {self.number}")
        code = self.exit_code
        assert code is not None
        self._process = None
        self.serves.clear()
        return code

    # What is said.

    def tell(self, *words: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(words).encode() + b"\n")

    async def listen(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take what the process says until it ends."""
        if self._process is None or self._process.pid != pid:
            return  # it has been killed, and another one started
        self._writer = writer
        try:
            while line := await reader.readline():
                self._take(json.loads(line))
        except (ConnectionError, json.JSONDecodeError):
            pass  # it was killed
        finally:
            self._writer = None
            self.serves.clear()
            self._on_gone(self)

    def _take(self, words: list[Any]) -> None:
        kind, *rest = words
        if kind == "serves":
            self.serves[rest[0]] = rest[1]
        elif kind == "lost":
            self.serves.pop(rest[0], None)
        self._on_words(self, kind, rest)


async def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not condition():
        if loop.time() > deadline:
            raise NeverEnds(f"{what} has not come within {patience_s:.0f} s")
        await asyncio.sleep(0.01)

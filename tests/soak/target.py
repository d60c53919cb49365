"""The broker of a soak, in a process of its own, and what it says of itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
_MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_METRIC: Final = re.compile(r"^fleetmq_(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


class MemoryGroup:
    """A cgroup v2 with a limit, where one can be made; else nothing, and the peak is read."""

    def __init__(self, bytes_max: int) -> None:
        self.path: Path | None = None
        controllers = _CGROUPS / "cgroup.subtree_control"
        if controllers.exists() and "memory" in controllers.read_text().split():
            path = _CGROUPS / f"fleetmq-soak-{time.time_ns()}"
            try:
                path.mkdir()
                (path / "memory.max").write_text(str(bytes_max))
                self.path = path
            except OSError:
                path.rmdir() if path.exists() else None

    def add(self, pid: int) -> None:
        """Move a process into the group."""
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        if self.path is not None:
            self.path.rmdir()


class Target:
    """A broker with these settings: `with Target({...}) as target`."""

    def __init__(self, settings: dict[str, Any], *, command: str = "", bytes_max: int = 0) -> None:
        self._settings = settings
        self._command = shlex.split(command) or [sys.executable, "-c", _MAIN]
        self._group = MemoryGroup(bytes_max) if bytes_max else None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="fleetmq-soak-")
        folder = Path(self._folder.name)
        config = folder / "fleetmq.toml"
        keys = {"data_dir": f"{folder}/data", "port": 0, "http": "127.0.0.1:0", **self._settings}
        config.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in keys.items()))
        self.log_path = folder / "log"
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "broker", "--config", str(config)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            if self._group is not None:
                self._group.add(self._process.pid)
            assert self._process.stdout is not None
            greeting = [self._process.stdout.readline() for _ in range(2)]
            port = re.search(r"127\.0\.0\.1:(\d+)", greeting[0])
            http = re.search(r"http://\S+", greeting[1])
            if port is None or http is None:
                raise RuntimeError(f"the broker did not start: {self.log_path.read_text()}")
            self.port, self._http = int(port[1]), http[0].rstrip("/")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()
        if self._group is not None:
            self._group.remove()
        self._folder.cleanup()

    @property
    def is_limited(self) -> bool:
        """Tell whether the system ends it when it takes more than it may."""
        return self._group is not None and self._group.path is not None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def memory_bytes(self, name: str) -> int:
        """Return VmRSS, or VmHWM: the most that it ever was."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        return 0 if found is None else int(found[1]) << 10

    def metrics(self) -> dict[str, float]:
        """Return its metrics, by name and labels."""
        with urllib.request.urlopen(f"{self._http}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'

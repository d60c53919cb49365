"""A standalone Spark cluster on loopback, from the pyspark that is installed: a master and two
workers of one core each. Executors are processes of their own, so they can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

PATIENCE_S: Final = 60.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_STARTED: Final = re.compile(r"spark://127\.0\.0\.1:\d+")
_JOINED: Final = "Successfully registered with master"


class Cluster:
    def __init__(self, directory: Path, *, workers: int = 2, memory_mb: int = 1_024) -> None:
        self._directory = directory
        self._workers = workers
        self._memory_mb = memory_mb
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        log = self._launch("master", _MASTER, "--host", "127.0.0.1", "--port", "0",
                           "--webui-port", "0")  # fmt: skip
        self.url = self._wait_for(log, _STARTED)
        for number in range(self._workers):
            log = self._launch(
                f"worker{number}", _WORKER, "--host", "127.0.0.1", "--port", "0",
                "--webui-port", "0", "--cores", "1", "--memory", f"{self._memory_mb}M",
                "--work-dir", str(self._directory / f"work{number}"), self.url,
            )  # fmt: skip
            self._wait_for(log, re.compile(_JOINED))

    def _launch(self, name: str, kind: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        path = self._directory / f"{name}.log"
        with path.open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), kind, *arguments],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={
                        **os.environ,
                        "SPARK_HOME": str(home),
                        "SPARK_LOCAL_IP": "127.0.0.1",
                        "SPARK_DAEMON_MEMORY": "256m",
                        "PYSPARK_PYTHON": sys.executable,
                    },
                )
            )
        return path

    def _wait_for(self, log: Path, what: re.Pattern[str]) -> str:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if found := what.search(log.read_text(errors="replace")):
                return found[0]
            if self._processes[-1].poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"{log.name}: {log.read_text(errors='replace')[-2_000:]}")

    def executors(self) -> list[int]:
        """The processes of ours that execute."""
        ours = {process.pid for process in self._processes}
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                number = int(path.name)
                if _EXECUTOR in (path / "cmdline").read_bytes() and os.getsid(number) in ours:
                    found.append(number)
        return sorted(found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []

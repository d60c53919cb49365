"""Measure what installing takes, from a clean clone: seconds, CPU, disk and memory.

    python tests/bench/install.py                    all of them, some ten minutes
    python tests/bench/install.py --only run,test

`run` is `make run` until the broker listens, `test` what `make test` installs before the first
test, `wheels` is `make wheels`, and `wheel` a clean environment with the wheel alone, until its
broker listens. Each begins with a clone of its own, of what is committed, and without pip's cache:
the network is part of it. The goal for `run` is 30 s and 120 MB; the script fails if it is missed.
Disk is what `.venv` or the clean environment takes. Memory is the largest sum over all processes
of a step at one moment, of what they have in memory, sampled each 50 ms.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MB: Final = 1_000_000
RUN_S: Final = 30.0
RUN_MB: Final = 120.0
SAMPLE_S: Final = 0.05
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
BROKER: Final = "broker --port 0 --http off --data-dir data".split()


class Step:
    """What one step took, while `with` lasts."""

    def __init__(self) -> None:
        self.seconds = self.cpu_s = self.peak_mb = 0.0
        self._session = 0
        self._ended = threading.Event()

    def until(self, command: list[str], folder: Path, words: str | None) -> None:
        """Run a command until it prints `words`, then ask it to end; None: until it ends."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        environment = {**os.environ, "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment.pop("MAKEFLAGS", None)
        with subprocess.Popen(
            command, cwd=folder, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as running:  # fmt: skip
            self._session = running.pid
            self._ended.clear()
            sampler = threading.Thread(target=self._sample)
            sampler.start()
            said = []
            assert running.stdout is not None
            for line in running.stdout:
                said.append(line)
                print("   ", line, end="", file=sys.stderr)
                if words is not None and words in line:
                    break
            self.seconds += time.monotonic() - began
            self._ended.set()
            sampler.join()
            if words is not None and running.poll() is None:
                os.killpg(running.pid, signal.SIGTERM)
        failed = running.returncode != 0 if words is None else not said or words not in said[-1]
        if failed:
            raise SystemExit(f"install: {' '.join(command)} failed:\n{''.join(said[-20:])}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak_mb = max(self.peak_mb, session_bytes(self._session) / MB)


def session_bytes(session: int) -> int:
    """Return what the processes of a session have in memory."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session:
            found += int(fields[21]) * PAGE
    return found


def disk_mb(folder: Path) -> float:
    done = subprocess.run(["du", "-sk", str(folder)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) * 1024 / MB


def cloned(folder: Path) -> Path:
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    return clone


def run(folder: Path) -> tuple[Step, float]:
    clone, step = cloned(folder), Step()
    step.until(["make", "run", "PORT=0", "ARGS=--http off"], clone, "listens on")
    return step, disk_mb(clone / ".venv")


def test(folder: Path) -> tuple[Step, float]:
    clone, step = cloned(folder), Step()
    step.until(["make", "install", ".venv/.dev"], clone, None)
    return step, disk_mb(clone / ".venv")


def wheels(folder: Path) -> tuple[Step, float]:
    clone, step = cloned(folder), Step()
    step.until(["make", "wheels"], clone, None)
    shutil.copytree(clone / "dist", folder.parent / "dist")
    return step, disk_mb(clone / ".venv")


def wheel(folder: Path) -> tuple[Step, float]:
    [archive] = (folder.parent / "dist").glob("*.whl")
    clean, step = folder / "clean", Step()
    step.until([sys.executable, "-m", "venv", str(clean)], folder, None)
    step.until([str(clean / "bin" / "pip"), "install", "-q", str(archive)], folder, None)
    step.until([str(clean / "bin" / "fleetmq"), *BROKER], folder, "listens on")
    return step, disk_mb(clean)


STEPS: Final[dict[str, Callable[[Path], tuple[Step, float]]]] = {
    "run": run,
    "test": test,
    "wheels": wheels,
    "wheel": wheel,
}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description="Measure what installs take.")
    parser.add_argument("--only", default=",".join(STEPS), help="of " + ", ".join(STEPS))
    names = parser.parse_args().only.split(",")
    if unknown := set(names) - set(STEPS):
        parser.error(f"--only: there is no {min(unknown)}")
    if "wheel" in names and "wheels" not in names:
        parser.error("--only: wheel needs wheels, which builds it")
    missed = False
    print("| step | seconds | CPU seconds | MB of disk | MB of memory |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="fleetmq-install-") as folder:
        for name in names:
            place = Path(folder, name)
            place.mkdir()
            step, disk = STEPS[name](place)
            print(
                f"| {name} | {step.seconds:.0f} | {step.cpu_s:.0f} | {disk:.0f}"
                f" | {step.peak_mb:.0f} |",
                flush=True,
            )
            missed |= name == "run" and (step.seconds > RUN_S or disk > RUN_MB)
            shutil.rmtree(place)
    if missed:
        print(f"install: make run missed its goal, {RUN_S:.0f} s and {RUN_MB:.0f} MB")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

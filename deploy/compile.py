"""Build FleetMQ with its hot packages compiled to C, and install that into this Python.

    python deploy/compile.py            compiled where a C compiler is found, else as it is
    FLEETMQ_COMPILE=0 python ...        as it is

The packages that do the work are typed so that mypyc can compile them: a message then costs a
third of the interpreted time. The build happens in a copy, `build/product`: the working tree
stays plain Python, which is what `python -m pytest` in it imports, and nothing there can be
older than its source. It needs setuptools and mypy, which the `dev` extra brings.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "build" / "product"
PACKAGES = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")
# Whole folders, without those below them; and single modules of folders that stay interpreted.
COMPILED = (
    "qos",
    *(f"sessions/{name}" for name in (".", "messages", "journal")),
    "mqtt_broker/codec",
    "mqtt_broker/topics",
    *(f"mqtt_broker/core/{name}" for name in ". limits runtime routing clients inbound".split()),
)
COMPILED_TOO = (
    "mqtt_broker/server/process/turn.py",
    *(
        f"mqtt_broker/server/net/{name}.py"
        for name in "poller context link layered_link tls websocket".split()
    ),
    *(f"mqtt_broker/streams/write/{name}.py" for name in "topic_writer writer".split()),
    *(f"mqtt_broker/streams/format/{name}.py" for name in "batch_builder partitioning".split()),
)
# A class that inherits from a class that is not ours stays interpreted (compiled, a dict of our
# own breaks the collector), and so do interfaces and strategies, since other people's classes
# inherit from them.
# Rows are named tuples, which the database's library has to recognise.
INTERPRETED = (
    "mqtt_broker/codec/properties.py",
    "mqtt_broker/topics/shared.py",
    "sessions/journal/participant.py",
    "sessions/journal/rows.py",
    "sessions/journal/snapshot.py",
    "sessions/journal/value_ranges.py",
)

SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(ext_modules=mypycify(["--strict", "--explicit-package-bases", *{modules!r}], opt_level="3"))
"""


def modules() -> list[str]:
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in COMPILED
        for path in sorted((ROOT / folder).glob("*.py"))
        if path.name != "__init__.py"
    ]
    return [name for name in (*found, *COMPILED_TOO) if name not in INTERPRETED]


def lay_out(*, compiled: bool) -> None:
    """A clean copy of the product's sources, with a setup.py when they are to be compiled."""
    shutil.rmtree(PRODUCT, ignore_errors=True)
    PRODUCT.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, PRODUCT)
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        shutil.copytree(ROOT / package, PRODUCT / package, ignore=ignore)
    if compiled:
        (PRODUCT / "setup.py").write_text(SETUP.format(modules=modules()))


def install() -> bool:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--force-reinstall", str(PRODUCT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        (ROOT / "build" / "product.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0


def why_not() -> str:
    """Return why this machine cannot compile, or an empty text."""
    if os.environ.get("FLEETMQ_COMPILE") == "0":
        return "FLEETMQ_COMPILE=0"
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "there is no C compiler"
    if not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are not installed"
    return ""


def main() -> int:
    reason = why_not()
    if not reason:
        print("setup: compiling the hot packages, about half a minute", flush=True)
        lay_out(compiled=True)
        if install():
            return 0
        reason = "compiling failed, see build/product.log"
    print(f"setup: FleetMQ runs interpreted, which is slower: {reason}", flush=True)
    lay_out(compiled=False)
    if install():
        return 0
    print("setup: installing FleetMQ failed, see build/product.log", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Build FleetMQ with its hot packages compiled to C, and install that into this Python.

    python deploy/compile.py            compiled where a C compiler is found, else as it is
    python deploy/compile.py --require  compiled, or fail and say why
    python deploy/compile.py --wheel    write a compiled wheel into dist/, or fail
    FLEETMQ_COMPILE=0 python ...        as it is

The packages that do the work are typed so that mypyc can compile them: a message then costs a
third of the interpreted time. The build happens in a copy, `build/product`: the working tree
stays plain Python, which is what `python -m pytest` in it imports, and nothing there can be
older than its source. It needs setuptools and mypy, which the `build` extra brings.

What was compiled last is kept as a wheel in `build/compiled`: the same sources are compiled once.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "build" / "product"
KEPT = ROOT / "build" / "compiled"
LOG = ROOT / "build" / "product.log"
DIST = ROOT / "dist"
SAY_EVERY_S = 10.0
PACKAGES = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")
# Whole folders, without those below them; and single modules of folders that stay interpreted.
COMPILED = (
    "qos",
    *(f"sessions/{name}" for name in (".", "messages", "journal")),
    "mqtt_broker/codec",
    "mqtt_broker/topics",
    "mqtt_broker/recorder",
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
    "mqtt_broker/recorder/figures.py",
    "mqtt_broker/topics/shared.py",
    "sessions/journal/participant.py",
    "sessions/journal/rows.py",
    "sessions/journal/snapshot.py",
    "sessions/journal/value_ranges.py",
)

SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(ext_modules=mypycify(["--config-file", "mypy.ini", *{modules!r}], opt_level="3"))
"""
# Types are checked by `make check`. Here mypy looks at nothing but our own modules, which takes it
# a fifth of the time and a third of the memory, and needs none of the libraries.
MYPY = """\
[mypy]
explicit_package_bases = true
namespace_packages = true
follow_imports = silent
disable_error_code = misc,unused-ignore
[mypy-{libraries}]
follow_imports = skip
ignore_missing_imports = true
"""
LIBRARIES = (
    "aiohttp alembic argon2 cbor2 cryptography google jsonschema_rs jwt locust opentelemetry paho "
    "pandas prometheus_client psycopg pyarrow pyspark sqlalchemy uvloop websockets"
).split()


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
        libraries = ",".join(f"{name},{name}.*" for name in LIBRARIES)
        (PRODUCT / "mypy.ini").write_text(MYPY.format(libraries=libraries))


def pip(*arguments: str) -> bool:
    """Run pip; what it says when it fails is kept in build/product.log."""
    command = [sys.executable, "-m", "pip", *arguments, "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--quiet"]
    began = time.monotonic()
    with LOG.open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while True:
            try:
                failed = running.wait(SAY_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  {time.monotonic() - began:.0f} s")
    say(f"  {'failed' if failed else 'done'} in {time.monotonic() - began:.0f} s")
    return failed == 0


def compiled_wheel() -> pathlib.Path | None:
    """Compile what is laid out, unless the same was compiled last; return the wheel."""
    kept = KEPT / fingerprint()
    if not any(kept.glob("*.whl")):
        shutil.rmtree(KEPT, ignore_errors=True)
        say("the packages that do the work, a minute or two")
        made = KEPT / "made"
        if not pip("wheel", "--wheel-dir", str(made), str(PRODUCT)):
            return None
        made.rename(kept)  # whole, or not there
    return next(kept.glob("*.whl"))


def fingerprint() -> str:
    """Return a text that differs for other sources, another Python and another compiler."""
    found = hashlib.sha256()
    for name in ("mypy", "setuptools"):
        found.update(importlib.metadata.version(name).encode())
    with_what = [sys.version, sysconfig.get_platform()]
    with_what += [os.environ.get(name, "") for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]
    found.update("\n".join(with_what).encode())
    for path in sorted(PRODUCT.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found.update(f"\n{path.relative_to(PRODUCT)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def install(wheel: pathlib.Path) -> bool:
    return pip("install", "--force-reinstall", str(wheel))


def write_wheel(wheel: pathlib.Path) -> bool:
    DIST.mkdir(exist_ok=True)
    shutil.copy(wheel, DIST)
    return True


def why_not() -> str:
    """Return why this machine cannot compile, or an empty text."""
    if os.environ.get("FLEETMQ_COMPILE") == "0":
        return "FLEETMQ_COMPILE=0"
    if importlib.util.find_spec("mypyc") is None:
        return "mypy is not installed: pip install '.[build]'"
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "there is no C compiler: install gcc, or say in CC which to use"
    if not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are missing: install python3-dev, or what your system calls it"
    return ""


def say(text: str) -> None:
    print(f"compile: {text}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description="Compile FleetMQ.")
    parser.add_argument("--require", action="store_true", help="fail where it cannot be compiled")
    parser.add_argument("--wheel", action="store_true", help="write a wheel; install nothing")
    args = parser.parse_args(arguments)
    finish = write_wheel if args.wheel else install
    reason = why_not()
    if not reason:
        lay_out(compiled=True)
        wheel = compiled_wheel()
        if wheel is not None and finish(wheel):
            return 0
        reason = "compiling failed, see build/product.log"
    if args.require or args.wheel:
        say(f"FleetMQ is not compiled: {reason}")
        return 1
    say(f"FleetMQ runs interpreted, which is slower: {reason}")
    lay_out(compiled=False)
    if install(PRODUCT):
        return 0
    say("installing FleetMQ failed, see build/product.log")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

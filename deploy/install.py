"""Install what one task needs into this Python, at the versions of deploy/constraints.txt.

    python deploy/install.py broker        the broker's own requirements
    python deploy/install.py demo          those, and the extras that the demo needs
    python deploy/install.py NAME ...      any extras of pyproject.toml
    python deploy/install.py --tree        the product itself: the working tree, as it is
    python deploy/install.py --range FILE  the working tree and its test tools, at FILE's versions
    python deploy/install.py --lock        write what is installed to deploy/constraints.txt

The product itself stands beside its requirements: as the working tree, which runs interpreted, or
compiled (deploy/compile.py). Every step says what it does and how long it has taken, since a slow
network and a hung one look alike otherwise.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"
LOG = ROOT / "build" / "install.log"
PACKAGES = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")
SAY_EVERY_S = 5.0
# The product with the extras that its tests of both ends of the ranges need, and their tools.
_RANGED = (
    ".[postgres,schemas]",
    *"hypothesis paho-mqtt pgserver pytest pytest-xdist pyyaml".split(),
    "uvloop; sys_platform != 'win32'",
)
_UNLOCKED = ("fleetmq", "pip")
_HEAD = """\
# The versions that CI, images and the Makefile install: pip install -c deploy/constraints.txt ...
# Written by `make lock`, from an environment in which every test passes.
"""
_OWN_EXTRAS = re.compile(r"fleetmq\[(.*)\]")
_STEP = re.compile(r"\s*(Collecting|Downloading|Installing collected packages|Building)\s?(.*)")


def requirements(extras: Iterable[str]) -> set[str]:
    """Return the broker's own requirements and those of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set(project["dependencies"])
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            own = _OWN_EXTRAS.fullmatch(text)
            found |= requirements(own[1].split(",")) if own else {text}
    return found


def extras_of(tasks: Iterable[str]) -> list[str]:
    """Return the extras of some tasks. The demo leaves Spark out where there is no Java for it."""
    found: list[str] = []
    for task in tasks:
        if task == "demo":
            found.append("sim")
            if shutil.which("java") is not None:
                found.append("spark")
        elif task != "broker":  # which has none
            found.append(task)
    return found


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def pip_install(arguments: list[str], what: str) -> None:
    """Run pip, and say every few seconds what it is at; on failure say why, and end."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", *arguments]
    began = said = time.monotonic()
    say(what)
    LOG.parent.mkdir(exist_ok=True)
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
        ) as pip,
    ):
        assert pip.stdout is not None
        errors: list[str] = []
        for line in pip.stdout:
            log.write(line)
            if line.startswith("ERROR:"):
                errors.append(line.strip())
            step = _STEP.match(line)
            now = time.monotonic()
            if step is not None and now - said >= SAY_EVERY_S:
                said = now
                say(f"  {now - began:.0f} s: {step[1].lower()} {step[2][:60]}".rstrip())
    if pip.returncode:
        for line in errors:
            print(line, file=sys.stderr)
        sys.exit(f"setup: pip failed; all that it said is in {LOG.relative_to(ROOT)}")
    say(f"  done in {time.monotonic() - began:.0f} s")


def lock() -> None:
    """Write every package of this Python, but for pip and FleetMQ, to the constraints."""
    found = {
        re.sub(r"[-_.]+", "-", distribution.name).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    lines = [f"{name}=={found[name]}\n" for name in sorted(found) if name not in _UNLOCKED]
    CONSTRAINTS.write_text(_HEAD + "".join(lines))
    say(f"{len(lines)} versions in {CONSTRAINTS.relative_to(ROOT)}")


def remove_copies(folder: pathlib.Path) -> None:
    """Remove what pip left of a copy that was installed before, and which hides the working tree.

    pip does not know the caches that pytest wrote beside the modules, and keeps their folders.
    """
    for name in PACKAGES:
        shutil.rmtree(folder / name, ignore_errors=True)


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit(__doc__)
    if arguments == ["--tree"]:
        pip_install(["--no-deps", "--editable", "."], "installing FleetMQ: the working tree")
        remove_copies(pathlib.Path(sysconfig.get_path("purelib")))
        return
    if arguments[0] == "--range" and len(arguments) == 2:
        what = f"installing the versions of {arguments[1]}, the newest of what it does not name"
        pip_install(["-c", arguments[1], "--editable", *_RANGED], what)
        return
    if arguments == ["--lock"]:
        lock()
        return
    extras = extras_of(arguments)
    wanted = sorted(requirements(extras))
    names = " and ".join(["the broker's requirements", *extras])
    pip_install(["-c", str(CONSTRAINTS), *wanted], f"installing {names}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""What `make wheels` wrote to dist/, installed into a clean environment, as others install it.

The wheel is installed by the Python that built it, the source archive by each Python that is found
here and that the project supports. Both get the broker's requirements and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Self

import pytest

from mqtt_broker.version import __version__
from tests.docs.blocks import ROOT
from tests.install.pythons import version_of, versions

DIST: Final = ROOT / "dist"
CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"
PATIENCE_S: Final = 60.0
INSTALLING_S: Final = 300.0
PACKAGES: Final = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")
DATA: Final = (
    *(f"{package}/py.typed" for package in PACKAGES),
    "iot_sim/report/report.html",
    "iot_sim/scenarios/idle.toml",
    "spark_ingest/log4j2.properties",
)
THIS: Final = version_of(sys.executable)

pytestmark = pytest.mark.slow


def built(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip(f"there is no {pattern} in dist/: run make wheels")
    assert len(found) == 1, "dist/ has one version"
    return found[0]


# What the archives hold.


def in_tree() -> set[str]:
    """The product's files as the working tree has them."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }


def test_the_wheel_holds_the_product_and_nothing_else() -> None:
    with zipfile.ZipFile(built("*.whl")) as wheel:
        names = set(wheel.namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    libraries = {name for name in names if name.endswith(".so")}
    assert names - metadata - libraries == in_tree()
    assert f"fleetmq-{__version__}.dist-info/licenses/LICENSE" in metadata
    compiled = {PurePosixPath(name).name.partition(".")[0] for name in libraries}
    assert {"decode", "publish", "router", "turn"} <= compiled


def test_the_source_archive_holds_what_compiling_needs() -> None:
    with tarfile.open(built("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if "/" in name}
    assert names >= in_tree() | {"pyproject.toml", "README.md", "LICENSE"}
    tops = {name.partition("/")[0] for name in names}
    assert tops <= {*PACKAGES, "PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "setup.cfg",
                    "fleetmq.egg-info"}  # fmt: skip
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


# What they do.


class Installed:
    """A virtual environment with one of the archives, and what it runs."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.python = folder / "bin" / "python"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("FLEETMQ_")}
        self.environment = {name: text for name, text in kept.items() if name != "PYTHONPATH"}

    def run(self, *words: str, seconds: float = PATIENCE_S) -> str:
        """Run a program of the environment, outside the working tree; return what it printed."""
        command = [str(self.folder / "bin" / words[0]), *words[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [str(self.folder / "bin" / words[0]), *words[1:]]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


class Broker:
    """`with Broker(installed) as broker` serves from the folder `data` until the block ends."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed

    def __enter__(self) -> Self:
        options = "broker --port 0 --http 127.0.0.1:0 --data-dir data".split()
        self.process = self._installed.start("fleetmq", *options)
        assert self.process.stdout is not None
        self.port = self._number(r"listens on 127\.0\.0\.1:(\d+)", self.process.stdout)
        self.http = self._number(r"HTTP at http://127\.0\.0\.1:(\d+)", self.process.stdout)
        return self

    def _number(self, pattern: str, lines: IO[str]) -> int:
        line = lines.readline()
        found = re.search(pattern, line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"it did not start: {line}{self.process.communicate()[0]}")
        return int(found[1])

    def __exit__(self, *_: object) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.kill()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


PARAMETERS: Final = [
    pytest.param(("*.whl", sys.executable), id=f"wheel-{THIS}"),
    *(pytest.param(("*.tar.gz", python), id=f"archive-{name}") for name, python in versions()),
]


@pytest.fixture(scope="module", params=PARAMETERS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    pattern, python = request.param
    archive = built(pattern)
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=PATIENCE_S)
    found = Installed(folder, "compiled" if pattern == "*.whl" else "interpreted")
    pip = "-m pip install --quiet --disable-pip-version-check -c".split()
    found.run("python", *pip, str(CONSTRAINTS), str(archive), seconds=INSTALLING_S)
    yield found
    shutil.rmtree(folder)  # ninety megabytes for each


def test_it_says_how_it_is_built(installed: Installed) -> None:
    assert installed.run("fleetmq", "--version") == f"fleetmq {__version__} ({installed.kind})\n"
    assert "No broken requirements" in installed.run("python", "-m", "pip", "check")


def test_it_brings_nothing_that_only_some_need(installed: Installed) -> None:
    listed = installed.run("python", "-m", "pip", "list", "--format=freeze").lower()
    names = {line.partition("==")[0] for line in listed.split()}
    optional = "cbor2 jsonschema-rs locust mypy paho-mqtt psycopg pyspark pytest uvloop".split()
    assert {"fleetmq", "aiohttp", "sqlalchemy"} <= names
    assert not names & set(optional)


def test_it_keeps_a_message_over_a_kill(installed: Installed) -> None:
    """`fleetmq pub` and `sub` talk to it; what was acknowledged survives `kill -9`."""
    session = "-i logger -c -q 1 -t plant/+/log".split()
    with Broker(installed) as broker:
        at = ["-p", str(broker.port)]
        metrics = f"http://127.0.0.1:{broker.http}/metrics"
        with urllib.request.urlopen(metrics, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        line = f'fleetmq_build_info{{build="{installed.kind}",version="{__version__}"}} 1.0'
        assert line in text
        installed.run("fleetmq", "sub", *at, *session, "-E")
        installed.run("fleetmq", "pub", *at, *"-t plant/7/log -q 1 -m start".split())
        assert broker.end(signal.SIGKILL) == -signal.SIGKILL
    with Broker(installed) as broker:
        at = ["-p", str(broker.port)]
        said = installed.run("fleetmq", "sub", *at, *session, "-v", "-C", "1", "-W", "20")
        assert said == "plant/7/log start\n"
        assert broker.end(signal.SIGTERM) == 0


def test_a_client_of_others_talks_to_it(installed: Installed) -> None:
    """paho, which is installed beside these tests and not beside the broker."""
    paho: Any = pytest.importorskip("paho.mqtt.client")
    publish: Any = pytest.importorskip("paho.mqtt.publish")
    with Broker(installed) as broker:
        publish.single("t", "x", qos=2, retain=True, port=broker.port, protocol=paho.MQTTv5)
        at = ["-p", str(broker.port)]
        assert installed.run("fleetmq", "sub", *at, "-t", "t", "-C", "1", "-W", "20") == "x\n"


def test_the_fixture_is_there_for_others_tests(installed: Installed) -> None:
    """Importing it needs no pytest; its plugin is found by the name of its entry point."""
    script = (
        "import importlib.metadata as m, mqtt_broker.testing as t\n"
        "assert [one.name for one in m.entry_points(group='pytest11')] == ['fleetmq']\n"
        "with t.ThreadedBroker() as broker: print(broker.port > 0)\n"
    )
    assert installed.run("python", "-W", "error", "-c", script) == "True\n"


def test_data_files_are_beside_the_code(installed: Installed) -> None:
    script = (
        "import importlib.resources as r, sys\n"
        "for name in sys.argv[1:]:\n"
        "    package, _, rest = name.partition('/')\n"
        "    assert r.files(package).joinpath(rest).is_file(), name\n"
    )
    installed.run("python", "-c", script, *DATA)

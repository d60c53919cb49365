"""The Python of README and docs runs as it stands.

The blocks of a document run in their order in one directory, since a later one may read what an
earlier one wrote. Those with Spark run in `tests/spark_ingest/test_documents.py`.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import ROOT, Block, blocks, of
from tests.house import packages
from tests.house.test_public_api import MODEL_MODULES, MODULES, PUBLIC
from tests.server.broker_process import Process, http_address

PATIENCE_S: Final = 60.0
SPARK: Final = ROOT / "docs" / "SPARK.md"
LANGUAGES: Final = {"console", "json", "python", "sh", "sql", "text", "toml", "yaml", "ini", "xml"}
COMMENTS: Final = {"", "not run", "ends", "file", "logged", "needs", "with", "terminal"}
# Examples connect to where a broker listens by default; here it listens elsewhere.
REDIRECT: Final = """\
import os as _os
import paho.mqtt.client as _paho
_connect = _paho.Client.connect
_paho.Client.connect = lambda self, host: _connect(self, host, int(_os.environ["BROKER_PORT"]))
"""


def _runnable() -> dict[Path, list[Block]]:
    found: dict[Path, list[Block]] = {}
    for block in of("python"):
        if block.key != "not run" and block.path != SPARK:
            found.setdefault(block.path, []).append(block)
    return found


def test_each_block_has_a_language_and_a_comment_that_is_known() -> None:
    wrong = [b.where for b in blocks() if b.language not in LANGUAGES or b.key not in COMMENTS]
    assert wrong == []


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.where)
def test_it_is_python(block: Block) -> None:
    ast.parse(block.text, block.where)


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.where)
def test_it_imports_the_public_api_alone(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            ours = [a.name for a in node.names if a.name.partition(".")[0] in packages.TOPS]
            assert set(ours) <= {*PUBLIC, *MODULES}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in packages.TOPS:
            assert node.module in {*PUBLIC, *MODULES, *MODEL_MODULES}
            if node.module in PUBLIC:
                assert {alias.name for alias in node.names} <= set(PUBLIC[node.module].split())


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PATH with `fleetmq` as this tree has it."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "fleetmq"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mqtt_broker.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker with a stream `telemetry`; where it listens, as environment variables."""
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "broker.toml"
    config.write_text('[[streams]]\nname = "telemetry"\nfilter = "fleet/#"\n')
    argv = ("--port", "0", "--http", "127.0.0.1:0", "--data-dir", str(folder / "data"))
    with Process(*argv, "--config", str(config), env={"FLEETMQ_DURABILITY": "commit"}) as process:
        [(_, port)] = process.addresses
        where = {"BROKER_PORT": str(port), "BROKER_URL": http_address(process)}
        _publish(port)
        yield where
        process.end()


def _publish(port: int) -> None:
    import paho.mqtt.publish as publish

    publish.single("fleet/7/telemetry", "21.5", qos=1, port=port, hostname="127.0.0.1")


@pytest.mark.parametrize("path", _runnable(), ids=lambda path: path.name)
def test_it_runs(
    path: Path, tmp_path: Path, programs: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment["PYTHONWARNINGS"] = "error"
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    tests: list[str] = []  # as users run theirs: together
    for block in _runnable()[path]:
        text = block.text
        if "broker" in block.value:
            where: dict[str, str] = request.getfixturevalue("broker")
            for named in ("http://broker:8080", "http://127.0.0.1:8080"):
                text = text.replace(named, where["BROKER_URL"])
            if "paho" in text:
                text = REDIRECT + text
            environment |= where
        script = tmp_path / f"block_{block.line}.py"
        script.write_text(text)
        if "\ndef test_" in text:
            tests.append(str(script))
            continue
        with subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            out = ""
            if "SIGTERM" in block.value:
                assert program.stdout is not None
                out = program.stdout.readline()
                assert out, block.where
                program.send_signal(signal.SIGTERM)
            try:
                rest, errors = program.communicate(timeout=PATIENCE_S)
            except BaseException:
                program.kill()
                raise
        is_ended = program.returncode == 0 or (
            block.key == "ends" and program.returncode == -signal.SIGTERM
        )
        assert is_ended, f"{block.where}:\n{out}{rest}{errors}"
    if tests:
        # Without the plugins of others, which take longer to import than the tests do.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        plugins = ("-p", "mqtt_broker.pytest_plugin", "-p", "no:cacheprovider")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *tests],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

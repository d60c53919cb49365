"""The commands without any extra: each that is missing is named in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.cli.commands import COMMANDS

EXTRAS: Final = (
    "cbor2 google.protobuf jsonschema_rs locust opentelemetry paho pandas psycopg pyarrow pyspark"
).split()
WITHOUT: Final = (
    f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
    "from mqtt_broker.cli.main import main; sys.exit(main())"
)
POSTGRES: Final = "postgresql+psycopg://127.0.0.1:1/x"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *words],
        cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "spark"])
def test_help_needs_no_extra(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: fleetmq ")


def test_completion_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, "completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--durability" in done.stdout and "--checkpoint" not in done.stdout


def test_scenarios_that_need_an_extra_name_it(tmp_path: Path) -> None:
    done = run(tmp_path, "sim", "list")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot run here: " in done.stdout and "pip install 'fleetmq[sim]'" in done.stdout
    assert "factory " in done.stdout and "limits ([limits]" in done.stdout


WRONG = {
    f"broker --check --database-url {POSTGRES}": (2, "fleetmq[postgres]"),
    "broker --check --config otel.toml": (2, "fleetmq[otel]"),
    "broker --check --config schemas.toml": (2, "fleetmq[schemas]"),
    f"ctl export x --database-url {POSTGRES}": (1, "fleetmq[postgres]"),
    f"passwd --database-url {POSTGRES} ann --delete": (1, "fleetmq[postgres]"),
    "spark list": (2, "fleetmq[spark]"),
    "spark run windows --log x --sink y": (2, "fleetmq[spark]"),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_missing_extra_is_named_in_one_line(tmp_path: Path, words: str) -> None:
    (tmp_path / "otel.toml").write_text('otel_endpoint = "http://127.0.0.1:4318"\n')
    (tmp_path / "schemas.toml").write_text('[[schemas]]\nfilter = "a"\nfile = "a.json"\n')
    (tmp_path / "a.json").write_text('{"type": "object"}')
    done = run(tmp_path, *words.split())
    code, extra = WRONG[words]
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert f"pip install '{extra}'" in done.stderr

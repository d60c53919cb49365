"""`fleetmq spark` where there is no Spark, and what it refuses before starting one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.streams.remote import remote_source
from spark_ingest.jobs import SUMMARIES
from spark_ingest.run import spark_session

ROOT = Path(__file__).parents[2]
# A finder that finds no such package, in a process of its own.
WITHOUT = """
import sys
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == {missing!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
if {missing!r}:
    sys.meta_path.insert(0, Nobody())
from mqtt_broker.cli.main import main
sys.exit(main())
"""


def fleetmq(
    *arguments: str, missing: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing), "spark", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_without_pyspark_one_line_says_so_and_the_rest_works() -> None:
    done = fleetmq("run", "windows", "--log", ".", "--sink", "console:", missing="pyspark")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fleetmq spark run windows: there is no Python package pyspark:"
        " pip install 'fleetmq[spark]'\n"
    )
    listed = fleetmq("list", missing="pyspark")
    assert listed.returncode == 0 and all(name in listed.stdout for name in SUMMARIES)
    assert fleetmq("--help", missing="pyspark").returncode == 0


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("pyarrow", ("spark", "list"), "spark"),
        ("pyarrow", ("spark", "--help"), "spark"),
        ("cbor2", ("spark", "list"), "spark"),
        ("cbor2", ("sim", "list"), "sim"),
    ],
)
def test_a_base_install_names_the_extra(
    package: str, arguments: tuple[str, ...], extra: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=package), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    if done.returncode:  # else the command does not need it for this
        assert done.returncode == 2
        assert done.stderr == (
            f"fleetmq {arguments[0]}: there is no Python package {package}:"
            f" pip install 'fleetmq[{extra}]'\n"
        )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in extras["optional-dependencies"]


def test_a_stream_of_another_name_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(spark_session, "start", lambda *_, **__: pytest.fail("a JVM starts"))
    monkeypatch.setattr(remote_source, "list_streams", lambda *_: ["telemetry", "alarms"])
    with pytest.raises(SystemExit) as ended:
        main(["spark", "run", "windows", "--log", str(tmp_path), "--sink", "console:",
              "--stream", "telemtry"])  # fmt: skip
    assert ended.value.code == 2
    assert "has no stream 'telemtry'; did you mean telemetry?" in capsys.readouterr().err


def test_without_java_one_line_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = fleetmq(
        "run", "windows", "--log", ".", "--sink", "console:",
        JAVA_HOME=str(tmp_path), PATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "fleetmq spark: Spark needs Java 17 or newer; there is no java (JAVA_HOME, PATH)\n"
    )


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody installs half a gigabyte of Spark to read next that there is no Java."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(spark_session, "java_version", lambda: 0)
    with pytest.raises(spark_session.NotThere) as missing:
        spark_session.check()
    assert "pip install 'fleetmq[spark]'; Spark needs Java 17 or newer" in str(missing.value)


def test_an_old_java_is_not_enough(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    done = fleetmq("run", "clock", "--log", ".", "--sink", "console:", JAVA_HOME=str(tmp_path))
    assert (done.returncode, "there is Java 8 " in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nosuch"], "'nosuch'"),
        (["run", "windows", "--sink", "console:"], "--log"),
        (["run", "windows", "--log", "/nosuch", "--sink", "console:"], "there is no directory"),
        (["run", "windows", "--log", ".", "--sink", "console:", "--size", "soon"], "--size"),
        (["run", "windows", "--log", ".", "--sink", "nonsense"], "'nonsense' is no URL"),
        (["run", "windows", "--log", ".", "--sink", "console:"], "--stream is required"),
        (["run", "windows", "--log", "http://h", "--sink", "console:"], "--stream is required"),
        (["run", "windows", "--log", ".", "--sink", "console:", "--stream", "nope"],
         "--stream: . has no stream 'nope'; there is none"),
        (["run", "enrich", "--log", ".", "--stream", "x", "--sink", "console:"], "--registry"),
        (["run", "windows", "--log", ".", "--sink", "console:", "--stream", "x", "--conf", "a=b"],
         "--conf: 'a=b' is not"),
        (["run", "windows", "--log", ".", "--stream", "x", "--sink", "console:", "--trigger", "z"],
         "--trigger"),
        (["run", "windows", "--log", ".", "--stream", "x", "--sink", "console:", "--to", "latest",
          "--once"], "--once does not apply"),
        (["run", "windows", "--log", ".", "--stream", "x", "--sink", "console:", "--to", "latest",
          "--accept-loss"], "--accept-loss does not apply"),
        (["run", "windows", "--log", ".", "--stream", "x", "--sink", "console:", "--drain"],
         "--drain needs --once"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_line_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(SystemExit) as ended:
        main(["spark", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, ""), err
    assert said in err and err.count("\n") == 1, err

"""`fleetmq spark` where there is no Spark, and what it refuses before starting one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ingest.jobs import SUMMARIES

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
def test_wrong_usage_is_a_line_and_code_2(arguments: list[str], said: str) -> None:
    pytest.importorskip("pyspark")
    done = fleetmq(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr

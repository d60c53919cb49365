"""`fleetmq stream export`: JSON lines and Parquet, whole or not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mqtt_broker.streams.remote import parquet_export
from tests import forked
from tests.cli.streams import PROGRAM, Shell
from tests.cli.test_stream_read import damage, fill
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME


@pytest.fixture(params=["directory", "url"])
def log(request: pytest.FixtureRequest, http: Serving, data_dir: Path) -> str:
    return http.url if request.param == "url" else str(data_dir)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines(broker: LogBroker, log: str, shell: Shell, tmp_path: Path) -> None:
    fill(broker, 20)
    path = tmp_path / "out.jsonl"
    found = shell("export", NAME, "--log", log, "-o", str(path))
    assert (found.code, found.out, found.err) == (0, "", "exported 20 messages\n")
    records = read(path)
    assert [(one["partition"], one["offset"]) for one in records] == [
        (partition, offset) for partition in (0, 1) for offset in range(10)
    ]
    assert records[3]["payload"] == '{"n": 6}'
    done = forked.run(
        [*PROGRAM, "export", NAME, "--log", log, "--quiet"],
        cwd=forked.ROOT,
        capture_output=True,
        env=dict(os.environ),
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == (path.read_bytes(), b"")


def test_a_range(broker: LogBroker, log: str, shell: Shell, tmp_path: Path) -> None:
    fill(broker, 20)
    path = tmp_path / "out.jsonl"
    for argv, wanted in (
        (("--from", '{"p0": 3, "p1": 9}'), [*((0, n) for n in range(3, 10)), (1, 9)]),
        (("--to", '{"p0": 3, "p1": 0}'), [(0, 0), (0, 1), (0, 2)]),
        (("--partition", "1", "--from", "2023-11-14T22:13:35Z"), [(1, 7), (1, 8), (1, 9)]),
        (("--from", "latest"), []),
    ):
        assert shell("export", NAME, "--log", log, "--force", "-o", str(path), *argv).code == 0
        assert [(one["partition"], one["offset"]) for one in read(path)] == wanted
    shell.fails(1, "the end 0 is before the start 10", "export", NAME, "--log", log,
                "--from", "latest", "--to", "earliest")  # fmt: skip


def test_parquet(broker: LogBroker, log: str, shell: Shell, tmp_path: Path,
                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(parquet_export, "ROWS", 8)
    fill(broker, 40)
    path = tmp_path / "out.parquet"
    argv = ("export", NAME, "--log", log, "--format", "parquet", "-o", str(path))
    found = shell(*argv, "--from", '{"p0": 3, "p1": 0}')
    assert (found.code, found.err) == (0, "exported 37 messages\n")
    table = pq.read_table(path)
    assert table.column("partition").to_pylist() == [0] * 17 + [1] * 20
    assert table.column("offset").to_pylist() == [*range(3, 20), *range(20)]
    assert table.column("payload").to_pylist()[0] == b'{"n": 6}'
    about = pq.read_metadata(path)
    assert about.metadata[b"fleetmq.stream"] == NAME.encode()
    assert json.loads(about.metadata[b"fleetmq.from"])["p0"] == 3
    assert about.num_row_groups > 1
    assert shell(*argv, "--from", "latest", "--force").code == 0
    assert pq.read_table(path).num_rows == 0


def test_damage_leaves_no_file(broker: LogBroker, log: str, shell: Shell, tmp_path: Path) -> None:
    fill(broker, 20)
    damage(broker)
    path = tmp_path / "out"
    for format_ in ("jsonl", "parquet"):
        argv = ("export", NAME, "--log", log, "--format", format_, "-o", str(path))
        shell.fails(1, "does not match its checksum", *argv)
        assert list(tmp_path.glob("out*")) == []
        found = shell(*argv, "--skip-damage")
        assert (found.code, found.err.count("checksum")) == (0, 1)
        assert found.err.endswith("exported 19 messages\n")
        path.unlink()


def test_mistakes(broker: LogBroker, http: Serving, shell: Shell, tmp_path: Path,
                  data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    argv = ("export", NAME, "--log", str(data_dir))
    there = tmp_path / "there"
    there.write_text("kept")
    shell.fails(2, f"-o: {there} exists: use --force to overwrite it", *argv, "-o", str(there))
    assert there.read_text() == "kept"
    shell.fails(2, "is not a file that can be written", *argv, "-o", str(tmp_path / "no" / "x"))
    shell.fails(2, "is not a file that can be written", *argv, "-o", str(tmp_path), "--force")
    shell.fails(2, "-o: give a file for --format parquet", *argv, "--format", "parquet")
    shell.fails(2, "--to: 'then' is invalid: expected", *argv, "--to", "then")
    shell.fails(2, "has no partition p7", *argv, "--partition", "7")


def test_a_full_disk(broker: LogBroker, data_dir: Path, shell: Shell) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    fill(broker, 4)
    with Path("/dev/full").open("wb") as full:
        done = forked.run(
            [*PROGRAM, "export", NAME, "--log", str(data_dir)],
            cwd=forked.ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert re.fullmatch("fleetmq(| stream): No space left on device\n", done.stderr)


def test_without_pyarrow(broker: LogBroker, data_dir: Path, tmp_path: Path) -> None:
    """It is not there when something of its name fails to import."""
    fake = tmp_path / "path" / "pyarrow.py"
    fake.parent.mkdir()
    fake.write_text("raise ModuleNotFoundError('no', name='pyarrow')")
    run = (*PROGRAM, "export", NAME)
    argv = ("--log", str(data_dir), "--format", "parquet", "-o", str(tmp_path / "x"))
    done = subprocess.run(
        [*run, *argv], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(fake.parent)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "fleetmq stream: --format parquet needs pyarrow, which is not installed: "
        "pip install 'fleetmq[spark]'\n"
    )

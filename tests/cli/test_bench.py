"""`fleetmq bench` as people run it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from iot_sim.bench.plan import PUBLISH
from mqtt_broker.cli import bench
from mqtt_broker.cli import main as entry
from mqtt_broker.cli.commands import parser_of
from mqtt_broker.cli.errors import UsageError
from tests.server.running import Running
from tests.server.transports import HOST, endpoint


def test_publishers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    with Running(endpoint()) as broker:
        argv = ["pub", "-c", "4", "-R", "1000", "-t", "b/%i", "-q", "1", "-L", "5", "-I", "0.001"]
        url = f"mqtt://{HOST}:{broker.port}"
        assert entry.main(["bench", *argv, "--broker", url, "--csv", str(path)]) == 0
        assert entry.main(["bench", "conn", "-c", "2", "-d", "0.1", "--broker", url]) == 0
        refused = ["pub", "-c", "1", "-t", "$SYS/x", "-q", "1", "-L", "1", "--broker", url]
        assert entry.main(["bench", *refused]) == 1
    said = capfd.readouterr().out
    assert "20 sent" in said and "20 acknowledged" in said and "due to acknowledgement" in said
    assert "error: not published: Not authorized (1)" in said
    with path.open() as file:
        assert sum(int(row["acknowledged"]) for row in csv.DictReader(file)) == 20


def test_a_rate_of_all_is_an_interval_of_each() -> None:
    args = parser_of("bench").parse_args(["pub", "-t", "a", "-c", "50", "--rate", "200"])
    plan = bench.make_plan(args)
    assert (plan.action, plan.interval_s) == (PUBLISH, 0.25)


def test_more_processes_than_clients() -> None:
    args = parser_of("bench").parse_args(["conn", "-c", "2", "--workers", "3"])
    with pytest.raises(UsageError, match="--workers is 2 or less"):
        bench.make_plan(args)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "ACTION"),
        (["pub"], "-t"),
        (["pub", "-t", "a/+"], "-t 'a/+'"),
        (["sub", "-t", "a/#/b"], "-t 'a/#/b'"),
        (["pub", "-t", "a", "-s", "3"], "--size"),
        (["pub", "-t", "a", "-I", "1", "--rate", "5"], "not allowed with"),
        (["conn", "-c", "0"], "--count"),
        (["conn", "-R", "-1"], "--connrate"),
        (["conn", "--broker", "http://x"], "--broker"),
        (["conn", "--csv", "/no/such/dir/x.csv"], "--csv"),
    ],
)
def test_a_wrong_option_is_one_line(
    argv: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(["bench", *argv])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert words in said and said.count("\n") == 1

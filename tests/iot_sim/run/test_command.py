"""`fleetmq sim`: exit codes, reports, several processes, Ctrl-C; every ready scenario, small."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from iot_sim.scenarios.file import ready_scenarios
from mqtt_broker.testing import ThreadedBroker
from tests import forked
from tests.iot_sim.web_server import web_server

PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
FLEET = """
duration_s = 2
[[fleets]]
name = "stubs"
model = "tests.iot_sim.stub_device:Stub"
count = 20
interval_s = 0.1
qos = 1
"""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadedBroker() as broker:
        yield broker.url


def command(*arguments: str) -> list[str]:
    start = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
    return [sys.executable, "-W", "error", "-c", start, "sim", *arguments]


def sim(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return forked.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(FLEET)
    return str(path)


def test_a_run_within_its_limits_is_0_with_reports(url: str, scenario: str, tmp_path: Path) -> None:
    data, page = tmp_path / "out.json", tmp_path / "out.html"
    done = sim(
        "run", scenario, "--broker", url, "--seed", "7", "--pid", str(os.getpid()),
        "--report", str(data), "--html", str(page),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "PASSED"
    assert "online 20/20" in done.stderr and "\x1b" not in done.stderr
    found = json.loads(data.read_text())
    assert found["verdict"]["passed"] and found["scenario"]["seed"] == 7
    assert "20 devices and 1 observer, " in done.stdout
    assert (found["scenario"]["devices"], found["observers"]) == (20, 1)
    assert found["totals"]["sent"] == found["totals"]["delivered"] > 300
    assert found["broker_process"]["rss_bytes_max"] > 1_000_000
    assert page.read_text().startswith("<!doctype html>")


def test_a_broken_limit_is_1(url: str, scenario: str) -> None:
    Path(scenario).write_text(FLEET + "[limits]\nlatency_p50_ms_max = 0.001")
    done = sim("run", scenario, "--broker", url, "--quiet")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "limit broken: latency_p50_ms_max" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED"
    assert done.stderr == ""


def test_several_processes_keep_one_ledger(url: str, scenario: str, tmp_path: Path) -> None:
    data = tmp_path / "out.json"
    done = sim("run", scenario, "--broker", url, "--workers", "3", "--report", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(data.read_text())
    assert found["workers"] == 3 and found["totals"]["flows"] == 60
    assert found["connections"]["connects"] == 23
    assert found["totals"]["sent"] == found["totals"]["delivered"] > 300
    assert max(one["connected"] for one in found["series"]) == 20
    assert found["observers"] == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FLEET + "[limits]\nlost = 1", "limits: unknown key lost; did you mean lost_max?"),
        (FLEET.replace("0.1", "0.0"), "fleets.stubs: interval_s is 0.001"),
        (
            FLEET + 'topic = "a/#/{number}"',
            "fleets.stubs: topic 'a/#/19': a Topic Name has no wildcards",
        ),
    ],
)
def test_a_wrong_scenario_is_2_and_one_line(scenario: str, text: str, line: str) -> None:
    Path(scenario).write_text(text)
    done = sim("run", scenario, "--broker", "mqtt://127.0.0.1:1")
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_broker_is_2_and_one_line(scenario: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = sim("run", scenario, "--broker", f"mqtt://127.0.0.1:{port}")
    assert done.returncode == 2 and done.stdout == ""
    assert "--broker" in done.stderr and "Connection refused" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_of_http_is_named(scenario: str) -> None:
    with web_server() as port:
        done = sim("run", scenario, "--broker", f"mqtt://127.0.0.1:{port}")
    assert done.returncode == 2 and done.stdout == ""
    assert "this is no MQTT port: it answers in HTTP" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--broker", "http://x"], "--broker: 'http://x' is not a broker URL"),
        (
            ["--broker", "mqtt://host:port"],
            "'mqtt://host:port' is not a broker URL: the port is not",
        ),
        (["--devices", "0"], "--devices: '0' is not a whole number"),
        (["--duration", "soon"], "--duration: 'soon' is not a number of seconds"),
        (["--workers", "99"], "--workers is 1 to 64, not 99"),
        (["--workers", "21"], "--workers must be at most 20"),
        (["--share", "1/3"], "--share needs --report FILE"),
        (["--share", "4/3"], "'4/3' is not a share such as 1/3"),
        (["--share", "21/21", "--report", "/dev/null"], "--share must be of at most 20"),
        (["--start-at", "noon"], "'noon' is not a time such as"),
        (["--start-at", "2020-01-01T00:00:00Z"], "--start-at: this time is over"),
        (["--pid", "999999999"], "--pid 999999999: no such process"),
        (["--report", "/no/such/folder/x.json"], "/no/such/folder/x.json: No such file"),
    ],
)
def test_wrong_usage_is_2_and_one_line(
    url: str, scenario: str, arguments: list[str], line: str
) -> None:
    done = sim("run", scenario, "--broker", url, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1


def test_check_sends_nothing(scenario: str) -> None:
    done = sim("run", scenario, "--check", "--broker", "mqtt://127.0.0.1:1")
    assert done.returncode == 0
    assert "the scenario is valid" in done.stdout


def test_the_list_names_everything() -> None:
    done = sim("list")
    assert done.returncode == 0
    for name in ready_scenarios():
        assert f"  {name} " in done.stdout
    for word in ("environment", "sparkplug_node", "lost_max", "buffer_max"):
        assert word in done.stdout


def test_reports_for_ci_and_a_comparison_of_two_runs(
    url: str, scenario: str, tmp_path: Path
) -> None:
    first, junit, rows = tmp_path / "1.json", tmp_path / "junit.xml", tmp_path / "seconds.csv"
    done = sim("run", scenario, "--broker", url, "--quiet", "--report", str(first),
               "--junit", str(junit), "--csv", str(rows))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'name="lost_max"' in junit.read_text()
    assert rows.read_text().startswith("second,sent,") and len(rows.read_text().splitlines()) >= 2

    again = sim("compare", str(first), str(first))
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "NOT WORSE by more than 10%")
    data = json.loads(first.read_text())
    data["totals"]["lost"] = 1
    second = tmp_path / "2.json"
    second.write_text(json.dumps(data))
    worse = sim("compare", str(first), str(second), "--tolerance", "5%")
    assert (worse.returncode, worse.stdout.splitlines()[-1]) == (1, "WORSE: 1 by more than 5%")


def test_shares_of_several_machines_are_one_run(url: str, scenario: str, tmp_path: Path) -> None:
    start = datetime.fromtimestamp(time.time() + 6, UTC).isoformat()
    paths = [str(tmp_path / f"{n}.json") for n in (1, 2, 3)]
    shares = [
        forked.Popen(
            command("run", scenario, "--broker", url, "--share", f"{n}/3", "--start-at", start,
                    "--workers", "2" if n == 2 else "1", "--report", path, "--quiet"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for n, path in enumerate(paths, 1)
    ]  # fmt: skip
    for process, devices in zip(shares, (7, 7, 6), strict=True):
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, out
        assert f"{devices} of 20 devices and " in out
    whole = tmp_path / "whole.json"
    done = sim("merge", *paths, "--report", str(whole))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 devices and 4 observers" in done.stdout and "apart" not in done.stdout
    found = json.loads(whole.read_text())
    assert found["workers"] == 4 and found["connections"]["connects"] == 24
    assert found["totals"]["flows"] == 60 and found["totals"]["unknown"] == 0
    assert found["totals"]["sent"] == found["totals"]["delivered"] > 300
    assert "share" not in found
    lacking = sim("merge", *paths[:2])
    assert lacking.returncode == 2 and "no report of share 3/3" in lacking.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "old.json: not JSON"),
        ("{}", "old.json: not a report of fleetmq sim run"),
        ('{"format": 1, "scenario": {}, "totals": {}, "verdict": {}}', "an incomplete report"),
        (None, "old.json: No such file"),
    ],
)
def test_a_wrong_report_is_2_and_one_line(tmp_path: Path, text: str | None, line: str) -> None:
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    done = sim("compare", str(path), str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_in_order_with_a_report(
    url: str, scenario: str, tmp_path: Path, workers: str
) -> None:
    data = tmp_path / "out.json"
    process = forked.Popen(
        command("run", scenario, "--broker", url, "--duration", "600", "--workers", workers,
                "--report", str(data)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stderr is not None
    assert "online" in process.stderr.readline()  # a second of it is over
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out + errors
    assert "the run was interrupted" in out
    assert out.splitlines()[-1] == "INTERRUPTED"
    found = json.loads(data.read_text())
    assert found["totals"]["interrupted"]
    assert found["verdict"]["result"] == "interrupted" and not found["verdict"]["passed"]
    assert found["totals"]["sent"] == found["totals"]["delivered"] > 0


def test_a_worker_that_dies_is_told(url: str, scenario: str) -> None:
    process = forked.Popen(
        command("run", scenario, "--broker", url, "--duration", "600", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    assert "online" in process.stderr.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [
        int(pid)
        for pid in children
        if b"import run_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "ended early, with exit code -9" in errors


@pytest.mark.parametrize("name", ready_scenarios())
def test_ready_scenarios_pass_small(url: str, name: str) -> None:
    done = sim("run", name, "--broker", url, "--devices", "30", "--duration", "3", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ready_scenarios())
def test_ready_scenarios_pass_for_ten_seconds(url: str, name: str) -> None:
    done = sim("run", name, "--broker", url, "--devices", "60", "--duration", "10", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr

"""The Locust users, in a process of their own: Locust patches the standard library."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iot_sim.scenarios.file import load
from mqtt_broker.testing import ThreadedBroker

ROOT = Path(__file__).resolve().parents[3]
FILE = str(ROOT / "iot_sim" / "locustfile.py")
SHAPE = str(ROOT / "iot_sim" / "locust_users/shape.py")
PATIENCE_S = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SCENARIO = """
duration_s = 6
connect_rate_per_s = 50
[[fleets]]
name = "sensors"
model = "environment"
count = 20
interval_s = 0.2
qos = { 0 = 0.5, 1 = 0.5 }
load = { shape = "ramp", drives = "devices", low = 0.5, end_s = 3 }
"""


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(tls=True, websocket=True) as running:
        yield running


@pytest.fixture
def url(broker: ThreadedBroker) -> str:
    return broker.url


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return str(path)


def locust(file: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", file, *arguments]


def requests(prefix: Path) -> dict[str, tuple[int, int]]:
    """Name -> (requests, failures), as Locust's statistics have them."""
    with open(f"{prefix}_stats.csv") as file:
        return {
            row["Name"]: (int(row["Request Count"]), int(row["Failure Count"]))
            for row in csv.DictReader(file)
        }


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_all_users_do_their_work(
    broker: ThreadedBroker, scheme: str, scenario: str, tmp_path: Path
) -> None:
    trusting = {**ENVIRONMENT, "SSL_CERT_FILE": str(broker.ca_file)}
    done = subprocess.run(
        locust(
            FILE, "--headless", "-u", "24", "-r", "24", "-t", "6s", "--host", broker.urls[scheme],
            "--sim-scenario", scenario, "--csv", str(tmp_path / "out"), "--only-summary",
        ),
        capture_output=True, text=True, timeout=PATIENCE_S, env=trusting,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = requests(tmp_path / "out")
    assert not any(failures for _, failures in found.values()), found
    for name in ("connect", "subscribe", "publish qos 0", "publish qos 1", "deliver qos 0",
                 "deliver qos 1", "command", "session"):  # fmt: skip
        assert found[name][0] > 0, name
    assert "Traceback" not in done.stderr, done.stderr


def test_the_shape_follows_the_scenario(url: str, scenario: str, tmp_path: Path) -> None:
    done = subprocess.run(
        locust(
            f"{FILE},{SHAPE}", "--headless", "--host", url, "--sim-scenario", scenario,
            "--csv", str(tmp_path / "out"), "--csv-full-history", "--only-summary",
        ),
        capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "out_stats_history.csv") as file:
        users = [int(row["User Count"]) for row in csv.DictReader(file) if row["User Count"]]
    assert max(users) == 23 and min(user for user in users if user) <= 16
    assert load(scenario).fleets[0].factor("devices", 3) == 1.0


def test_without_a_broker_it_fails(scenario: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for seconds in (2, 8, 32):  # on a busy machine no user may have started after the first
        done = subprocess.run(
            locust(
                FILE, "--headless", "-u", "4", "-r", "4", "-t", f"{seconds}s",
                "--host", f"mqtt://127.0.0.1:{port}", "--sim-scenario", scenario, "--only-summary",
            ),
            capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT,
        )  # fmt: skip
        if done.returncode:
            break
    assert done.returncode != 0
    assert "Connection refused" in done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def test_workers_share_the_load_and_the_page_is_served(
    url: str, scenario: str, tmp_path: Path
) -> None:
    bind, web = str(free_port()), str(free_port())
    master = subprocess.Popen(
        locust(
            FILE, "--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1",
            "--master-bind-port", bind, "--web-host", "127.0.0.1", "--web-port", web,
            "--autostart", "--autoquit", "0", "-u", "12", "-r", "12", "-t", "4s", "--host", url,
            "--sim-scenario", scenario, "--csv", str(tmp_path / "out"), "--only-summary",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    workers = [
        subprocess.Popen(
            locust(FILE, "--worker", "--master-host", "127.0.0.1", "--master-port", bind),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        page = _page(f"http://127.0.0.1:{web}/")
        out, _ = master.communicate(timeout=PATIENCE_S)
        assert master.returncode == 0, out
        assert b"<html" in page.lower()
        found = requests(tmp_path / "out")
        assert found["publish qos 1"][0] > 0 and found["deliver qos 1"][0] > 0
        assert not any(failures for _, failures in found.values()), found
    finally:
        everyone: list[subprocess.Popen[Any]] = [master, *workers]
        for one in everyone:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
            one.wait(PATIENCE_S)


def _page(address: str) -> bytes:
    """The page, as soon as it is served."""
    deadline = time.monotonic() + PATIENCE_S / 2
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                body: bytes = answer.read()
                return body
        except OSError:
            assert time.monotonic() < deadline, "no web page"
            time.sleep(0.1)

"""Prometheus' rules and the dashboard of deploy/: the broker serves their names, promtool accepts
them, and alarms of a real Prometheus fire and clear on a real broker.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.http_api.pages.metrics import MetricsCollector
from mqtt_broker.http_api.request.broker_interface import WatchFigures
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.server.config.config import Config
from tests.core.peers import V5, connect, subscribe
from tests.http_api.brokers import Serving
from tests.http_api.test_documents import full_snapshot
from tests.server.running import Running

ROOT: Final = Path(__file__).parents[2]
yaml: Any = pytest.importorskip("yaml")
RULES: Final = ROOT / "deploy" / "prometheus" / "fleetmq.rules.yml"
UNIT_TESTS: Final = ROOT / "deploy" / "prometheus" / "fleetmq.tests.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "fleetmq.json"
PATIENCE_S: Final = 60.0

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed"
)


@contextmanager
def stored_broker(tmp_path: Path) -> Iterator[tuple[Running, Serving]]:
    config = Config(durability="commit", data_dir=str(tmp_path / "data"))
    with (
        Running(config=config) as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        yield broker, http


def served() -> set[str]:
    """The names of all samples that a broker with a store and access control may serve."""
    found = {
        sample.name
        for family in MetricsCollector(*full_snapshot()).collect()
        for sample in family.samples
    }
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in MetricsCollector(*full_snapshot()).collect()
    }
    return found | families


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b((?:fleetmq|process)_[a-z_]+)\b(?!\s*=)", expression))


def test_every_metric_of_the_rules_is_served() -> None:
    known = served()
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 10
    for rule in rules:
        assert names_in(rule["expr"]) <= known, rule["alert"]
        assert {"summary", "description"} <= rule["annotations"].keys()
    mentioned = {
        name
        for rule in rules
        for name in names_in(rule["annotations"]["summary"] + rule["annotations"]["description"])
    }
    assert {name for name in mentioned if f"{name}_bucket" not in known} <= known


def test_every_metric_of_the_dashboard_is_served() -> None:
    known = served()
    found = json.loads(DASHBOARD.read_text())
    targets = [target for panel in found["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 30
    for target in targets:
        names = names_in(target["expr"])
        assert names and names <= known, target["expr"]
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


@needs_promtool
def test_promtool_has_no_remarks(tmp_path: Path) -> None:
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(UNIT_TESTS)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with stored_broker(tmp_path) as (_, http):
        text = http.get("/metrics").body
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_sync_is_a_part_of_a_write(tmp_path: Path) -> None:
    with stored_broker(tmp_path) as (broker, http):
        with broker.raw() as client:
            client.send(connect("s", clean=False, expiry=100))
            client.packet()
            client.send(subscribe(V5, "a", qos=1))
            client.packet()  # which waited for the disk
        text = http.get("/metrics").body.decode()
    found = dict(re.findall(r'^fleetmq_store_(\w+){what="journal"} (\S+)$', text, re.MULTILINE))
    assert float(found["sync_seconds_count"]) == float(found["write_seconds_count"]) > 0
    assert 0 < float(found["sync_seconds_sum"]) < float(found["write_seconds_sum"])


@needs_promtool
def test_every_expression_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    found = json.loads(DASHBOARD.read_text())
    rules = [
        {"record": f"panel:{panel['id']}:{number}", "expr": _plain(target["expr"])}
        for panel in found["panels"]
        for number, target in enumerate(panel.get("targets", ()))
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _plain(expression: str) -> str:
    return expression.replace("$instance", ".*").replace("$__rate_interval", "1m")


@contextmanager
def prometheus(tmp_path: Path, target: str) -> Iterator[str]:
    """Debian's Prometheus, which scrapes and evaluates every half second, with the rules' own
    waiting times cut to a second.
    """
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = "1s"
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
                "rule_files": ["rules.yml"],
                "scrape_configs": [
                    {"job_name": "fleetmq", "static_configs": [{"targets": [target]}]}
                ],
            }
        )
    )
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/tsdb",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def firing(url: str) -> set[str]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=5) as answer:
            found: Any = json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return set()
    return {
        alert["labels"]["alertname"]
        for alert in found["data"]["alerts"]
        if alert["state"] == "firing"
    }


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.2)
    return False


class Late(ServerInterface):
    """A broker whose watchdog finds what a test says."""

    late_s = 0.0

    def watch(self) -> WatchFigures:
        return WatchFigures(0.0, self.late_s)


@pytest.mark.slow
@needs_prometheus
def test_alarms_fire_and_clear(tmp_path: Path) -> None:
    """A store that is away, a loop that is late, and a broker that is gone."""
    config = Config(durability="commit", data_dir=str(tmp_path / "data"))
    with Running(config=config) as broker:
        interface = Late(broker.server)
        with (
            Serving(interface, None) as http,
            prometheus(tmp_path, f"127.0.0.1:{http.port}") as url,
        ):
            assert until(lambda: _scraped(url))
            assert firing(url) == set()
            core = broker.server.broker
            broker.ask(lambda: core.on_store_state("no space left on device"))
            assert until(lambda: "FleetMQStoreAway" in firing(url))
            broker.ask(lambda: core.on_store_state(""))
            assert until(lambda: firing(url) == set())
            interface.late_s = 2.0
            assert until(lambda: firing(url) == {"FleetMQLoopLate"})
            interface.late_s = 0.0
            assert until(lambda: firing(url) == set())
            http.server.stop(5.0)
            assert until(lambda: "FleetMQDown" in firing(url))


def _scraped(url: str) -> bool:
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/query?query=fleetmq_healthy", timeout=5
        ) as found:
            return bool(json.load(found)["data"]["result"])
    except (urllib.error.URLError, ConnectionError):
        return False

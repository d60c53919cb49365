"""The fixtures, as the tests of somebody else's project use them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from mqtt_broker.pytest_plugin import BrokerFactory
from mqtt_broker.testing import ThreadedBroker

ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 60.0
OTHERS: Final = """\
import pytest

seen = []

@pytest.mark.parametrize("number", range(3))
def test_session(fleetmq_broker_session, number):
    fleetmq_broker_session.publish("t", str(number))
    seen.append(fleetmq_broker_session.port)
    assert len(fleetmq_broker_session.published("t")) == number + 1
    assert len(set(seen)) == 1

@pytest.mark.parametrize("number", range(2))
def test_function(fleetmq_broker, number):
    assert fleetmq_broker.published() == []
    fleetmq_broker.publish("t")
    [message] = fleetmq_broker.wait_for_messages(1)

def test_factory(fleetmq_broker_factory, tmp_path):
    one = fleetmq_broker_factory(users={"ada": "secret"}, streams={"s": "t"})
    two = fleetmq_broker_factory(tls=True, websocket=True, data_dir=tmp_path)
    assert one.port != two.port and set(two.urls) == {"mqtt", "ws", "mqtts", "wss"}

def test_nothing_is_left():
    import threading
    assert [one.name for one in threading.enumerate() if "fleetmq" in one.name] == ["fleetmq"]
"""


def test_brokers_end_with_the_test_or_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    plugin = ("-p", "mqtt_broker.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *plugin, str(tmp_path)],
        # The plugins of others take longer to import than these tests do.
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_a_factory_stops_what_it_made(fleetmq_broker_factory: BrokerFactory) -> None:
    broker: ThreadedBroker = fleetmq_broker_factory(receive_maximum=7)
    broker.stop()
    assert not [one for one in threading.enumerate() if one.name == "fleetmq"]


def test_a_test_without_a_broker_does_not_import_it() -> None:
    script = "import mqtt_broker.pytest_plugin, sys; print('mqtt_broker.testing' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "False\n"

"""Other people's clients over TLS and WebSocket: paho-mqtt, and MQTT.js where node has it."""

from __future__ import annotations

import json
import os
import queue
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqtt_broker.server.config.endpoints import WebSocketRules
from tests.server.running import Running
from tests.server.transports import HOST, Files, endpoint

PATIENCE_S: Final = 120.0
WEB = WebSocketRules()
KINDS = ("tls", "mutual", "ws", "wss")
# Subscribes, publishes to itself at each QoS, and says what came; a large payload at the end.
SCRIPT: Final = """
const mqtt = require('mqtt');
const fs = require('fs');
const [url, version, ca] = process.argv.slice(-3);
const client = mqtt.connect(url, {
  protocolVersion: Number(version), reconnectPeriod: 0, clientId: 'js',
  ca: ca === '-' ? undefined : fs.readFileSync(ca),
});
const got = [];
client.on('error', (error) => { console.error(String(error)); process.exit(1); });
client.on('message', (topic, payload) => {
  got.push([topic, payload.length]);
  if (got.length === 4) { console.log(JSON.stringify(got)); client.end(); }
});
client.on('connect', () => client.subscribe('js/#', { qos: 2 }, () => {
  for (const qos of [0, 1, 2]) client.publish('js/' + qos, 'x'.repeat(qos + 1), { qos });
  client.publish('js/large', Buffer.alloc(300000), { qos: 1 });
}));
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def served(files: Files, kind: str) -> Any:
    tls = None
    if kind in ("tls", "wss"):
        tls = files.rules()
    elif kind == "mutual":
        tls = files.mutual()
    return endpoint(tls, WEB if kind in ("ws", "wss") else None)


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("kind", KINDS)
def test_paho(files: Files, kind: str, version: MQTTProtocolVersion) -> None:
    came: queue.Queue[paho.MQTTMessage] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        "paho",
        protocol=version,
        transport="websockets" if kind in ("ws", "wss") else "tcp",
        reconnect_on_failure=False,
    )
    client.on_message = lambda client, data, message: came.put(message)
    client.on_connect = lambda client, data, *answer: answers.put(answer)
    client.on_subscribe = lambda client, data, *answer: answers.put(answer)
    if kind != "ws":
        cert, key = None, None
        if kind == "mutual":
            cert, key = files.client("device", files.authority.issue("device"))
        client.tls_set(files.ca, cert, key)
    with Running(served(files, kind)) as broker:
        client.connect(HOST, broker.port)
        client.loop_start()
        try:
            assert not answers.get(timeout=PATIENCE_S)[1].is_failure
            client.subscribe("a/#", 2)
            answers.get(timeout=PATIENCE_S)
            for qos, size in ((0, 10), (1, 1000), (2, 300_000), (0, 0)):
                client.publish("a/b", bytes(size), qos)
                message = came.get(timeout=PATIENCE_S)
                assert (message.qos, len(message.payload)) == (qos, size)
        finally:
            client.disconnect()
            client.loop_stop()
        broker.wait_until(lambda: not broker.server.broker.connections)
        assert not broker.refusals


# paho leaves its socket to the garbage collector there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_paho_finds_out_the_wrong_host(files: Files, tmp_path: Path) -> None:
    other = files.authority.issue("elsewhere", ip="192.0.2.1").write(tmp_path, "other")
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho", reconnect_on_failure=False)
    client.tls_set(files.ca)
    ends = endpoint(type(files.rules())(*other))
    with Running(ends) as broker, pytest.raises(ssl.SSLCertVerificationError):
        client.connect(HOST, broker.port)


def mqtt_js() -> str:
    """The node that knows MQTT.js."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("MQTT.js: there is no node")
    found = subprocess.run(
        [node, "-e", "require.resolve('mqtt')"], capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip("node has no MQTT.js: npm install mqtt, and NODE_PATH where it is")
    return node


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", ["ws", "wss", "tls"])
def test_mqtt_js(files: Files, kind: str, version: int) -> None:
    node = mqtt_js()
    with Running(served(files, kind)) as broker:
        scheme = "mqtts" if kind == "tls" else kind
        path = "" if kind == "tls" else "/mqtt"
        ca = "-" if kind == "ws" else files.ca
        done = subprocess.run(
            [node, "-e", SCRIPT, f"{scheme}://{HOST}:{broker.port}{path}", str(version), ca],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        expected = [["js/0", 1], ["js/1", 2], ["js/2", 3], ["js/large", 300_000]]
        assert sorted(json.loads(done.stdout)) == expected
        assert not broker.refusals

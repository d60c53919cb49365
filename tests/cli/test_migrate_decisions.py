"""mosquitto and a broker with the migrated configuration decide alike about logins and topics."""

from __future__ import annotations

import dataclasses
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt_broker.cli import migrate
from mqtt_broker.cli.main import main
from mqtt_broker.codec.constants import V5
from mqtt_broker.server.config.config import load
from tests.core.peers import publish, subscribe
from tests.security.gate import connect
from tests.server.broker_process import environment
from tests.server.running import Raw, Running

BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
TOOL = shutil.which("mosquitto_passwd")
TRIES = 200
ACL = """\
topic readwrite public/#
user ann
topic readwrite fleet/#
topic deny fleet/secret
topic read state/+
user bob
topic write fleet/+
topic fleet/x/y
pattern readwrite own/%u/#
pattern write devices/%c/up
pattern deny own/%u/x
"""
TOPICS = (
    "public/a", "fleet/1", "fleet/secret", "fleet/x/y", "state/x", "own/ann/a", "own/ann/x",
    "own/bob/a", "devices/c1/up", "devices/c2/up", "other",
)  # fmt: skip
PEOPLE = [("ann", b"a"), ("bob", b"b"), (None, None), ("ann", b"wrong"), ("eve", b"e")]
PINGREQ = b"\xc0\x00"


@pytest.fixture
def mosquitto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A mosquitto with users and rules; its port."""
    if BROKER is None or TOOL is None:
        pytest.skip("mosquitto is not installed")
    kept = {key: text for key, text in environment().items() if not key.startswith("FLEETMQ_")}
    monkeypatch.setattr("os.environ", kept)
    monkeypatch.chdir(tmp_path)
    users, rules, file = tmp_path / "pw", tmp_path / "acl", tmp_path / "m.conf"
    rules.write_text(ACL)
    users.touch()
    for name, password in (("ann", "a"), ("bob", "b")):
        subprocess.run([TOOL, "-b", str(users), name, password], check=True, timeout=120)
    for path in (tmp_path, users, rules):  # as root it becomes another user
        path.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    file.write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\npassword_file {users}\n"
        f"acl_file {rules}\npersistence false\n"
    )
    with subprocess.Popen([BROKER, "-c", str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            _await(port)
            yield port
        finally:
            process.kill()


def _await(port: int) -> None:
    for _ in range(TRIES):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.fail("mosquitto does not listen")


def decisions(port: int, username: str | None, password: bytes | None) -> dict[str, object]:
    """What a client may do: for each topic, whether it may publish, and gets its own message."""
    with Raw(socket.create_connection(("127.0.0.1", port))) as raw:
        raw.send(connect("c1", username, password=password))
        if raw.packet()[3]:
            return {"connect": False}
        found: dict[str, object] = {}
        for topic in TOPICS:
            message = publish(topic, b"x", qos=1)
            raw.send(subscribe(V5, topic), message, PINGREQ)
            is_published = is_received = False
            while (packet := raw.packet())[0] != 0xD0:
                if packet[0] == 0x40:  # reason 0, or 0x10: nobody has subscribed
                    is_published = len(packet) < 5 or packet[4] in (0, 0x10)
                is_received |= packet[0] >> 4 == 3
            found[topic] = is_published, is_received
        return found


def test_both_decide_alike(mosquitto: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert migrate.__doc__ is not None
    assert main(["migrate", "m.conf"]) == 0, capfd.readouterr().err
    config = load("fleet.toml", {}, {})
    (one,) = config.endpoints
    assert one.port == mosquitto
    with Running(dataclasses.replace(one, port=0), config=config) as broker:
        for username, password in PEOPLE:
            theirs = decisions(mosquitto, username, password)
            assert decisions(broker.port, username, password) == theirs, username
            assert len(theirs) == (1 if password in (b"wrong", b"e") else len(TOPICS))

"""deploy/hardened.toml as it stands: only addresses and ports are the test's own."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.server.config.config import load
from tests.core.peers import publish, subscribe
from tests.security.gate import HASHES, connect
from tests.server.certificates import Authority
from tests.server.running import Raw, Running

HARDENED: Final = Path(__file__).parents[2] / "deploy" / "hardened.toml"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = Authority()
    authority.issue("localhost", dns=["localhost"]).write(folder, "server")
    for name in ("pump-7", "pump-8"):
        authority.issue(name).write(folder, name)
    stolen = authority.issue("stolen")
    stolen.write(folder, "stolen")
    authority.write_crl(folder, stolen, name="devices-crl")
    for name in ("ca", "devices-ca"):
        authority.write(folder, name)
    (tmp_path / "users").write_text(f"operator:{HASHES['ann']}\nguest:{HASHES['bob']}\n")
    os.chmod(tmp_path / "users", 0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dial(broker: Running, listener: int, home: Path, device: str = "") -> Raw:
    context = ssl.create_default_context(cafile=str(home / "tls" / "ca.pem"))
    if device:
        context.load_cert_chain(home / "tls" / f"{device}.pem", home / "tls" / f"{device}.key")
    sock = socket.create_connection(("127.0.0.1", broker.bound[listener].port), 5)
    return Raw(context.wrap_socket(sock, server_hostname="localhost"))


def enter(raw: Raw, client_id: str, username: str | None = None, password: bytes = b"") -> int:
    raw.send(connect(client_id, username, password=password or None))
    return raw.packet()[3]


def suback(raw: Raw, text: str) -> int:
    raw.send(subscribe(V5, text, qos=1))
    return raw.packet()[-1]


def puback(raw: Raw, topic: str) -> int:
    raw.send(publish(topic, b"x", qos=1))
    while True:
        packet = raw.packet()
        if packet[0] >> 4 == 4:
            return packet[4] if len(packet) > 4 else 0
        raw.send(b"\x40\x02\x00\x01")


def test_the_hardened_example(home: Path) -> None:
    config = load(str(HARDENED), {}, {})
    endpoints = [dataclasses.replace(one, host="127.0.0.1", port=0) for one in config.endpoints]
    settings = dataclasses.asdict(config.settings) | {"sys_interval_s": 0}
    with Running(*endpoints, config=config, **settings) as broker:
        pump, operator = dial(broker, 0, home, "pump-7"), dial(broker, 1, home)
        assert enter(pump, "pump-7-main") == 0
        assert enter(operator, "desk", "operator", b"ann's") == 0
        assert suback(operator, "fleet/#") == 1 and suback(operator, "$SYS/#") == 1
        assert suback(pump, "fleet/pump-7/command/#") == 1
        assert suback(pump, "fleet/pump-8/command/#") == suback(pump, "#") == 0x87
        assert puback(pump, "fleet/pump-8/telemetry") == 0x87
        assert puback(pump, "fleet/pump-7/telemetry") == 0
        assert operator.packet()[4:] == publish("fleet/pump-7/telemetry", b"x", qos=1)[4:]
        other = dial(broker, 0, home, "pump-8")
        assert enter(other, "pump-7-main") == 0x85  # that session is another's
        second = dial(broker, 0, home, "pump-7")
        assert enter(second, "pump-7-more") == 0x97  # one connection a device
        guest = dial(broker, 1, home)
        assert enter(guest, "g", "guest", b"bob's") == 0
        assert suback(guest, "fleet/pump-7/telemetry") == 0x87
        stranger = dial(broker, 1, home)
        assert enter(stranger, "s") == 0x87
        unknown = dial(broker, 1, home)
        assert enter(unknown, "s", "operator", b"wrong") == 0x86
        for device in ("", "stolen"):
            with dial(broker, 0, home, device) as raw, pytest.raises((EOFError, OSError)):
                enter(raw, "x")
        for raw in (pump, operator, other, second, guest, stranger, unknown):
            raw.sock.close()
    told = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert {row["event"] for row in told} == {"connected", "refused", "denied"}
    denied = [row for row in told if row["event"] == "denied"]
    assert {row["username"] for row in denied} == {"pump-7", "guest"}

"""A whole broker, as its users run it: killed and started again under those who read by HTTP."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.http_api import address_file
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.remote.http_client import NotAllowed, Unreachable
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource
from tests.core.peers import publish
from tests.server.broker_process import Process, refused
from tests.server.running import Raw

TOKEN: Final = "process-token-4711"
ENVIRONMENT: Final = {"FLEETMQ_DURABILITY": "commit", "FLEETMQ_HTTP_TOKEN": TOKEN}


def started(data_dir: Path, http: str = "127.0.0.1:0") -> Process:
    return Process(
        "--port", "0", "--data-dir", str(data_dir), "--http", http, env=ENVIRONMENT
    )  # fmt: skip


def put(client: Raw, first: int, count: int) -> None:
    """At QoS 1, each acknowledged: all of them are in the log then."""
    for number in range(first, first + count):
        client.send(publish("fleet/1/telemetry", b"%d" % number, qos=1, packet_id=1))
        assert client.packet()[0] == 0x40


def test_readers_outlive_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETMQ_HTTP_TOKEN", TOKEN)
    with started(tmp_path) as broker, broker.client("c") as client:
        url = address_file.read(tmp_path)
        create = ["stream", "create", "telemetry", "--filter", "fleet/+/telemetry"]
        assert main([*create, "--data-dir", str(tmp_path)]) == 0
        put(client, 0, 50)
        with pytest.raises(NotAllowed):
            RemoteSource(url, "telemetry")
        source = RemoteSource(url, "telemetry", TOKEN)
        reader = RemoteReader(source, 0, 0)
        found = [record.payload for batch in reader.read(500) for record in records(batch)]
        assert found
        broker.process.kill()
    with pytest.raises(address_file.NoAddress, match="is no longer running"):
        address_file.read(tmp_path)
    with pytest.raises(Unreachable):
        RemoteSource(url, "telemetry", TOKEN)

    with started(tmp_path, url.removeprefix("http://")) as broker, broker.client("c") as client:
        assert address_file.read(tmp_path) == url
        put(client, 50, 50)
        with source, reader:
            while batches := reader.read():
                found += [record.payload for batch in batches for record in records(batch)]
        assert found == [b"%d" % number for number in range(100)]
        broker.end()
    assert not (tmp_path / address_file.FILE).exists()


def test_health_and_metrics_of_a_broker_in_memory(tmp_path: Path) -> None:
    with Process("--port", "0", "--http", "127.0.0.1:0", "--durability", "memory") as broker:
        assert broker.process.stdout is not None
        host, _, port = broker.process.stdout.readline().rpartition("/")[2].partition(":")
        for path, words in (("/healthz", b'{"status": "ok"}'), ("/metrics", b"fleetmq_sessions ")):
            with socket.create_connection((host, int(port)), 10) as near:
                near.sendall(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
                answer = b""
                while part := near.recv(65_536):
                    answer += part
            assert answer.startswith(b"HTTP/1.0 200 ") and words in answer


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = refused("--port", "0", "--http", where, "--data-dir", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert f"cannot listen for HTTP on {where}: Address already in use" in err


def test_no_token_no_other_machines(tmp_path: Path) -> None:
    code, _, err = refused("--port", "0", "--http", "0.0.0.0:0", "--data-dir", str(tmp_path))
    assert code == 2
    assert "http_token" in err


def test_tools_without_a_broker(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        found = json.loads((tmp_path / address_file.FILE).read_text())
        assert found == {"url": address_file.read(tmp_path), "pid": broker.process.pid}
        broker.end()
    assert main(["stream", "list", "--log", str(tmp_path)]) == 0
    assert main(["stream", "groups", "x", "--data-dir", str(tmp_path)]) == 1

"""Ten thousand connections to the HTTP port of a broker process: nobody on MQTT notices."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack

import pytest

from tests.server.broker_process import Process, http_address

COUNT = 10_000
ASK = b"GET /api/v1/clients HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.slow
def test_ten_thousand_connections_to_the_http_port() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < COUNT + 1_000:
        pytest.skip(f"the hard limit of open files is {limits[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        with (
            Process("--port", "0", env={"FLEETMQ_HTTP": "127.0.0.1:0"}) as broker,
            ExitStack() as stack,
        ):
            host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
            pinging = [stack.enter_context(broker.client(f"c{n}")) for n in range(20)]

            def ping() -> None:
                for client in pinging:
                    client.send(b"\xc0\x00")
                for client in pinging:
                    assert client.packet() == b"\xd0\x00"

            opened = []
            for number in range(COUNT):
                near = stack.enter_context(socket.create_connection((host, int(port))))
                opened.append(near)
                if number % 100 == 0:
                    ping()
            for number, near in enumerate(opened):
                try:
                    near.sendall(ASK)
                except OSError:
                    continue  # it was refused
                if number % 100 == 0:
                    ping()
            for near in opened:
                near.close()
            ping()
            with socket.create_connection((host, int(port))) as near:
                near.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert near.recv(100).startswith(b"HTTP/1.1 ")
            broker.end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

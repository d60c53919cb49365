"""Clients of a broker in a test."""

from __future__ import annotations

import socket
from typing import Any

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Connect
from mqtt_broker.testing import Broker, ThreadedBroker
from tests.core.peers import connect
from tests.server.running import Raw


def opened(broker: Broker | ThreadedBroker) -> Raw:
    """A socket that is connected, and has said nothing."""
    return Raw(socket.create_connection((broker.host, broker.port)))


def connected(
    broker: Broker | ThreadedBroker, client_id: str, version: int = V5, **fields: Any
) -> Raw:
    """A client that is connected."""
    return logged_in(broker, connect(client_id, version, **fields))


def login(
    client_id: str, username: str | None, password: str, version: int = V5, *, keep_alive: int = 0
) -> bytes:
    """A CONNECT with user name and password."""
    packet = Connect(
        version, client_id, True, keep_alive, username=username, password=password.encode()
    )
    return encode_from_client(version, packet)


def logged_in(broker: Broker | ThreadedBroker, packet: bytes) -> Raw:
    """A client that has sent this CONNECT, and was let in."""
    raw = opened(broker)
    raw.send(packet)
    answer = raw.packet()
    assert answer[0] == 0x20 and answer[3] == 0, answer.hex()
    return raw

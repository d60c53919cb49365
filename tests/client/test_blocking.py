"""The blocking client over each transport, against our own broker."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mqtt_broker.client.blocking import Address, Client, Deadline, tls_context
from mqtt_broker.client.errors import ClientError, TimedOut
from mqtt_broker.client.protocol import Closed, Event, Message, Published
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.server.config.endpoints import WebSocketRules
from tests.server.running import PATIENCE_S, Running
from tests.server.transports import HOST, Files, endpoint

PAYLOAD = bytes(range(256)) * 2_000  # many TLS records and more than one read


def loop_back(address: Address) -> Message:
    """A large message to ourselves, acknowledged on both ways."""
    events: list[Event] = []
    deadline = Deadline(PATIENCE_S)

    def wait_for(kind: type[Event]) -> None:
        while not any(isinstance(event, kind) for event in events):
            deadline.check()
            events.extend(client.step(1.0)[0])
            assert not any(isinstance(event, Closed) for event in events), events

    with Client(address, Connect(V5, "me", keep_alive=60)) as client:
        while not client.protocol.connected:
            deadline.check()
            events += client.step(1.0)[0]
        client.protocol.subscribe([SubscriptionRequest("a/#", 1)])
        client.protocol.publish("a/b", PAYLOAD, qos=1, tag="first")
        wait_for(Published)
        wait_for(Message)
        [published] = [event for event in events if isinstance(event, Published)]
        assert published.tag == "first"
        [message] = [event for event in events if isinstance(event, Message)]
        client.protocol.acknowledge(message)
    return message


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("has_websocket", [False, True])
def test_a_message_goes_round(tmp_path: Path, has_tls: bool, has_websocket: bool) -> None:
    files = Files(tmp_path)
    listener = endpoint(
        tls=files.rules() if has_tls else None,
        websocket=WebSocketRules() if has_websocket else None,
    )
    with Running(listener) as broker:
        address = Address(
            HOST,
            broker.port,
            tls=tls_context(files.ca) if has_tls else None,
            websocket_path="/mqtt" if has_websocket else None,
        )
        assert loop_back(address).payload == PAYLOAD


def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    files = Files(tmp_path)
    cert, key = files.client("device", files.authority.issue("device"))
    with Running(endpoint(tls=files.mutual())) as broker:
        address = Address(HOST, broker.port, tls=tls_context(files.ca, cert, key))
        assert loop_back(address).payload == PAYLOAD


def test_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with Running(endpoint(tls=files.rules())) as broker:
        address = Address(HOST, broker.port, tls=tls_context())
        with pytest.raises(ClientError, match=r"cannot connect to .*certificate is not trusted"):
            Client(address, Connect(V5, "me"))


def test_a_path_that_is_not_there_is_named() -> None:
    with Running(endpoint(websocket=WebSocketRules())) as broker:
        address = Address(HOST, broker.port, websocket_path="/other")
        with pytest.raises(ClientError, match=r"ws://.*/other is not a WebSocket: .*404"):
            Client(address, Connect(V5, "me"))


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind((HOST, 0))  # bound and not listening
        address = Address(*held.getsockname())
        with pytest.raises(ClientError, match=f"cannot connect to {address}: Connection refused"):
            Client(address, Connect(V5, "me"))


def test_a_deadline() -> None:
    Deadline(None).check()
    Deadline(60.0).check()
    with pytest.raises(TimedOut):
        Deadline(0.0).check()

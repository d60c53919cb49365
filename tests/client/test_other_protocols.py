"""What a server that speaks something else sends first."""

from __future__ import annotations

import pytest

from mqtt_broker.client.other_protocols import other_protocol


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "this is no MQTT port: it answers in HTTP (a WebSocket"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "this is a TLS port: connect to it with TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this is no MQTT port: it answers in SSH"),
    ],
)
def test_it_is_named(first: bytes, says: str) -> None:
    assert other_protocol(first).startswith(says)


@pytest.mark.parametrize("first", [b"", b"\x20\x02\x00\x00", b"H", b"\xff\xff"])
def test_everything_else_is_left_to_the_decoder(first: bytes) -> None:
    assert other_protocol(first) == ""

"""The last packet: only the packet, and only the code, that a client's version knows."""

from __future__ import annotations

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5, V31, V311
from mqtt_broker.core.clients.goodbye import last_packet

BUSY = reasons.SERVER_BUSY
LEVEL = reasons.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("version", "reason", "is_connected", "packet"),
    [
        (V5, BUSY, True, b"\xe0\x01\x89"),  # [MQTT-3.14.2-1], [MQTT-3.14.2-2]
        (V311, BUSY, True, b""),  # [MQTT3-4.8.0-1]
        (V31, BUSY, True, b""),
        (V5, BUSY, False, b"\x20\x03\x00\x89\x00"),  # [MQTT-3.2.2-8]
        (V311, BUSY, False, b"\x20\x02\x00\x03"),
        (V31, BUSY, False, b"\x20\x02\x00\x03"),
        (V311, reasons.NOT_AUTHORIZED, False, b"\x20\x02\x00\x05"),
        (V311, reasons.MALFORMED_PACKET, False, b""),  # 3.1.1 has no code for it
        (0, LEVEL, False, b"\x20\x03\x00\x84\x00"),  # [MQTT-3.1.2-2]
        (0, reasons.MALFORMED_PACKET, False, b""),  # nothing is known of who sent it
        (V311, LEVEL, False, b"\x20\x02\x00\x01"),
    ],
)
def test_last_packet(version: int, reason: int, is_connected: bool, packet: bytes) -> None:
    assert last_packet(version, reason, is_connected=is_connected) == packet


def test_a_client_id_that_is_malformed_closes_without_a_code() -> None:
    reason = reasons.CLIENT_IDENTIFIER_NOT_VALID
    assert last_packet(V311, reason, is_connected=False) == b""
    assert last_packet(V5, reason, is_connected=False) == b"\x20\x03\x00\x85\x00"

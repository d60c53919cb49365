"""The packet that tells a client why its connection ends."""

from __future__ import annotations

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_connack, encode_disconnect


def last_packet(version: int, reason: int, *, is_connected: bool) -> bytes:
    """Encode a reason code as the packet that may carry it; empty when there is none.

    [MQTT-3.2.2-8], [MQTT-3.14.2-1]. We send no Reason String and no User Property of our own,
    here or elsewhere, whatever Request Problem Information says. [MQTT-3.1.2-29]
    """
    if is_connected:  # CONNACK 0x00 was sent. [MQTT-3.14.0-1]
        if version == V5:  # 3.1.1 gets the close alone. [MQTT3-4.8.0-1]
            return encode_disconnect(V5, reason)  # no properties. [MQTT-3.14.2-2]
    elif version == V5 or (not version and reason == reasons.UNSUPPORTED_PROTOCOL_VERSION):
        # To a level that is neither of 3.x nor 5, MQTT 5's form names the reason. [MQTT-3.1.2-2]
        return encode_connack(V5, False, reason)
    elif version:
        code = reasons.connack_v3(reason)
        if code is not None and reason != reasons.CLIENT_IDENTIFIER_NOT_VALID:
            return encode_connack(version, False, code)
    return b""

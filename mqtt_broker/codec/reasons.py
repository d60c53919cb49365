"""Reason codes: their numbers and names, and the packets that may carry them."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec.constants import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
REAUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

_ACKS: Final = (PUBACK, PUBREC)
_SUBS: Final = (SUBACK, UNSUBACK)

# Code -> name and the packets that may carry it, as in table 2-6 of the specification.
TABLE: Final[dict[int, tuple[str, frozenset[int]]]] = {
    0x00: (
        "Success",
        frozenset({CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK, AUTH, SUBACK, DISCONNECT}),
    ),
    0x01: ("Granted QoS 1", frozenset({SUBACK})),
    0x02: ("Granted QoS 2", frozenset({SUBACK})),
    0x04: ("Disconnect with Will Message", frozenset({DISCONNECT})),
    0x10: ("No matching subscribers", frozenset(_ACKS)),
    0x11: ("No subscription existed", frozenset({UNSUBACK})),
    0x18: ("Continue authentication", frozenset({AUTH})),
    0x19: ("Re-authenticate", frozenset({AUTH})),
    0x80: ("Unspecified error", frozenset({CONNACK, *_ACKS, *_SUBS, DISCONNECT})),
    0x81: ("Malformed Packet", frozenset({CONNACK, DISCONNECT})),
    0x82: ("Protocol Error", frozenset({CONNACK, DISCONNECT})),
    0x83: ("Implementation specific error", frozenset({CONNACK, *_ACKS, *_SUBS, DISCONNECT})),
    0x84: ("Unsupported Protocol Version", frozenset({CONNACK})),
    0x85: ("Client Identifier not valid", frozenset({CONNACK})),
    0x86: ("Bad User Name or Password", frozenset({CONNACK})),
    0x87: ("Not authorized", frozenset({CONNACK, *_ACKS, *_SUBS, DISCONNECT})),
    0x88: ("Server unavailable", frozenset({CONNACK})),
    0x89: ("Server busy", frozenset({CONNACK, DISCONNECT})),
    0x8A: ("Banned", frozenset({CONNACK})),
    0x8B: ("Server shutting down", frozenset({DISCONNECT})),
    0x8C: ("Bad authentication method", frozenset({CONNACK, DISCONNECT})),
    0x8D: ("Keep Alive timeout", frozenset({DISCONNECT})),
    0x8E: ("Session taken over", frozenset({DISCONNECT})),
    0x8F: ("Topic Filter invalid", frozenset({*_SUBS, DISCONNECT})),
    0x90: ("Topic Name invalid", frozenset({CONNACK, *_ACKS, DISCONNECT})),
    0x91: ("Packet Identifier in use", frozenset({*_ACKS, *_SUBS})),
    0x92: ("Packet Identifier not found", frozenset({PUBREL, PUBCOMP})),
    0x93: ("Receive Maximum exceeded", frozenset({DISCONNECT})),
    0x94: ("Topic Alias invalid", frozenset({DISCONNECT})),
    0x95: ("Packet too large", frozenset({CONNACK, DISCONNECT})),
    0x96: ("Message rate too high", frozenset({DISCONNECT})),
    0x97: ("Quota exceeded", frozenset({CONNACK, *_ACKS, SUBACK, DISCONNECT})),
    0x98: ("Administrative action", frozenset({DISCONNECT})),
    0x99: ("Payload format invalid", frozenset({CONNACK, *_ACKS, DISCONNECT})),
    0x9A: ("Retain not supported", frozenset({CONNACK, DISCONNECT})),
    0x9B: ("QoS not supported", frozenset({CONNACK, DISCONNECT})),
    0x9C: ("Use another server", frozenset({CONNACK, DISCONNECT})),
    0x9D: ("Server moved", frozenset({CONNACK, DISCONNECT})),
    0x9E: ("Shared Subscriptions not supported", frozenset({SUBACK, DISCONNECT})),
    0x9F: ("Connection rate exceeded", frozenset({CONNACK, DISCONNECT})),
    0xA0: ("Maximum connect time", frozenset({DISCONNECT})),
    0xA1: ("Subscription Identifiers not supported", frozenset({SUBACK, DISCONNECT})),
    0xA2: ("Wildcard Subscriptions not supported", frozenset({SUBACK, DISCONNECT})),
}

# The codes that a client may send in DISCONNECT; the others in the table are for servers.
CLIENT_DISCONNECT: Final = frozenset(
    {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)

# The five return codes of refusals in CONNACK of 3.1 and 3.1.1.
_CONNACK_V3: Final = {
    UNSUPPORTED_PROTOCOL_VERSION: 0x01,
    CLIENT_IDENTIFIER_NOT_VALID: 0x02,
    SERVER_UNAVAILABLE: 0x03,
    SERVER_BUSY: 0x03,
    QUOTA_EXCEEDED: 0x03,
    CONNECTION_RATE_EXCEEDED: 0x03,
    BAD_USER_NAME_OR_PASSWORD: 0x04,
    NOT_AUTHORIZED: 0x05,
    BANNED: 0x05,
}


def name(code: int) -> str:
    return TABLE[code][0] if code in TABLE else f"0x{code:02X}"


def may_carry(packet_type: int, code: int) -> bool:
    return code in TABLE and packet_type in TABLE[code][1]


def connack_v3(code: int) -> int | None:
    """Return the 3.1.1 return code of a refusal, or None if 3.1.1 only closes."""
    return _CONNACK_V3.get(code)

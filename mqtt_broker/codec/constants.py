"""Constants of the wire format: packet types, protocol versions, first bytes, sizes."""

from __future__ import annotations

from typing import Final

# Protocol versions, as encoded in CONNECT.
V31: Final = 3
V311: Final = 4
V5: Final = 5

# Packet types: the high four bits of the first byte.
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

# Not a packet type of its own: the property section of a Will inside CONNECT.
WILL: Final = 16

PACKET_NAMES: Final = {
    CONNECT: "connect",
    CONNACK: "connack",
    PUBLISH: "publish",
    PUBACK: "puback",
    PUBREC: "pubrec",
    PUBREL: "pubrel",
    PUBCOMP: "pubcomp",
    SUBSCRIBE: "subscribe",
    SUBACK: "suback",
    UNSUBSCRIBE: "unsubscribe",
    UNSUBACK: "unsuback",
    PINGREQ: "pingreq",
    PINGRESP: "pingresp",
    DISCONNECT: "disconnect",
    AUTH: "auth",
}

# First bytes of packets whose flags are fixed. [MQTT-2.1.3-1]
PUBACK_FIRST: Final = 0x40
PUBREC_FIRST: Final = 0x50
PUBREL_FIRST: Final = 0x62
PUBCOMP_FIRST: Final = 0x70

REMAINING_LENGTH_MAX: Final = 268_435_455
VARINT_BYTES_MAX: Final = 4
STRING_BYTES_MAX: Final = 65_535
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
NEVER_EXPIRES: Final = 0xFFFF_FFFF

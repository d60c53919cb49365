"""Packet streams that are nearly right: made from a seed, and changed in a way that keeps them so.

A fuzzer that flips bytes hardly ever gets past a length; this one cuts a stream into packets,
changes, doubles, drops, swaps and joins them, and mends the lengths most of the time.
"""

from __future__ import annotations

import random
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31, V311
from mqtt_broker.codec.encode import encode_ack, encode_from_client, encode_publish
from mqtt_broker.codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import Kind, Properties
from mqtt_broker.codec.strings import encode_varint

TOPICS: Final = ("a", "a", "a/b", "a/b", "a/b/c", "$SYS/x", "/", "w", "ö/漢")
FILTERS: Final = ("a", "#", "+", "a/#", "+/b", "$share/g/a", "$share/g/#", "$share/h/+", "a/b")
INTERESTING: Final = (0, 1, 2, 0x7F, 0x80, 0xFF)
NUMBERS: Final = (0, 1, 2, 10, 127, 128, 65_535, 0xFFFF_FFFF)


def properties(rng: random.Random, packet: int) -> Properties:
    """A few that belong to the packet, in any order."""
    found = Properties()
    rows = [(key, row) for key, row in prop.TABLE.items() if packet in row.packets]
    for key, row in rng.sample(rows, min(len(rows), rng.choice((0, 0, 1, 1, 2, 3)))):
        if row.kind is Kind.PAIR:
            found[key] = [("k", "v")] * rng.randint(1, 3)
        elif row.kind is Kind.STRING:
            found[key] = rng.choice(("x", "m", "a/b"))
        elif row.kind is Kind.BINARY:
            found[key] = rng.choice((b"", b"x"))
        elif row.kind is Kind.VARINT:
            found[key] = [rng.choice((1, 2, 127, 128, 16_384, 268_435_455))]
        else:
            top = min(row.high, (1 << 8 * row.kind.value) - 1)
            found[key] = min(top, max(row.low, rng.choice(NUMBERS)))
    return found


def connect(rng: random.Random, version: int) -> bytes:
    found = properties(rng, 1) if version == V5 else Properties()
    if prop.AUTHENTICATION_DATA in found or rng.random() < 0.1:
        found[prop.AUTHENTICATION_METHOD] = "m"
    elif rng.random() < 0.9:
        found.pop(prop.AUTHENTICATION_METHOD, None)
    will = None
    if rng.random() < 0.3:
        more = properties(rng, 16) if version == V5 else Properties()
        will = Will(rng.choice(TOPICS), b"will", rng.randrange(3), rng.random() < 0.3, more)
    packet = Connect(
        version, rng.choice(("one", "two", "")), rng.random() < 0.5, rng.choice((0, 1, 60)), found,
        will, rng.choice((None, "user")),
    )  # fmt: skip
    return encode_from_client(version, packet)


def packet(rng: random.Random, version: int) -> bytes:
    """Any packet of a client."""
    kind = rng.random()
    packet_id = rng.randint(1, 4)
    if kind < 0.35:
        qos = rng.randrange(3)
        found = properties(rng, 3) if version == V5 and rng.random() < 0.4 else Properties()
        topic = rng.choice(TOPICS) if rng.random() < 0.97 else ""
        return encode_publish(
            version, topic, bytes(rng.choice((0, 1, 3, 90))), qos=qos,
            retain=rng.random() < 0.2, dup=qos > 0 and rng.random() < 0.2, packet_id=packet_id,
            properties=found,
        ) * rng.choice((1, 1, 1, 3))  # fmt: skip
    if kind < 0.6:
        reason = rng.choice((0, 0, 0, 0x10, 0x80, 0x92)) if version == V5 else 0
        found = properties(rng, 4) if reason and rng.random() < 0.3 else Properties()
        return encode_ack(
            rng.choice((PUBACK, PUBREC, PUBREL, PUBCOMP)), packet_id, reason, found
        ) * rng.choice((1, 1, 3))
    if kind < 0.78:
        found = properties(rng, 8) if version == V5 and rng.random() < 0.3 else Properties()
        requests = [
            SubscriptionRequest(rng.choice(FILTERS), rng.randrange(3))
            for _ in range(rng.randint(1, 3))
        ]
        return encode_from_client(version, Subscribe(packet_id, requests, found))
    if kind < 0.86:
        texts = [rng.choice(FILTERS) for _ in range(rng.randint(1, 2))]
        return encode_from_client(version, Unsubscribe(packet_id, texts))
    if kind < 0.93:
        return encode_from_client(version, Pingreq())
    if kind < 0.97 or version < V5:
        found = properties(rng, 14) if version == V5 and rng.random() < 0.5 else Properties()
        reason = rng.choice((0, 4)) if version == V5 else 0
        return encode_from_client(version, Disconnect(reason, found))
    return encode_from_client(version, Auth(rng.choice((0x18, 0x19)), properties(rng, 15)))


def stream(rng: random.Random) -> bytes:
    version = rng.choice((V5, V5, V311, V31))
    packets = [connect(rng, version)] if rng.random() < 0.95 else []
    packets += [packet(rng, version) for _ in range(rng.randint(0, 8))]
    return b"".join(packets)


def cut(data: bytes) -> list[bytes]:
    """The packets of a stream; what cannot be cut is the last."""
    packets = []
    at = 0
    while at < len(data):
        length = shift = 0
        place = at + 1
        while place < len(data) and shift < 28:
            length |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:
                break
        end = place + length
        packets.append(data[at:end])
        at = max(end, at + 1)
    return packets


def mend(packet: bytes) -> bytes:
    """The packet with a remaining length that is right."""
    body = cut(packet)[0] if packet else b""
    place = 1
    while place < min(len(body), 5) and body[place] & 0x80:
        place += 1
    rest = packet[place + 1 :]
    return packet[:1] + encode_varint(len(rest)) + rest


def mutate(data: bytes, rng: random.Random) -> bytes:
    packets = cut(data) or [stream(rng)]
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(packets))
        kind = rng.randrange(8)
        if kind == 0:
            packets.insert(place, packets[rng.randrange(len(packets))])
        elif kind == 1 and len(packets) > 1:
            del packets[place]
        elif kind == 2:
            packets.insert(place + 1, packet(rng, rng.choice((V5, V311))))
        elif kind == 3:
            other = rng.randrange(len(packets))
            packets[place], packets[other] = packets[other], packets[place]
        elif packets[place]:
            packets[place] = _spoil(packets[place], rng)
    return b"".join(packets)


def _spoil(packet: bytes, rng: random.Random) -> bytes:
    raw = bytearray(packet)
    at = rng.randrange(len(raw))
    kind = rng.randrange(5)
    if kind == 0:
        raw[at] = rng.choice(INTERESTING)
    elif kind == 1:
        raw[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del raw[at : at + rng.randint(1, 3)]
    elif kind == 3:
        raw[at:at] = bytes(rng.choice(INTERESTING) for _ in range(rng.randint(1, 3)))
    else:
        raw[at:at] = raw[max(0, at - 4) : at]
    return mend(bytes(raw)) if rng.random() < 0.8 and len(raw) > 1 else bytes(raw)

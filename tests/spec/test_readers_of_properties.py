"""Whatever properties a publisher sends, a subscriber gets a packet that it can read.

A broker that forwards what it should have refused disconnects its subscribers: they find the fault.
"""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Publish
from tests.core.peers import V5, V311, World, connect, subscribe
from tests.spec.test_property_matrix import TABLE, packet

SUBSCRIPTION_IDENTIFIER: Final = 0x0B
FORWARDED: Final = {
    key for key, (_, packets) in TABLE.items() if "publish" in packets
} | {SUBSCRIPTION_IDENTIFIER}  # fmt: skip


@pytest.mark.parametrize("kind", ["publish", "will"])
def test_what_a_publisher_sends_every_subscriber_can_read(kind: str) -> None:
    """Each property and each number that is none: refused, or forwarded in a valid PUBLISH."""
    world = World()
    readers = [
        world.client("plain"), world.client("aliases", alias_maximum=10),
        world.client("small", packet_bytes_max=60), world.client("old", V311),
    ]  # fmt: skip
    for reader in readers:
        reader.send(subscribe(reader.version, "t", "w", qos=2))
        if reader.version == V5:
            reader.subscribe("+", qos=1, identifier=268_435_455)
        reader.take()
    delivered = 0
    for number, second in itertools.product(range(128), (None, 0x23, 0x26)):
        values, _ = TABLE.get(number, ([b"", b"\x01", b"\x00\x01a"], set()))
        for value in values:
            properties = bytes([number]) + value
            if second is not None:
                properties += bytes([second]) + TABLE[second][0][0]
            publisher = world.peer()
            if kind == "publish":
                publisher.send(connect("p"), packet("publish", properties))
            else:
                publisher.send(packet("will", properties))
            publisher.drop()
            world.wait(100)
            for reader in readers:
                received = reader.take()
                assert not reader.is_closed
                assert all(isinstance(one, Publish) for one in received), properties
                assert all(one.properties.keys() <= FORWARDED for one in received), properties
                delivered += len(received)
                reader.send(*(encode_ack(PUBACK, one.packet_id) for one in received if one.qos))
    assert delivered > 100

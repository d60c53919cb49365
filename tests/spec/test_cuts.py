"""Random traffic through the core: how the stream is cut changes nothing that peers see."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import constants as c
from mqtt_broker.codec import encode
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from tests.codec.examples import CHECK, wires
from tests.spec.harness import FakeLink, split_packets

Seen = dict[int, list[bytes]]


def by_type(data: bytes) -> Seen:
    packets, rest = split_packets(data)
    assert not rest
    seen: Seen = {}
    for packet in packets:
        seen.setdefault(packet[0] >> 4, []).append(packet)
    return seen


def play(version: int, chunks: list[bytes]) -> tuple[Seen, Seen, bool]:
    """What the talker and a listener to everything were sent, and whether the talker was closed."""
    broker = Broker(Settings(sys_interval_s=0), now=0.0, rng=random.Random(1))
    listener, talker = FakeLink("listener"), FakeLink("talker")
    ear = broker.accept(listener, 0.0)
    dispatch.receive(ear, encode.encode_connect(Connect(version, "ear")), 0.0)
    every = Subscribe(1, [SubscriptionRequest("#", 2)])
    dispatch.receive(ear, encode.encode_subscribe(version, every), 0.0)
    mouth = broker.accept(talker, 0.0)
    for chunk in [encode.encode_connect(Connect(version, "mouth")), *chunks]:
        dispatch.receive(mouth, chunk, 0.0)
        broker.flush(0.0)
    return by_type(bytes(talker.unread)), by_type(bytes(listener.unread)), talker.closed


@given(st.sampled_from([c.V311, c.V5]), st.data(), st.booleans())
@CHECK
def test_cuts_do_not_matter(version: int, data: st.DataObject, damaged: bool) -> None:
    packets = data.draw(st.lists(wires(version), min_size=1, max_size=12))
    if damaged:
        at = data.draw(st.integers(0, len(packets) - 1))
        packets[at] = bytes([data.draw(st.integers(0, 255))]) + packets[at][1:]
        # Whatever length was broken, the stream goes on long enough for it.
        packets += [encode.PINGREQ_BYTES] * 40
    stream = b"".join(packets)
    apart = play(version, packets)
    assert play(version, [stream]) == apart
    assert play(version, [stream[at : at + 1] for at in range(len(stream))]) == apart

"""Bugs planted between a broker and its subscribers are found by the verdict, by their names."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.testing import ThreadedBroker
from tests.iot_sim.crooked import Crook, Proxy, with_packet_id
from tests.iot_sim.fleets import Result, run

TELEMETRY = b"/telemetry."


def load(qos: int, *, count: int = 40, interval_s: float = 0.05, duration_s: float = 2) -> str:
    return f"""
        duration_s = {duration_s}
        drain_s = 3
        [[fleets]]
        name = "all"
        model = "tests.iot_sim.stub_device:Stub"
        count = {count}
        interval_s = {interval_s}
        qos = {qos}
        """


def judged(crook: Crook, text: str) -> Result:
    with ThreadedBroker() as broker, Proxy(broker.port, crook) as proxy:
        return run(text, proxy.port)


class Nth:
    """Does something to the n-th message of telemetry, and to that alone."""

    def __init__(self, number: int, change: Crook) -> None:
        self.number = number
        self.change = change
        self.seen = 0
        self.done = 0

    def __call__(self, packet: bytes) -> list[bytes]:
        if TELEMETRY not in packet:
            return [packet]
        self.seen += 1
        if self.seen == self.number:
            self.done += 1
            return self.change(packet)
        return [packet]


class Swap:
    """Holds one message back until the next of its flow has passed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        self.held: tuple[bytes, bytes] | None = None
        self.done = 0

    def __call__(self, packet: bytes) -> list[bytes]:
        if TELEMETRY not in packet:
            return [packet]
        self.seen += 1
        start = packet.index(b"\x00\x03sim") + 7
        flow = packet[start : packet.index(TELEMETRY, start)]
        if self.seen == self.number:
            self.held = (flow, packet)
            return []
        if self.held is not None and self.held[0] == flow:
            late = self.held[1]
            self.held = None
            self.done += 1
            return [packet, late]
        return [packet]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_honest_proxy_passes(qos: int) -> None:
    result = judged(lambda packet: [packet], load(qos))
    assert result.verdict.passed, result.explain()
    assert result.total("delivered") == result.total("sent") > 100


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_dropped_is_lost(qos: int) -> None:
    crook = Nth(500, lambda packet: [])
    result = judged(crook, load(qos))
    assert crook.done == 1
    assert result.total("lost") == 1
    expected = "lost_qos0_share_max" if qos == 0 else "lost_max"
    assert result.broken == {expected}, result.explain()


def test_one_in_five_thousand_dropped_is_lost() -> None:
    """Not by its share, which nobody would see, but by its number."""

    class EveryFiveThousandth:
        seen = dropped = 0

        def __call__(self, packet: bytes) -> list[bytes]:
            if TELEMETRY in packet:
                self.seen += 1
                if self.seen % 5_000 == 0:
                    self.dropped += 1
                    return []
            return [packet]

    crook = EveryFiveThousandth()
    result = judged(crook, load(1, count=150, interval_s=0.04, duration_s=4))
    assert crook.dropped >= 1
    assert result.total("lost", 1) == crook.dropped
    assert result.broken == {"lost_max"}, result.explain()
    assert len(result.outcome.examples["lost"]) == crook.dropped


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_repeated_is_repeated(qos: int) -> None:
    def twice(packet: bytes) -> list[bytes]:
        return [packet, with_packet_id(packet, 20_000) if qos else packet]

    crook = Nth(500, twice)
    result = judged(crook, load(qos))
    assert crook.done == 1
    assert result.total("repeated") == 1 and result.total("lost") == 0
    assert "repeated_max" in result.broken, result.explain()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_two_swapped_are_out_of_order(qos: int) -> None:
    crook = Swap(500)
    result = judged(crook, load(qos))
    assert crook.done == 1
    assert result.total("reordered") == 1 and result.total("lost") == 0
    assert result.broken == {"reordered_max"}, result.explain()


def test_one_changed_is_altered() -> None:
    def flipped(packet: bytes) -> list[bytes]:
        return [packet[:-1] + bytes([packet[-1] ^ 1])]

    crook = Nth(500, flipped)
    result = judged(crook, load(1))
    assert crook.done == 1
    assert result.broken == {"altered_max"}, result.explain()


def test_a_lower_qos_is_altered() -> None:
    def lowered(packet: bytes) -> list[bytes]:
        at = 1
        while packet[at] >= 0x80:
            at += 1
        at += 1
        topic = 2 + int.from_bytes(packet[at : at + 2], "big")
        body = packet[at : at + topic] + packet[at + topic + 2 :]
        return [bytes([packet[0] & 0xF9]) + encode_varint(len(body)) + body]

    crook = Nth(500, lowered)
    result = judged(crook, load(1))
    assert crook.done == 1
    assert "altered_max" in result.broken, result.explain()

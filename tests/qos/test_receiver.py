"""The inbound side against a model that is nothing but a set."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qos.receiver import Receiver
from tests.property_examples import examples

IDS = st.integers(1, 12)


class ReceiverMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.receiver = Receiver(8)
        self.open: set[int] = set()
        self.held = 0

    @rule(packet_id=IDS)
    def publish(self, packet_id: int) -> None:
        assert self.receiver.on_publish(packet_id) == (packet_id not in self.open)
        self.open.add(packet_id)

    @rule(packet_id=IDS)
    def pubrel(self, packet_id: int) -> None:
        assert self.receiver.on_pubrel(packet_id) == (packet_id in self.open)
        self.open.discard(packet_id)

    @rule(packet_id=IDS)
    def refuse(self, packet_id: int) -> None:
        self.receiver.refuse(packet_id)
        self.open.discard(packet_id)

    @rule(count=st.integers(0, 3))
    def hold(self, count: int) -> None:
        self.receiver.held += count
        self.held += count

    @rule()
    def let_go(self) -> None:
        self.receiver.held = self.held = 0

    @invariant()
    def the_same_is_open(self) -> None:
        assert set(self.receiver.ids) == self.open

    @invariant()
    def the_quota_counts_both(self) -> None:
        under_way = len(self.open) + self.held
        for more in range(4):
            assert self.receiver.over_quota(more) == (under_way + more > 8)


TestReceiver = ReceiverMachine.TestCase
TestReceiver.settings = examples(100, stateful_step_count=40)


@pytest.mark.rule("MQTT-4.3.3-10", "MQTT-4.3.3-12")
def test_once_until_released() -> None:
    receiver = Receiver(20)
    assert [receiver.on_publish(7) for _ in range(3)] == [True, False, False]
    assert [receiver.on_pubrel(7) for _ in range(2)] == [True, False]
    assert receiver.on_publish(7)


@pytest.mark.rule("MQTT-4.3.3-9")
def test_refused_is_new_again() -> None:
    receiver = Receiver(20)
    receiver.on_publish(7)
    receiver.refuse(7)
    assert receiver.on_publish(7)


@pytest.mark.rule("MQTT-3.3.4-7")
def test_the_quota_is_exceeded_by_one_too_many() -> None:
    receiver = Receiver(2)
    receiver.on_publish(1)
    receiver.on_publish(2)
    assert not receiver.over_quota()
    receiver.on_publish(2)
    assert not receiver.over_quota()
    receiver.on_publish(3)
    assert receiver.over_quota()

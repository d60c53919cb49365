"""The buffer of dead letters takes wanted reasons alone, and counts what exceeds its limit."""

from __future__ import annotations

import pytest

from mqtt_broker.core.runtime.dead_letter_buffer import WAITING_MAX, DeadLetterBuffer
from sessions.messages.message import single


def test_wanted_messages_come_out_in_their_order() -> None:
    buffer = DeadLetterBuffer(frozenset({"expired", "queue_full"}))
    first, second = single("a", b"1"), single("b", b"2")
    buffer.add("expired", first, "one")
    buffer.add("too_large", first, "one")  # not a reason that is wanted
    buffer.add("queue_full", second, "two", "5 messages")
    assert len(buffer) == 2
    assert buffer.pop() == ("expired", first, "one", "")
    assert buffer.pop() == ("queue_full", second, "two", "5 messages")
    assert len(buffer) == 0


@pytest.mark.parametrize("topic", ["$dlq/expired/a", "$SYS/broker/uptime"])
def test_the_brokers_own_messages_are_no_dead_letters(topic: str) -> None:
    buffer = DeadLetterBuffer(frozenset({"expired"}))
    buffer.add("expired", single(topic, b""), "one")
    assert len(buffer) == 0 and buffer.take_overflow() == 0


def test_what_exceeds_the_limit_is_counted_once() -> None:
    buffer = DeadLetterBuffer(frozenset({"expired"}))
    for number in range(WAITING_MAX + 2):
        buffer.add("expired", single("a", b"%d" % number), "one")
    buffer.add("unwanted", single("a", b""), "one")
    kept = [buffer.pop()[1].payload for _ in range(len(buffer))]
    assert kept == [b"%d" % number for number in range(WAITING_MAX)]
    assert buffer.take_overflow() == 2
    assert buffer.take_overflow() == 0

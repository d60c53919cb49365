"""The throttle of a client's outbox: it pays for what was written, shuts, and opens by a timer."""

from __future__ import annotations

from mqtt_broker.codec.constants import PINGRESP
from mqtt_broker.core.clients.send_throttle import SendThrottle
from mqtt_broker.core.limits.token_bucket import TokenBucket
from tests.core.peers import World, publish


class Link:
    """A link that keeps what is written, and a client that is shut and opened."""

    def __init__(self, messages_per_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        self.world = World()
        self.written: list[bytes] = []
        self.may_shut = True
        self.opened: list[float] = []
        self.asked = 0
        runtime = self.world.broker.runtime
        bucket = TokenBucket(messages_per_s, bytes_per_s)
        self.throttle = SendThrottle(bucket, runtime, self._write, self._shut, self.opened.append)
        self.turn()

    def _write(self, data: bytes) -> int:
        self.written.append(data)
        return 7

    def _shut(self) -> bool:
        self.asked += 1
        return self.may_shut

    def turn(self, seconds: float = 0.0) -> None:
        """The time goes on, and with it the outboxes' clock."""
        self.world.wait(seconds)
        self.world.broker.runtime.outboxes.flush(self.world.now)

    def is_shut(self) -> bool:
        return self.throttle.is_shut

    @property
    def throttled(self) -> int:
        return self.world.broker.counters.throttled


MESSAGE = publish("t", b"x" * 20)


def test_it_shuts_when_it_owes_and_opens_when_it_has_paid() -> None:
    link = Link(messages_per_s=10)
    assert link.throttle.write(MESSAGE * 10) == 7
    assert not link.is_shut() and link.throttled == 0
    link.throttle.write(MESSAGE * 5)
    assert link.is_shut() and link.throttled == 1
    assert link.written == [MESSAGE * 10, MESSAGE * 5], "what is written is written at once"
    link.turn(0.49)
    assert link.is_shut() and not link.opened
    link.turn(0.02)
    assert not link.is_shut() and len(link.opened) == 1


def test_bytes_are_counted_and_other_packets_are_no_messages() -> None:
    link = Link(messages_per_s=1, bytes_per_s=1_000)
    link.throttle.write(bytes((PINGRESP << 4, 0)) * 100)
    assert not link.is_shut(), "a hundred packets, none of them a message, 200 bytes"
    link.throttle.write(MESSAGE + bytes((PINGRESP << 4, 0)) * 500)
    assert link.is_shut(), "1,000 bytes more"


def test_while_it_is_shut_it_shuts_no_second_time() -> None:
    link = Link(messages_per_s=1)
    link.throttle.write(MESSAGE * 3)
    link.throttle.write(MESSAGE * 3)
    assert (link.throttled, link.asked) == (1, 1)
    link.turn(10.0)
    assert len(link.opened) == 1 and not link.is_shut()
    link.throttle.write(MESSAGE * 3)
    assert (link.throttled, link.asked) == (2, 2)


def test_a_connection_that_may_not_be_throttled_now_is_not() -> None:
    link = Link(messages_per_s=1)
    link.may_shut = False
    link.throttle.write(MESSAGE * 3)
    assert not link.is_shut() and link.throttled == 0
    link.turn(10.0)
    assert not link.opened

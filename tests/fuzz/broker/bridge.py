"""A bridge at the tap: what comes to one topic is published under another at once.

So one publication happens inside another, before that has reached anybody: what each of them
has to be given is recorded with its own.
"""

from __future__ import annotations

from mqtt_broker.codec.packets import Publish
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.inbound.publish import publish
from sessions.messages.message import Envelope, single
from tests.fuzz.broker.facts import BRIDGE, BRIDGED


class Bridge:
    """The only tap, and who knows what it taps."""

    def __init__(self, broker: Broker, source: bytes, target: bytes) -> None:
        self._broker = broker
        self._source = source.decode()
        self._target = target.decode()

    def find(self, topic: str) -> Bridge | None:
        return self if topic == self._source else None

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        return True

    def take(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        publisher = BRIDGE.decode() + envelope.publisher
        for payload in filter(None, payloads):  # those without one all look alike
            message = single(
                self._target, BRIDGED + payload, qos=1, retain=False, publisher=publisher, now=now
            )
            publish(self._broker, message, None, now)

    def take_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        self.take(envelope, run.payloads(), now)

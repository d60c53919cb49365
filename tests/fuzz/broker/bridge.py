"""A log that is a bridge: it publishes the messages of one topic under another at once.

So one publication happens inside another, before that has reached any subscriber. The journal has
to keep the deliveries of the two apart.
"""

from __future__ import annotations

from mqtt_broker.codec.packets import Publish
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.message_log import StreamSubscriptions
from sessions.messages.message import Envelope, single
from tests.fuzz.broker.facts import BRIDGE, BRIDGED


class Bridge:
    """The only topic writer, and the log that finds it."""

    def __init__(self, broker: Broker, source: bytes, target: bytes) -> None:
        self._broker = broker
        self._source = source.decode()
        self._target = target.decode()

    @property
    def subscriptions(self) -> StreamSubscriptions:
        raise AssertionError("clients cannot subscribe to a bridge")

    def find(self, topic: str) -> Bridge | None:
        return self if topic == self._source else None

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        return True

    def append(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        publisher = BRIDGE.decode() + envelope.publisher
        for payload in filter(None, payloads):  # those without one all look alike
            message = single(
                self._target, BRIDGED + payload, qos=1, retain=False, publisher=publisher, now=now
            )
            self._broker.state.router.publish(message, None, now)

    def append_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        self.append(envelope, run.payloads(), now)

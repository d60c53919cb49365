"""The tap door: whoever wants every accepted PUBLISH, beside its subscribers.

The telemetry log is one, a bridge would be another. A tap gets the messages of a topic once,
whatever their QoS and whoever listens. What it takes is on disk with the next group of the
journal, and under `commit` the acknowledgement waits for that group: nothing else in the core
knows that anybody taps.
"""

from __future__ import annotations

from typing import Protocol

from mqtt_broker.codec.packets import Publish
from sessions.messages.message import Envelope


class TopicWriter(Protocol):
    """Takes the messages of some topics."""

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        """Whether it would take all of these. Asked before a promise is made for them."""

    def take(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        """They were accepted. Of QoS 0 what there is no room for is dropped and counted; the
        rest was admitted, and is taken."""

    def take_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        """The same, of QoS 0 as it came: it need not be cut into payloads now."""


class Taps(Protocol):
    """Knows which topics are tapped."""

    def find(self, topic: str) -> TopicWriter | None:
        """Asked once for each topic, until its route is forgotten."""

"""A broker and a network that are not there: devices driven through simulated time.

The driver does what a fleet does to one device, at exactly the times the device asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from iot_sim.devices.device import COMMAND, Device, Publication, Spec
from iot_sim.models.catalogue import make

START: Final = 1_772_668_800.0  # a Thursday in March 2026, 00:00 UTC
DAY_S: Final = 86_400.0


def spec(
    model: str,
    *,
    number: int = 0,
    seed: int = 7,
    interval_s: float = 60.0,
    payload: str = "",
    qos: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Spec:
    return Spec(
        fleet="plant",
        number=number,
        client_id=f"{model}-{number}",
        topic=f"plant/{model}/{number}",
        seed=seed,
        interval_s=interval_s,
        qos=qos,
        payload=payload,
        started_at=START,
        options=dict(options or {}),
    )


@dataclass
class Driver:
    """One device and its link. `said` is all it ever sent, with the time it was sent at."""

    device: Device
    now: float = START
    linked: bool = False
    cut: bool = False  # the network is gone: no connect comes through
    will: Publication | None = None
    said: list[tuple[float, Publication]] = field(default_factory=list)

    @classmethod
    def of(cls, model: str, **asked: Any) -> Driver:
        return cls(make(model, spec(model, **asked)))

    def take(self, messages: Iterable[Publication]) -> None:
        self.said += [(self.now, message) for message in messages]

    def settle(self) -> None:
        """Connects or disconnects, as the device wants."""
        wants = self.device.wants_link(self.now)
        if wants and not self.linked and not self.cut:
            self.will = self.device.will(self.now)
            self.linked = True
            self.take(self.device.on_connected(self.now, session_present=False))
        elif self.linked and not wants:
            self.take(self.device.goodbye(self.now))
            self.linked = False
            self.device.on_disconnected(self.now)

    def lose(self) -> None:
        """The link breaks without a word."""
        self.cut = True
        if self.linked:
            self.linked = False
            self.device.on_disconnected(self.now)

    def run(self, seconds: float, *, late_s: float = 0.0) -> list[Publication]:
        """To so much later; `late_s`: how late the fleet always comes to ask."""
        end = self.now + seconds
        before = len(self.said)
        self.settle()
        while self.device.next_at() + late_s <= end:
            self.now = max(self.now, self.device.next_at() + late_s)
            self.take(self.device.act(self.now))
            self.settle()
        self.now = end
        return [message for _, message in self.said[before:]]

    def wait_for_link(self) -> None:
        """To the next time that it is connected; for those who sleep."""
        self.settle()
        while not self.linked:
            assert self.device.next_at() < self.now + 7 * DAY_S, "it never wants a link again"
            self.run(self.device.next_at() - self.now)

    def tell(
        self, topic: str, payload: bytes, response_topic: str = "", correlation: bytes = b""
    ) -> list[Publication]:
        message = Publication(
            topic, payload, 1, kind=COMMAND, response_topic=response_topic, correlation=correlation
        )
        before = len(self.said)
        self.take(self.device.on_message(message, self.now))
        self.settle()
        return [said for _, said in self.said[before:]]


def digest(messages: Iterable[Publication]) -> str:
    """Of everything that goes over the wire, in order."""
    found = hashlib.sha256()
    for message in messages:
        head = (
            message.topic, message.qos, message.retain, message.kind, message.content_type,
            message.response_topic, message.correlation, message.user, len(message.payload),
        )  # fmt: skip
        found.update(repr(head).encode())
        found.update(message.payload)
    return found.hexdigest()[:16]


def telemetry(messages: Iterable[Publication], last: str = "telemetry") -> Iterator[Publication]:
    return (message for message in messages if message.topic.rpartition("/")[2] == last)

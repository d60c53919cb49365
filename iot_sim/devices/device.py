"""What a device is to the fleet that runs it: the one contract of this room.

A device is pure: no clock, no socket, no chance but its own seed. The fleet tells it what
happens (`on_connected`, `on_message`, ...) and asks what it wants to say and when (`next_at`,
`act`). The same seed and the same events give the same bytes, whatever broker stands between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

TELEMETRY: Final = "telemetry"
BIRTH: Final = "birth"  # it is there, or its state changed: retained as a rule
DEATH: Final = "death"  # wills, and a goodbye in order
COMMAND: Final = "command"
RESPONSE: Final = "response"
BULK: Final = "bulk"  # large payloads
CLASSES: Final = (TELEMETRY, BIRTH, DEATH, COMMAND, RESPONSE, BULK)


@dataclass(slots=True)
class Publication:
    """One message a device wants to send. The fleet adds sequence and send time to it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    kind: str = TELEMETRY  # one of CLASSES: what the verdict counts it under
    content_type: str = ""
    response_topic: str = ""
    correlation: bytes = b""
    user: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Subscription:
    filter: str
    qos: int = 1


@dataclass(slots=True)
class Spec:
    """What a fleet asks of one of its devices; checked before the device is made."""

    fleet: str
    number: int  # within its fleet, from 0
    client_id: str
    topic: str  # the root of its topics, without a slash at the end
    seed: int
    interval_s: float  # between two messages of telemetry, as the scenario wants it
    qos: int = 0
    payload: str = ""  # json, cbor, sparkplug, or template; empty: what the model speaks first
    started_at: float = 0.0  # simulated wall-clock time, seconds since 1970
    options: Mapping[str, Any] = field(default_factory=dict)  # the model's own keys


class Device(Protocol):
    """One device. Every `now` is simulated wall-clock time and never runs backwards.

    `next_at` and `wants_link` may have changed after each call of another method. What a
    device measures follows from when it was due, not from when the fleet came to ask.
    """

    spec: Spec

    def will(self, now: float) -> Publication | None:
        """What the broker says when the device is lost; asked before each connect."""

    def will_delay_s(self) -> int:
        """Will Delay Interval."""

    def subscriptions(self) -> list[Subscription]:
        """What it listens to; made when there was no session."""

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        """Births and what it kept while it was away."""

    def on_disconnected(self, now: float) -> None:
        """The link is gone; from now on it measures without sending, or sleeps."""

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        """A command or another message it listens to; answers, and what changes by it."""

    def next_at(self) -> float:
        """When it wants to act next; infinity: only when something happens."""

    def act(self, now: float) -> list[Publication]:
        """Measure, and say what there is to say. Called at `next_at`, connected or not."""

    def pace(self, factor: float, now: float) -> None:
        """The load shape: it measures this many times as often as it was told; 0: it pauses."""

    def wants_link(self, now: float) -> bool:
        """Whether it wants to be connected; a sleeper says no between its reports."""

    def goodbye(self, now: float) -> list[Publication]:
        """What it sends before it disconnects in order."""

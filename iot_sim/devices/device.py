"""The contract between a device model and the fleet that runs it.

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
    """A message that a device sends. The fleet adds a sequence number and the time of sending."""

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
    """The specification of one device of a fleet, checked before the device is made."""

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
    """A simulated device. Each `now` is simulated wall-clock time and never runs backwards.

    `next_at` and `wants_link` may have changed after each call of another method. What a
    device measures follows from when it was due, not from when the fleet came to ask.
    """

    spec: Spec

    def will(self, now: float) -> Publication | None:
        """Return the will of the next connection, or None."""

    def will_delay_s(self) -> int:
        """Will Delay Interval."""

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions to make when the broker has no session."""

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        """Return births, and the messages that were kept while the link was down."""

    def on_disconnected(self, now: float) -> None:
        """Note that the link is down: from now on measure without sending, or sleep."""

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        """Act on a command or another message; return the answer and its further effects."""

    def next_at(self) -> float:
        """Return the time of the next action; infinity where the device only reacts."""

    def act(self, now: float) -> list[Publication]:
        """Measure, and say what there is to say. Called at `next_at`, connected or not."""

    def pace(self, factor: float, now: float) -> None:
        """Apply the load shape: measure `factor` times as often as configured; 0: pause."""

    def wants_link(self, now: float) -> bool:
        """Tell whether the device wants to be connected; a sleeper does not between reports."""

    def goodbye(self, now: float) -> list[Publication]:
        """Return the publications that precede a DISCONNECT."""

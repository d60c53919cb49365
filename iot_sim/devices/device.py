"""The contract between a device model and the fleet that runs it.

A device is pure: no clock, no socket, no randomness but that of its seed. The fleet reports
events to it (`on_connected`, `on_message`, ...) and asks when it acts and what it publishes
(`next_at`, `act`). The same seed and the same events give the same bytes with every broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

TELEMETRY: Final = "telemetry"
BIRTH: Final = "birth"  # online, or its state changed; usually retained
DEATH: Final = "death"  # wills, and the last message before a DISCONNECT
COMMAND: Final = "command"
RESPONSE: Final = "response"
BULK: Final = "bulk"  # large payloads
CLASSES: Final = (TELEMETRY, BIRTH, DEATH, COMMAND, RESPONSE, BULK)


@dataclass(slots=True)
class Publication:
    """A message that a device publishes. The fleet adds a sequence number and the send time."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    kind: str = TELEMETRY  # one of CLASSES; the verdict counts each class apart
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
    interval_s: float  # between two telemetry messages
    qos: int = 0
    payload: str = ""  # json, cbor, sparkplug, or template; empty: the model's default
    started_at: float = 0.0  # simulated wall-clock time, seconds since 1970
    options: Mapping[str, Any] = field(default_factory=dict)  # the model's own keys


class Device(Protocol):
    """A simulated device. Each `now` is simulated wall-clock time and never runs backwards.

    Each call of another method may change what `next_at` and `wants_link` return. A measurement
    depends on the time at which it was due, not on the time of the call.
    """

    spec: Spec

    def will(self, now: float) -> Publication | None:
        """Return the will of the next connection, or None."""

    def will_delay_s(self) -> int:
        """Return the Will Delay Interval, in seconds."""

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions to make when the broker has no session."""

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        """Return births, and the messages buffered while offline."""

    def on_disconnected(self, now: float) -> None:
        """Note the end of the connection; from now on buffer what is measured, or sleep."""

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        """Act on a command or another message; return the response and what else to publish."""

    def next_at(self) -> float:
        """Return the time of the next action; infinity where the device only reacts."""

    def act(self, now: float) -> list[Publication]:
        """Measure; return what to publish. Called at `next_at`, connected or not."""

    def pace(self, factor: float, now: float) -> None:
        """Apply the load shape: measure `factor` times as often as configured; 0: pause."""

    def wants_link(self, now: float) -> bool:
        """Tell whether the device wants to be connected; in deep sleep it does not."""

    def goodbye(self, now: float) -> list[Publication]:
        """Return the publications that precede a DISCONNECT."""

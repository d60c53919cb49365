"""The objects that a client is made with: its options, its owner, and the shared context."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from iot_sim.devices.device import Publication
from iot_sim.fleet.engine import Engine, Target
from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import Ledger
from iot_sim.judge.outcome import ERRORS_MAX
from mqtt_broker.codec.constants import RECEIVE_MAXIMUM_DEFAULT, V5
from mqtt_broker.codec.packets import Publish


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client: its id, and how it connects and reconnects."""

    client_id: str
    version: int = V5
    keep_alive_s: int = 60
    session_expiry_s: int = 0
    receive_maximum: int = RECEIVE_MAXIMUM_DEFAULT
    topic_alias: bool = False
    backoff_min_s: float = 1.0
    backoff_max_s: float = 60.0
    jitter: float = 0.5


@dataclass(slots=True)
class FleetContext:
    """The engine, target, ledger and counters that all clients of a process share."""

    engine: Engine
    target: Target
    address: tuple[int, Any]
    ledger: Ledger
    rng: random.Random
    counters: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    connect_latency: Histogram = field(default_factory=Histogram)
    retained: set[str] = field(default_factory=set)  # topics with a message of this run
    online: int = 0
    are_observers_online: bool = (
        True  # all observers are there: no broker has to keep QoS 0 for them
    )

    def error(self, counter: str, text: str) -> None:
        self.counters[counter] += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(text)


class ClientOwner(Protocol):
    """The owner of a client, which decides what the client does."""

    def will(self) -> tuple[Publication, int] | None:
        """Return the will of the next connection and its delay."""

    def on_online(self, session_present: bool) -> None: ...

    def on_offline(self) -> None:
        """Note the end of a connection; `wants_link` decides whether the client reconnects."""

    def wants_link(self) -> bool: ...

    def on_message(self, run: Publish, payload: bytes, now_us: int) -> None: ...

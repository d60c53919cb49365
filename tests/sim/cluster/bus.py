"""A bus that loses, repeats, delays and reorders frames, or is away. Numbers are its addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mqtt_broker.cluster.claims import Claims
from tests.sim.cluster.events import Events

DELAYS_S: Final = (0.0002, 0.0005, 0.002)
LATE_S: Final = (0.05, 1.0, 10.0)

Frame = Callable[[Claims], None]  # what it does to the number that it reaches


@dataclass(frozen=True, slots=True)
class Quality:
    lost: float
    repeated: float
    late: float


QUALITIES: Final = (
    Quality(0.0, 0.0, 0.0),
    Quality(0.02, 0.02, 0.02),
    Quality(0.3, 0.3, 0.3),
    Quality(1.0, 0.0, 0.0),
)


class SimulatedBus:
    """Calls `deliver` for each frame that arrives, with the number that it is for."""

    def __init__(self, events: Events, deliver: Callable[[int, Frame], None]) -> None:
        self._events = events
        self._deliver = deliver
        self.quality = events.rng.choice(QUALITIES)
        self.is_up = True

    def send(self, number: int, frame: Frame) -> None:
        rng, quality = self._events.rng, self.quality
        if not self.is_up or rng.random() < quality.lost:
            return
        for _ in range(1 + (rng.random() < quality.repeated)):
            delay_s = rng.choice(LATE_S if rng.random() < quality.late else DELAYS_S)
            self._events.after(delay_s, lambda: self._deliver(number, frame))

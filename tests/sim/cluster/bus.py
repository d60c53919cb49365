"""A bus that loses, repeats, delays and reorders frames, or is away. Numbers are its addresses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mqtt_broker.cluster.frames.layout import FrameKey
from mqtt_broker.cluster.frames.reader import Frame, FrameReader
from mqtt_broker.cluster.frames.writer import FrameWriter
from tests.sim.cluster.events import Events

DELAYS_S: Final = (0.0002, 0.0005, 0.002)
LATE_S: Final = (0.05, 1.0, 10.0)

Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class Quality:
    lost: float
    repeated: float
    late: float


WHOLE: Final = Quality(0.0, 0.0, 0.0)
AWAY: Final = Quality(1.0, 0.0, 0.0)
QUALITIES: Final = (WHOLE, Quality(0.02, 0.02, 0.02), Quality(0.3, 0.3, 0.3), AWAY)


class SimulatedBus(Generic[Sent]):
    """Calls `deliver` for each frame that arrives, with the number that it is for."""

    def __init__(self, events: Events, deliver: Callable[[int, Sent], None]) -> None:
        self._events = events
        self._deliver = deliver
        self.quality = events.rng.choice(QUALITIES)
        self.is_up = True
        self._last_at: dict[int, float] = {}  # by number, when the last frame arrives

    def send(self, number: int, frame: Sent) -> None:
        rng, quality = self._events.rng, self.quality
        if not self.is_up or rng.random() < quality.lost:
            return
        for _ in range(1 + (rng.random() < quality.repeated)):
            delay_s = rng.choice(LATE_S if rng.random() < quality.late else DELAYS_S)
            if quality is WHOLE:
                delay_s = self._in_order(number, delay_s)
            self._events.after(delay_s, lambda: self._deliver(number, frame))

    def _in_order(self, number: int, delay_s: float) -> float:
        """Return a delay after which a frame overtakes no other."""
        now = self._events.now
        self._last_at[number] = max(self._last_at.get(number, 0.0) + 1e-6, now + delay_s)
        return self._last_at[number] - now


class ProcessBus:
    """The bus as one process has it: what crosses are the bytes of real frames."""

    def __init__(self, bus: SimulatedBus[bytes]) -> None:
        self._bus = bus
        self._key = FrameKey("fleet", bytes(16))
        self._own: dict[int, str] = {}
        self._writers: dict[int, FrameWriter] = {}
        self._reader = FrameReader(self._key)

    def set_hosts(self, epochs: Mapping[int, str], own: Collection[int]) -> None:
        """Learn the epoch of each number that is hosted, and which of them this process hosts."""
        mine = {number: epochs[number] for number in own}
        others = {number: epoch for number, epoch in epochs.items() if number not in mine}
        self._reader.set_hosted(mine)
        self._reader.set_senders(others)
        for number, epoch in mine.items():
            if self._own.get(number) != epoch:
                self._writers[number] = FrameWriter(self._key, number, epoch)
            self._writers[number].set_receivers(others)
        self._own = mine

    def send(self, sender: int, epoch: str, kind: int, to: int, body: bytes) -> bool:
        """Send a frame of a number that is hosted here under this epoch; False: it is dropped."""
        if self._own.get(sender) != epoch or not self._bus.is_up:
            return False
        data = self._writers[sender].write(kind, to, body)
        if data is None:
            return False
        self._bus.send(to, data)
        return True

    def read(self, data: bytes) -> Frame | None:
        """Return a frame that this process takes."""
        found = self._reader.read(data)
        return found if isinstance(found, Frame) else None

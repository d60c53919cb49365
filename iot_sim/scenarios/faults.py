"""Faults on purpose: what breaks, for whom, and when. Planning is pure and follows from the seed.

link_loss   the connection breaks without a word; the network is away for `for_s`
half_open   nothing passes any more, without an error: the client finds out by its keep
            alive, the broker by its own, unless the client is back before
stall       nothing passes for `for_s`, then everything that waited does
slow_reader the client reads `bytes_per_s` at most for `for_s`
takeover    a twin connects under the same client id: the broker must end the old connection
kill        the device dies with all it had in memory, and returns after `for_s`
storm       everybody is thrown out at once and comes back without waiting
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

LINK_LOSS: Final = "link_loss"
HALF_OPEN: Final = "half_open"
STALL: Final = "stall"
SLOW_READER: Final = "slow_reader"
TAKEOVER: Final = "takeover"
KILL: Final = "kill"
STORM: Final = "storm"
KINDS: Final = (LINK_LOSS, HALF_OPEN, STALL, SLOW_READER, TAKEOVER, KILL, STORM)
OBSERVERS: Final = "observers"  # in place of a fleet's name: the simulator's own subscribers


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    fleet: str = ""  # empty: every fleet
    share: float = 0.1  # of the devices, drawn anew each time
    at_s: float = 0.0
    every_s: float = 0.0  # 0: once
    spread_s: float = 0.0  # the victims are hit over this time, not at once
    for_s: float = 5.0
    bytes_per_s: int = 1000

    def scaled(self, factor: float) -> Fault:
        """Return the fault for a run that takes `factor` times as long.

        It lasts a second at least, or what it lasted: shorter, and nobody would notice.
        """
        return Fault(
            self.kind,
            self.fleet,
            self.share,
            self.at_s * factor,
            self.every_s * factor,
            self.spread_s * factor,
            max(min(self.for_s, 1.0), self.for_s * min(1.0, factor)),
            self.bytes_per_s,
        )


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that hits one device at one time."""

    at_s: float
    number: int
    fault: Fault


def plan(fault: Fault, count: int, duration_s: float, seed: int) -> list[Hit]:
    """Return every hit of a fault on a fleet of `count`, in order of time.

    All workers draw the same plan and each takes the devices that are its own.
    """
    chance = random.Random(seed)
    victims = min(count, max(1, round(count * fault.share)))
    hits: list[Hit] = []
    at = fault.at_s
    while at < duration_s:
        for number in chance.sample(range(count), victims):
            late = chance.random() * fault.spread_s
            if at + late < duration_s:
                hits.append(Hit(at + late, number, fault))
        if not fault.every_s:
            break
        at += fault.every_s
    hits.sort(key=lambda hit: (hit.at_s, hit.number))
    return hits

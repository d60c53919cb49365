"""Injected faults: what fails, on which devices, and when. Pure: the seed decides.

link_loss   the connection is reset, and the network is down for `for_s`
half_open   no data passes any more, without an error: client and broker notice it by keep alive,
            unless the client has reconnected before
stall       no data passes for `for_s`; then everything that waited does
slow_reader the client reads at most `bytes_per_s` for `for_s`
takeover    a second connection with the same client id: the broker must end the first
kill        the device loses its state, and returns after `for_s` with a clean start
storm       all devices are disconnected at once and reconnect without back-off
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
OBSERVERS: Final = "observers"  # in place of a fleet: the simulator's own subscribers


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    fleet: str = ""  # empty: every fleet
    share: float = 0.1  # of the devices, drawn anew each time
    at_s: float = 0.0
    every_s: float = 0.0  # 0: once
    spread_s: float = 0.0  # time over which the chosen devices fail, one after another
    for_s: float = 5.0
    bytes_per_s: int = 1000

    def scaled(self, factor: float) -> Fault:
        """Return the fault for a run that takes `factor` times as long.

        A fault is not shortened below one second, so that it still has an effect.
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
class PlannedFault:
    """A fault of one device at one time."""

    at_s: float
    number: int
    fault: Fault


def plan(fault: Fault, count: int, duration_s: float, seed: int) -> list[PlannedFault]:
    """Return the faults of all devices of a fleet of `count`, in the order of time.

    All worker processes make the same plan, and each injects the faults of its own devices.
    """
    rng = random.Random(seed)
    affected = min(count, max(1, round(count * fault.share)))
    planned: list[PlannedFault] = []
    at = fault.at_s
    while at < duration_s:
        for number in rng.sample(range(count), affected):
            late = rng.random() * fault.spread_s
            if at + late < duration_s:
                planned.append(PlannedFault(at + late, number, fault))
        if not fault.every_s:
            break
        at += fault.every_s
    planned.sort(key=lambda one: (one.at_s, one.number))
    return planned

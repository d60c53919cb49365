"""How long messages take from number to number, and what is read when nothing happens.

`python -m tests.sim.cluster.crossing` prints it, with the bus and without. Time is simulated: a
statement takes 0.1 to 1 ms, a frame 0.2 to 2 ms, and the standby answers after 1 to 10 ms.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from tests.sim.cluster.bus import AWAY, WHOLE, Quality
from tests.sim.cluster.core import Core
from tests.sim.cluster.message_clients import Publisher, Subscription, Visitor
from tests.sim.cluster.messages import MessagesWorld, Probe

SEED: Final = 3  # a world of two numbers whose standby is quick
MESSAGES: Final = 200
IDLE_S: Final = 60.0
TOPIC: Final = "measured"


@dataclass(frozen=True, slots=True)
class Crossing:
    """Delays of messages at QoS 0 and 1, and transactions that read, of a number in a second."""

    delays_s: dict[int, list[float]]
    lost: int
    reads: float


def measure(quality: Quality, messages: int = MESSAGES) -> Crossing:
    """Send messages from one number to another, and then none."""
    world = MessagesWorld(SEED)
    assert len(world.processes) == 2 and world.database.standby_delay_s_max == 0.01
    world.is_troubled = False
    world.bus.quality = quality
    world.calm_down()
    publisher, visitor = Publisher(world, "p", 1), Visitor(world, "v", 2)
    visitor.history.append(Subscription(TOPIC, world.events.now))
    world.events.run_until(world.events.now + 20)
    probes: list[Probe] = []
    content = world.processes[1].hosts[1].content
    assert isinstance(content, Core)
    for n in range(messages):
        publisher.goal += 1
        probes.append(Probe(publisher.send(content, TOPIC, n % 2), publisher, visitor))
        publisher.ask(content)
        world.processes[1].wake(1)
        world.events.run_until(world.events.now + world.rng.random() * 2)
    world.events.run_until(world.events.now + 5)
    before = world.reads
    world.events.run_until(world.events.now + IDLE_S)
    delays: dict[int, list[float]] = {0: [], 1: []}
    for probe in probes:
        if probe.delay_s is not None:
            delays[probe.sent.message.qos].append(probe.delay_s)
    lost = messages - sum(map(len, delays.values()))
    return Crossing(delays, lost, (world.reads - before) / IDLE_S / len(world.processes))


def main() -> int:
    for name, quality in (("bus", WHOLE), ("no bus", AWAY)):
        found = measure(quality)
        for qos, delays in found.delays_s.items():
            if delays:
                delays.sort()
                p50, p99 = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
                text = f"QoS {qos} after {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
                sys.stdout.write(f"{name}: {text}\n")
        sys.stdout.write(f"{name}: {found.lost} lost, {found.reads:.2f} reads a second\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

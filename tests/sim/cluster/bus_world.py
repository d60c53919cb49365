"""Processes over one database that send each other frames over a bus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqtt_broker.cluster.node_row import FREE, NodeRow
from tests.sim.cluster.bus import ProcessBus, SimulatedBus
from tests.sim.cluster.core import Core
from tests.sim.cluster.faults import FaultyWorld
from tests.sim.cluster.process import Process


class Publishing(Protocol):
    """A client that publishes until it has reached its goal."""

    goal: int


class BusWorld(FaultyWorld):
    """A world whose numbers are cores, with a bus among what can go wrong."""

    def __init__(self, seed: int, keys: dict[str, tuple[str, ...]]) -> None:
        self._buses: dict[Process, ProcessBus] = {}
        super().__init__(seed, keys)
        self.is_troubled = True  # faults go on
        self.bus: SimulatedBus[bytes] = SimulatedBus(self.events, self._deliver)

    def bus_of(self, process: Process) -> ProcessBus:
        if process not in self._buses:
            self._buses[process] = ProcessBus(self.bus)
        return self._buses[process]

    def on_rows(self, process: Process, rows: list[NodeRow]) -> None:
        epochs = {row.number: row.epoch for row in rows if row.epoch != FREE}
        hosted = process.node.membership.hosted
        own = [number for number, epoch in hosted.items() if epochs.get(number) == epoch]
        self.bus_of(process).set_hosts(epochs, own)

    def _deliver(self, number: int, data: bytes) -> None:
        for process in self.processes.values():
            process.call(partial(self._receive, process, data))

    def _receive(self, process: Process, data: bytes) -> None:
        frame = self.bus_of(process).read(data)
        host = process.hosts.get(frame.to) if frame is not None else None
        if frame is None or host is None:
            return
        assert isinstance(host.content, Core)
        if host.content.is_served:
            host.content.on_frame(frame, process.clock())
            process.wake(frame.to)

    def _trouble_all(self, publishers: Sequence[Publishing], faults: int) -> None:
        """Let things go wrong while all of them publish, then no more."""
        events = self.events
        events.run_until(events.now + 5)
        for _ in range(faults):
            for publisher in publishers:
                publisher.goal += self.rng.randint(0, 12)
            events.run_until(events.now + self.rng.choice([0.0, 0.3, 1.0]))
            self.fault()
            events.run_until(events.now + self.rng.choice([0.01, 0.5, 3.0, 9.0]))
        self.is_troubled = False
        self.calm_down()

    def fault(self) -> None:
        if self.rng.random() < 0.15:
            self.bus.is_up = not self.bus.is_up
        else:
            super().fault()

    def calm_down(self) -> None:
        self.bus.is_up = True
        super().calm_down()

"""A process that hosts numbers: the product's `Node` on the model database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from mqtt_broker.cluster.host import Content, Host
from mqtt_broker.cluster.link import NEVER, DatabaseLink
from mqtt_broker.cluster.node import Node
from mqtt_broker.cluster.node_row import NodeRow
from tests.sim.cluster.connection import Connection, Network
from tests.sim.cluster.events import Events

TIMER_S: Final = 1e-6  # the shortest wait


class World(Network, Protocol):
    events: Events

    def new_name(self) -> str:
        """Return a text that was never returned before."""

    def new_content(self, process: Process, number: int, epoch: str) -> Content:
        """Make what a process hosts with a number."""

    def on_rows(self, process: Process, rows: list[NodeRow]) -> None:
        """Note the rows of all numbers, as a process has just read them."""

    def on_taken(self, taker: Process, number: int, seen: str) -> None:
        """Examine whether a number was taken from a host without need."""


class Process:
    """A process from its start to its death; what it knew is gone with it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = world.events.rng
        self.is_frozen = self.is_dead = False
        self._held: list[Callable[[], None]] = []
        self._clock_offset_s = self.rng.choice([-300.0, 0.0, 17.0, 300.0])
        self._clock_rate = self.rng.choice([0.98, 1.0, 1.0, 1.02])
        self._connections: list[Connection] = []
        self._wakes_at = NEVER
        self.node = Node(number, self, self.rng)
        self._plan()

    @property
    def hosts(self) -> dict[int, Host]:
        return self.node.hosts

    @property
    def is_leaving(self) -> bool:
        return self.node.is_leaving

    # What the node asks of its surroundings.

    def connect(self, label: str, link: DatabaseLink) -> Connection:
        connection = Connection(self.world, self, label, link)
        self._connections = [one for one in self._connections if not one.is_over]
        self._connections.append(connection)
        return connection

    def new_epoch(self) -> str:
        return self.world.new_name()

    def new_content(self, number: int, epoch: str) -> Content:
        return self.world.new_content(self, number, epoch)

    def on_rows(self, rows: list[NodeRow]) -> None:
        self.world.on_rows(self, rows)

    def on_taken(self, seen: NodeRow) -> None:
        self.world.on_taken(self, seen.number, seen.epoch)

    # Time and faults.

    def clock(self) -> float:
        """The process's own clock, which is right about nothing but the pace of time."""
        return self.world.events.now * self._clock_rate + self._clock_offset_s

    def call(self, action: Callable[[], None]) -> None:
        if self.is_frozen:
            self._held.append(action)
        elif not self.is_dead:
            action()
            self._plan()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.events.after(seconds, lambda: self.call(action))

    def _plan(self) -> None:
        """Wake the node when it wants to be woken."""
        at = self.node.wakes_at
        if at < self._wakes_at:
            self._wakes_at = at
            seconds = (at - self.clock()) / self._clock_rate
            self.after(max(TIMER_S, seconds), partial(self._wake, at))

    def _wake(self, at: float) -> None:
        if at == self._wakes_at:
            self._wakes_at = NEVER
            self.node.tick(self.clock())

    def wake(self, number: int) -> None:
        """Let the host of a number look for something to do, if it is here."""
        if number in self.hosts:
            self.hosts[number].wake(self.clock())
            self._plan()

    def freeze(self, seconds: float) -> None:
        self.is_frozen = True
        self.world.events.after(seconds, self._go_on)

    def _go_on(self) -> None:
        if self.is_dead:
            return
        self.is_frozen = False
        held, self._held = self._held, []
        for action in held:
            self.call(action)

    def leave(self) -> None:
        self.node.leave(self.clock())
        self._plan()

    def kill(self) -> None:
        self.is_dead = True
        self.is_frozen = False
        self._held.clear()
        self.node.close()

    def cut(self) -> None:
        """Cut every connection to the database."""
        for connection in self._connections:
            connection.cut()

"""Nodes in one process on PostgreSQL, whose numbers have real cores: one thread, and time by hand.

Batches are executed at once, and their answers wait until the world delivers them. The database's
clock is the world's.

    world = ClusterWorld(connector)
    one = world.node(1).at(1)           # the number 1, hosted by node 1
    peer = one.client("a", expiry=100)
    world.kill(1)                       # nothing of the process is left
    world.run(10.0)                     # long enough that the number is inherited
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from mqtt_broker.cluster.content.hosted_broker import HostedBroker
from mqtt_broker.cluster.link import Answer, DatabaseLink
from mqtt_broker.cluster.node import Node
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.statements import Clock, Statement, TransactionError
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from sessions.journal.journal import Journal
from tests.core import peers
from tests.core.peers import Peer

STEP_S = 0.01
DATABASE_S = 5_000.0  # by which the database's clock is ahead of the world's


class DirectConnection:
    """A connection of the world: what it sends is executed at once."""

    def __init__(self, world: ClusterWorld, label: str, link: DatabaseLink) -> None:
        self._world = world
        self._link = link
        self._is_closed = False
        self._store = world.connector.connect(label)
        world.post(self._open)

    def _open(self) -> None:
        if not self._is_closed:
            self._link.on_open(self._world.now)

    def send(self, batch: list[Statement]) -> None:
        answer: Answer
        try:
            answer = self._store.execute(batch)
        except TransactionError as error:
            answer = error
        else:
            for at, statement in enumerate(batch):
                if isinstance(statement, Clock):
                    answer[at] = [{"now": self._world.now + DATABASE_S}]
        self._world.post(lambda: self._answer(answer))

    def _answer(self, answer: Answer) -> None:
        if not self._is_closed:
            self._link.on_answer(answer, self._world.now)
        if not self._is_closed and self._store.is_closed:
            self.close()
            self._link.on_lost("lost", self._world.now)

    def rollback(self) -> None:
        self._store.rollback()

    def close(self) -> None:
        self._is_closed = True
        self._store.close()


class NumberWorld(peers.World):
    """The clients of one hosted number: a `World` whose broker is the number's core."""

    def __init__(self, cluster: ClusterWorld, number: int) -> None:
        self.cluster = cluster
        self.peers = []
        self.hosted = HostedBroker(number, self, self)

    @property
    def broker(self) -> Broker:
        return self.hosted.broker

    @broker.setter
    def broker(self, broker: Broker) -> None:
        raise AssertionError("it is loaded")

    @property
    def now(self) -> float:
        return self.hosted.now()

    @now.setter
    def now(self, now: float) -> None:
        raise AssertionError("it is the cluster's")

    def admit(self) -> None:
        self.cluster.run(1.0)

    def settle(self) -> None:
        if self.hosted.is_served:
            super().settle()
            self.hosted.on_turn()

    def tick(self) -> None:
        if self.hosted.is_served:
            self.broker.tick(self.now)
            self.settle()

    # What is around the hosted broker.

    def clock(self) -> float:
        return self.cluster.now

    def wake(self, number: int) -> None:
        self.cluster.wake(self.hosted)

    def make_broker(self, number: int, journal: Journal, now: float) -> Broker:
        return Broker(
            Settings(sys_interval_s=0),
            now=now,
            rng=random.Random(1),
            journal=journal,
            log=self.cluster.lines.append,
        )

    def ask(self, owner: int, client: str, tenure: int) -> None:
        asker = self.hosted.number
        self.cluster.tell(owner, lambda other: other.claims.on_ask(client, tenure, asker))

    def tell_offered(self, number: int, client: str) -> None:
        self.cluster.tell(number, lambda other: other.claims.on_offered(client))


class Outside:
    """What a node has around it."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.numbers: dict[int, NumberWorld] = {}

    def connect(self, label: str, link: DatabaseLink) -> DirectConnection:
        return DirectConnection(self._world, label, link)

    def new_epoch(self) -> str:
        return self._world.new_epoch()

    def new_content(self, number: int, epoch: str) -> HostedBroker:
        self.numbers[number] = NumberWorld(self._world, number)
        return self.numbers[number].hosted

    def on_rows(self, rows: list[NodeRow]) -> None:
        """Nobody needs them."""

    def on_taken(self, seen: NodeRow) -> None:
        """Nothing is to be examined."""


class Process:
    """A node and the numbers that it hosts."""

    def __init__(self, world: ClusterWorld, own: int) -> None:
        self.outside = Outside(world)
        self.node = Node(own, self.outside, random.Random(own))

    def at(self, number: int) -> NumberWorld:
        return self.outside.numbers[number]

    def hosts(self, number: int) -> bool:
        """Tell whether it serves the number."""
        return number in self.node.hosts and self.at(number).hosted.is_served


class ClusterWorld:
    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.now = 100.0
        self.lines: list[str] = []
        self.processes: dict[int, Process] = {}
        self.is_bus_up = True
        self._posted: deque[Callable[[], None]] = deque()
        self._epochs = 0

    def new_epoch(self) -> str:
        self._epochs += 1
        return f"epoch-{self._epochs}"

    def post(self, action: Callable[[], None]) -> None:
        self._posted.append(action)

    def node(self, own: int) -> Process:
        """Start a process, and wait until it serves its number."""
        self.processes[own] = Process(self, own)
        self.until(lambda: self.processes[own].hosts(own))
        return self.processes[own]

    def kill(self, own: int) -> None:
        """Leave nothing of a process; its clients find out."""
        process = self.processes.pop(own)
        for host in process.node.hosts.values():
            host.link.close()
        process.node.close()

    def host_of(self, number: int) -> NumberWorld | None:
        for process in self.processes.values():
            if process.hosts(number):
                return process.at(number)
        return None

    def inherited(self, number: int) -> NumberWorld:
        """Wait until somebody serves the number."""
        self.until(lambda: self.host_of(number) is not None)
        found = self.host_of(number)
        assert found is not None
        return found

    def wake(self, hosted: HostedBroker) -> None:
        for process in self.processes.values():
            host = process.node.hosts.get(hosted.number)
            if host is not None and host.content is hosted:
                host.wake(self.now)

    def tell(self, number: int, action: Callable[[HostedBroker], Any]) -> None:
        found = self.host_of(number)
        if found is not None and self.is_bus_up:
            self.post(lambda: action(found.hosted))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        end = self.now + seconds
        while not condition():
            assert self.now < end, "it takes too long"
            self.step()

    def step(self) -> None:
        self.now += STEP_S
        for process in list(self.processes.values()):
            if process.node.wakes_at <= self.now:
                process.node.tick(self.now)
            for number in process.outside.numbers.values():
                number.tick()
        while self._posted:
            self._posted.popleft()()
            for process in self.processes.values():
                for number in process.outside.numbers.values():
                    number.settle()

    def close(self) -> None:
        for own in list(self.processes):
            self.kill(own)


__all__ = ["ClusterWorld", "NumberWorld", "Peer"]

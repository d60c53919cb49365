"""A process that hosts numbers: the rules of `mqtt_broker.cluster` on the model database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from mqtt_broker.cluster.hosting import Errands, Hosting, Journal
from mqtt_broker.cluster.membership import (
    Accept,
    Create,
    Decision,
    HandOver,
    Membership,
    Take,
    Want,
)
from mqtt_broker.cluster.node_row import FREE, NodeRow
from mqtt_broker.cluster.node_transactions import (
    create_number,
    end_backends,
    read_nodes,
    take_number,
    want_number,
)
from mqtt_broker.cluster.statements import Aborted, Transaction, TransactionError
from tests.sim.cluster.connection import Connection, Network
from tests.sim.cluster.events import Events

TICK_S: Final = 0.5
LINGER_S: Final = 0.002


class Content(Journal, Protocol):
    """What a number holds: the part of a broker that is hosted with it."""

    @property
    def errands(self) -> Errands | None:
        """What its host writes besides groups."""

    def on_stopped(self) -> None:
        """Serve nobody any more: the number is fenced, or handed over."""


class World(Network, Protocol):
    events: Events

    def new_name(self) -> str:
        """Return a text that was never returned before."""

    def new_content(self, process: Process, number: int, epoch: str) -> Content:
        """Make what a process hosts with a number."""

    def on_taken(self, taker: Process, number: int, seen: str) -> None:
        """Examine whether a number was taken from a host without need."""


class Host:
    """One hosted number with its connection."""

    def __init__(self, process: Process, number: int, epoch: str, content: Content) -> None:
        self.process = process
        self.content = content
        self.hosting = Hosting(number, epoch, content, content.errands)
        self._is_planned = False
        self._connect()

    def _connect(self) -> None:
        self.connection = Connection(
            self.process.world, self.process, self.hosting.epoch, self._on_open, self._on_lost
        )

    def _on_open(self) -> None:
        self._pump()

    def _on_lost(self) -> None:
        if self.is_served:
            self.process.after(self.process.rng.choice([0.05, 0.05, 1.0]), self._reconnect)

    def _reconnect(self) -> None:
        if self.is_served:
            self._connect()

    @property
    def is_served(self) -> bool:
        return self.process.hosts.get(self.hosting.number) is self

    def wake(self) -> None:
        """Go on in a moment, with what else comes until then."""
        if not self._is_planned:
            self._is_planned = True
            self.process.after(LINGER_S, self._linger)

    def _linger(self) -> None:
        self._is_planned = False
        self._pump()

    def _pump(self) -> None:
        if not self.connection.is_idle or not self.is_served:
            return
        transaction = self.hosting.next(self.process.clock())
        if transaction is not None:
            self.connection.run(transaction, self._on_done, self._on_failed)

    def _on_done(self, result: Any) -> None:
        self.hosting.on_done(result, self.process.clock())
        self._after_each()

    def _on_failed(self, error: TransactionError) -> None:
        self.hosting.on_failed(error)
        self._after_each()

    def _after_each(self) -> None:
        if self.hosting.is_fenced:
            self.process.drop(self)
        else:
            self._pump()

    def close(self) -> None:
        self.connection.close()
        self.content.on_stopped()


class Process:
    """A process from its start to its death; what it knew is gone with it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = world.events.rng
        self.is_frozen = self.is_dead = self.is_leaving = False
        self.hosts: dict[int, Host] = {}
        self._held: list[Callable[[], None]] = []
        self._clock_offset_s = self.rng.choice([-300.0, 0.0, 17.0, 300.0])
        self._clock_rate = self.rng.choice([0.98, 1.0, 1.0, 1.02])
        self.membership = Membership(number, world.new_name)
        self._decisions: list[Decision] = []
        self._connect()
        self._tick()

    # Time and faults.

    def clock(self) -> float:
        """The process's own clock, which is right about nothing but the pace of time."""
        return self.world.events.now * self._clock_rate + self._clock_offset_s

    def call(self, action: Callable[[], None]) -> None:
        if self.is_frozen:
            self._held.append(action)
        elif not self.is_dead:
            action()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.events.after(seconds, lambda: self.call(action))

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
        """Stop in order: free every number when it is folded, then end."""
        self.is_leaving = True
        for host in self.hosts.values():
            host.hosting.hand_over(FREE)
            host.wake()

    def kill(self) -> None:
        self.is_dead = True
        self.is_frozen = False
        self._held.clear()
        self._watch.cut()
        for host in self.hosts.values():
            host.close()

    def cut(self) -> None:
        """Cut every connection to the database."""
        for connection in self.connections():
            connection.cut()

    def connections(self) -> list[Connection]:
        return [self._watch, *(host.connection for host in self.hosts.values())]

    # Watching the rows of all numbers.

    def _connect(self) -> None:
        self._decisions.clear()
        self._watch = Connection(
            self.world, self, f"watch {self.world.new_name()}", lambda: None, self._on_lost
        )

    def _on_lost(self) -> None:
        self.after(0.1, self._connect)

    def _tick(self) -> None:
        self.after(TICK_S, self._tick)
        for host in list(self.hosts.values()):
            host.wake()
        if self._watch.is_idle and not self._decisions and not self.is_leaving:
            self._run(read_nodes(), self._on_rows)

    def _run(self, transaction: Transaction[Any], on_done: Callable[[Any], None]) -> None:
        self._watch.run(transaction, on_done, lambda error: self._on_failed(error))

    def _on_failed(self, error: TransactionError) -> None:
        self._decisions.clear()

    def _on_rows(self, read: tuple[list[NodeRow], dict[int, str]]) -> None:
        self._decisions = self.membership.decide(*read, self.clock())
        self._decide()

    def _decide(self) -> None:
        """Carry out the decisions, one after the other."""
        if not self._decisions or not self._watch.is_idle or self.is_leaving:
            return
        decision = self._decisions.pop(0)
        number = decision.number
        if isinstance(decision, HandOver):
            if number in self.hosts:
                self.hosts[number].hosting.hand_over(decision.epoch)
                self.hosts[number].wake()
            self._decide()
        elif isinstance(decision, Create):
            creates = create_number(number, decision.epoch)
            self._run(creates, lambda none: self._host(number, decision.epoch))
        elif isinstance(decision, Take):
            self._take(decision)
        elif isinstance(decision, Want):
            wants = want_number(number, decision.epoch)
            self._run(wants, lambda none: self._decide())
        else:
            assert isinstance(decision, Accept)
            self._host(number, decision.epoch)

    def _take(self, decision: Take) -> None:
        def on_taken(none: None) -> None:
            self.world.on_taken(self, decision.number, decision.seen.epoch)
            self._host(decision.number, decision.epoch)

        def on_failed(error: TransactionError) -> None:
            self._on_failed(error)
            if isinstance(error, Aborted) and seen.epoch != FREE and self._watch.is_idle:
                self._run(end_backends(seen.epoch), lambda none: None)

        seen = decision.seen
        self._watch.run(take_number(seen, decision.epoch), on_taken, on_failed)

    def _host(self, number: int, epoch: str) -> None:
        if self.is_leaving:
            return  # it lapses
        self.membership.on_hosted(number, epoch)
        content = self.world.new_content(self, number, epoch)
        self.hosts[number] = Host(self, number, epoch, content)
        self._decide()

    def drop(self, host: Host) -> None:
        """Stop hosting a number: it is fenced, or handed over."""
        del self.hosts[host.hosting.number]
        self.membership.on_lost(host.hosting.number)
        host.close()

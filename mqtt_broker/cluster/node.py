"""A process of a cluster: it hosts its own number, and those of processes that are gone.

It reads the rows of all numbers again and again, and carries out what `Membership` decides, one
after the other; after a failure it reads them anew. It leaves in order: each number is folded and
freed, so that nobody waits until it lapses.
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol

from mqtt_broker.cluster.host import Content, Host
from mqtt_broker.cluster.link import Connection, DatabaseLink
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
from mqtt_broker.cluster.statements import Aborted, TransactionError

READ_S: Final = 0.2  # between two reads of the rows


class Surroundings(Protocol):
    """The outside of a node, which its caller provides."""

    def connect(self, label: str, link: DatabaseLink) -> Connection:
        """Connect to the database under a label; tell the link what comes of it, later."""

    def new_epoch(self) -> str:
        """Return a text that nobody has ever used as an epoch."""

    def new_content(self, number: int, epoch: str) -> Content:
        """Make what is hosted with a number."""

    def on_rows(self, rows: list[NodeRow]) -> None:
        """Note the rows of all numbers, which were just read: who hosts what."""

    def on_taken(self, seen: NodeRow) -> None:
        """Note that a number was taken whose row was `seen` last."""


class Node:
    """The numbers that one process hosts, and its watch over all others."""

    def __init__(self, own: int, surroundings: Surroundings, rng: Random) -> None:
        self.membership = Membership(own, surroundings.new_epoch)
        self.hosts: dict[int, Host] = {}
        self.is_leaving = False
        self._surroundings = surroundings
        self._rng = rng
        label = f"watch {surroundings.new_epoch()}"
        self._watch = DatabaseLink(label, surroundings.connect, self._read, rng)
        self._reads_at = 0.0
        self._decisions: list[Decision] = []

    @property
    def wakes_at(self) -> float:
        """Return when `tick` is to be called."""
        hosts = (host.wakes_at for host in self.hosts.values())
        return min(self._reads_at, self._watch.wakes_at, *hosts)

    @property
    def is_over(self) -> bool:
        """Tell whether the process has left, and hosts nothing any more."""
        return self.is_leaving and not self.hosts and not self._watch.is_running

    @property
    def links(self) -> list[DatabaseLink]:
        """The connections: that which watches, and one for each number."""
        return [self._watch, *(host.link for host in self.hosts.values())]

    def tick(self, now: float) -> None:
        """Do what it is time for."""
        self._watch.tick(now)
        for host in list(self.hosts.values()):
            host.tick(now)
        if now >= self._reads_at:
            self._read(now)

    def leave(self, now: float) -> None:
        """Stop in order: free every number when it is folded. `is_over` says when that is done."""
        self.is_leaving = True
        for host in self.hosts.values():
            host.hand_over(FREE, now)

    def close(self) -> None:
        """Stop at once. What is hosted here lapses."""
        self._watch.close()
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()

    # Watching the rows of all numbers.

    def _read(self, now: float) -> None:
        self._reads_at = now + READ_S
        if self._watch.is_idle and not self.is_leaving:
            self._watch.run(read_nodes(), self._on_rows, self._on_failed)

    def _on_failed(self, error: TransactionError, now: float) -> None:
        self._decisions.clear()

    def _on_rows(self, read: tuple[list[NodeRow], dict[int, str]], now: float) -> None:
        self._surroundings.on_rows(read[0])
        self._decisions = self.membership.decide(*read, now)
        self._carry_on(None, now)

    def _carry_on(self, result: None, now: float) -> None:
        """Carry out decisions until one needs the database."""
        while self._decisions and self._watch.is_idle and not self.is_leaving:
            self._carry_out(self._decisions.pop(0), now)

    def _carry_out(self, decision: Decision, now: float) -> None:
        number = decision.number
        if isinstance(decision, HandOver):
            if number in self.hosts:
                self.hosts[number].hand_over(decision.epoch, now)
        elif isinstance(decision, Create):
            self._create(decision)
        elif isinstance(decision, Take):
            self._take(decision)
        elif isinstance(decision, Want):
            wants = want_number(number, decision.epoch)
            self._watch.run(wants, self._carry_on, self._on_failed)
        else:
            assert isinstance(decision, Accept)
            self._host(number, decision.epoch, now)

    def _create(self, decision: Create) -> None:
        def on_created(result: None, now: float) -> None:
            self._host(decision.number, decision.epoch, now)
            self._carry_on(None, now)

        creates = create_number(decision.number, decision.epoch)
        self._watch.run(creates, on_created, self._on_failed)

    def _take(self, decision: Take) -> None:
        def on_taken(result: None, now: float) -> None:
            self._surroundings.on_taken(seen)
            self._host(decision.number, decision.epoch, now)
            self._carry_on(None, now)

        def on_failed(error: TransactionError, now: float) -> None:
            self._decisions.clear()
            if isinstance(error, Aborted) and seen.epoch != FREE:  # its connections hold the row
                self._watch.run(end_backends(seen.epoch), self._carry_on, self._on_failed)

        seen = decision.seen
        self._watch.run(take_number(seen, decision.epoch), on_taken, on_failed)

    def _host(self, number: int, epoch: str, now: float) -> None:
        self.membership.on_hosted(number, epoch)
        content = self._surroundings.new_content(number, epoch)
        connect = self._surroundings.connect
        host = Host(number, epoch, content, connect, self._on_over, self._rng)
        self.hosts[number] = host
        if self.is_leaving:
            host.hand_over(FREE, now)

    def _on_over(self, host: Host) -> None:
        """Stop hosting a number: it is fenced, or handed over."""
        del self.hosts[host.hosting.number]
        self.membership.on_lost(host.hosting.number)
        host.close()

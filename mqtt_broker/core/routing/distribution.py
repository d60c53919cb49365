"""Messages on their way to more receivers than one turn can serve.

    Distribution   messages of one envelope, delivered to a share of their receivers in a turn
    OwnMessage     a message that nobody acknowledges: of the broker's own, or a will

The receivers are those of the route as it was when the messages came. A session that subscribes
later does not get them; one that unsubscribes still does, as if it had been served before; one that
has ended does not.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.core.interfaces.message_log import TopicWriter
from mqtt_broker.core.routing.routes import Route, Target
from mqtt_broker.core.routing.shared_groups import SharedGroup
from sessions.journal.journal import Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import Message
from sessions.messages.work import BYTES_A_UNIT, DELIVERY, DONE, MORE, Work
from sessions.outbound import Outbound

_NO_TARGETS: Final[list[Target]] = []
_NO_GROUPS: Final[list[SharedGroup]] = []


class Deliverer(Protocol):
    """The router, as far as it delivers."""

    def deliver(
        self,
        messages: list[Message],
        targets: list[Target],
        groups: list[SharedGroup],
        publisher: Outbound | None,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Deliver messages of one envelope to all of these."""


class Distribution:
    """Delivers messages of one envelope, to a share of their receivers in a turn.

    Their transaction is open meanwhile. `finish` adds it to the journal, and the messages to the
    log: both have their place there behind the last delivery, in the same group.
    """

    __slots__ = (
        "_at",
        "_journal",
        "_messages",
        "_publisher",
        "_route",
        "_router",
        "_work",
        "txn",
    )

    def __init__(
        self,
        router: Deliverer,
        journal: Journal | None,
        work: Work,
        messages: list[Message],
        route: Route,
        publisher: Outbound | None,
        txn: PublishTransaction | None,
    ) -> None:
        self._router = router
        self._journal = journal
        self._work = work
        self._messages = messages
        self._route = route
        self._publisher = publisher
        self.txn = txn
        self._at = 0  # receivers that have been served: targets, then groups

    def go_on(self, now: float) -> int:
        """Deliver to some more; see `WorkItem`."""
        route = self._route
        targets = len(route.targets)
        everybody = targets + len(route.groups)
        work = self._work
        size = DELIVERY + self._messages[0].envelope.payload_bytes // BYTES_A_UNIT
        each = size * len(self._messages)
        while self._at < everybody:
            at = self._at
            if at < targets:
                self._at = min(targets, at + max(1, (work.limit - work.spent) // each))
                self._deliver(route.targets[at : self._at], _NO_GROUPS, now)
            else:
                self._at = at + 1
                at -= targets
                self._deliver(_NO_TARGETS, route.groups[at : at + 1], now)
            if work.is_over and self._at < everybody:
                return MORE
        return DONE

    def _deliver(self, targets: list[Target], groups: list[SharedGroup], now: float) -> None:
        self._router.deliver(self._messages, targets, groups, self._publisher, self.txn, now)

    def finish(self, writer: TopicWriter | None, now: float) -> None:
        """Add the messages to the log, and what was delivered to the journal."""
        try:
            if writer is not None:
                payloads = [message.payload for message in self._messages]
                writer.append(self._messages[0].envelope, payloads, now)
        finally:
            if self.txn is not None and self._journal is not None:
                self._journal.add(self.txn)


class OwnMessage:
    """A message of the broker's own or a will, on its way to very many."""

    __slots__ = ("_distribution", "_writer")

    def __init__(self, distribution: Distribution, writer: TopicWriter | None) -> None:
        self._distribution = distribution
        self._writer = writer  # that has room for it

    def go_on(self, now: float) -> int:
        """Deliver it to some more; see `WorkItem`."""
        try:
            outcome = self._distribution.go_on(now)
        except Exception:
            self._distribution.finish(None, now)
            raise
        if outcome == DONE:
            self._distribution.finish(self._writer, now)
        return outcome

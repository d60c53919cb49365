"""A PUBLISH to more receivers than one turn can serve: an operation of its publisher's connection.

The publisher is not read until everybody has it, so what it sends next comes behind, to every
receiver. Its acknowledgement follows the last delivery. If the publisher goes meanwhile, the rest
is delivered all the same.
"""

from __future__ import annotations

from mqtt_broker.codec.errors import Violation
from mqtt_broker.core.clients.connection import CLOSED, Connection
from mqtt_broker.core.routing.distribution import Distribution
from mqtt_broker.core.routing.routes import Route
from mqtt_broker.core.runtime.backpressure import BEHIND
from sessions.journal.journal import COMMIT
from sessions.journal.transaction import PublishTransaction
from sessions.messages.work import DONE, WorkItem


class LargePublish:
    """Messages of one PUBLISH, or of a run of them, and the answer that follows the last."""

    __slots__ = (
        "_answer",
        "_connection",
        "_distribution",
        "_is_certain",
        "_opened",
        "_route",
        "_violation",
    )

    def __init__(
        self,
        connection: Connection,
        distribution: Distribution,
        route: Route,
        answer: bytes,
        *,
        opened: list[int],
        is_certain: bool,
        violation: Violation | None = None,
    ) -> None:
        self._connection = connection
        self._distribution = distribution
        self._route = route
        self._answer = answer  # empty at QoS 0
        self._opened = opened  # packet ids of QoS 2
        self._is_certain = is_certain  # nothing of what the answer says rests on older records
        self._violation = violation  # of what follows in the run

    def start(self, now: float) -> WorkItem | None:
        """Deliver a share of it now; returns the operation if that was not all."""
        return None if self.go_on(now) == DONE else self

    def go_on(self, now: float) -> int:
        """Deliver to some more, and answer behind the last; see `WorkItem`."""
        distribution = self._distribution
        try:
            outcome = distribution.go_on(now)
        except Exception:
            distribution.finish(None, now)
            raise
        if outcome == DONE:
            self._finish(now)
        return outcome

    def _finish(self, now: float) -> None:
        connection = self._connection
        txn = self._distribution.txn
        number = connection.session.outbound.session_number
        if txn is not None and self._opened and number:
            txn.receive(number, self._opened)
        self._distribution.finish(self._route.writer, now)
        if connection.state == CLOSED:
            return
        if self._answer:
            is_logged = self._route.writer is not None and self._route.durability == COMMIT
            answer(
                connection, self._answer, txn, now,
                is_logged=is_logged, is_certain=self._is_certain,
            )  # fmt: skip
        journal = connection.broker.journal
        if journal is not None and journal.is_behind:
            connection.hold_back(BEHIND, now)
        if self._violation is not None:
            raise self._violation


def answer(
    connection: Connection,
    data: bytes,
    txn: PublishTransaction | None,
    now: float,
    *,
    is_logged: bool,
    is_certain: bool,
    place: int = -1,
) -> None:
    """Send an acknowledgement when it is true, in front of what is in the outbox from `place` on.

    `is_logged`: it says that the log has the messages. `is_certain`: it rests on nothing that was
    recorded before and may not be on disk.
    """
    if is_logged:
        hold_for_log(connection, data, txn)
    elif txn is not None and txn.awaits_commit and txn.is_wanted:
        txn.acknowledge_with((connection.acks or connection.open_acks()).hold(data))
    elif not is_certain or place < 0:
        connection.send_in_order(data, now, safely=not is_certain)
    else:
        connection.send_before(data, place)


def hold_for_log(connection: Connection, data: bytes, txn: PublishTransaction | None) -> None:
    """Hold an acknowledgement until the next group is on disk, and the log's files with it."""
    journal = connection.broker.journal
    assert journal is not None, "without a journal nothing promises to commit"
    pending = (connection.acks or connection.open_acks()).hold(data)
    journal.wait(pending)
    if txn is not None:
        txn.refuse_with(pending)

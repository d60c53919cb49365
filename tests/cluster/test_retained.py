"""The retained messages of a number: when it reads, what it reads together, what a group takes."""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_broker.cluster.inbox import Inbox
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.retained import FOLLOW_S, Retained, RetainedBudget
from mqtt_broker.cluster.retained_rows import RetainedLimits, RetainedMessage
from mqtt_broker.cluster.statements import Delete, Rows, Statement, Update
from tests.cluster.steps import play
from tests.cluster.test_retained_follower import Asked, Memory, node, row


class Number:
    """Number 1 with its inbox."""

    def __init__(self, limits: RetainedLimits | None = None) -> None:
        self.memory = Memory()
        self.inbox = Inbox(1)
        self.retained = Retained(1, self.memory, self.inbox, limits)

    def errand(self, now: float, found: Iterable[Rows]) -> list[Statement]:
        """Answer its transaction, if there is one, and return the statements."""
        transaction = self.retained.next(1, "e", 4, now)
        if transaction is None:
            return []
        batches, result = play(transaction, [[[], *found, []]])
        self.retained.on_done(result, now)
        return batches[0]

    def load(self) -> Number:
        nodes, clock = [node(1, 0), node(2, 1)], [{"now": 1_000.0}]
        self.errand(0.0, [nodes, [], [], [], [], clock])
        self.retained.apply_alone()
        self.errand(0.0, [nodes, [], [row("a", 2, 1)], [], [], [], clock])
        self.retained.apply_alone()
        return self


def test_it_reads_when_it_is_time_or_somebody_waits() -> None:
    number = Number().load()
    assert number.memory.messages == {"a": b"x"} and number.retained.server_now(5.0) == 1_005.0
    assert number.retained.next(1, "e", 4, FOLLOW_S - 0.1) is None
    number.retained.want(Asked(number.memory))
    assert number.retained.is_due(0.1)
    statements = number.errand(0.1, [[node(1, 0), node(2, 1)], [], [], [], [], [], [{"now": 0.0}]])
    assert isinstance(statements[0], Update) and statements[0].required
    number.retained.apply_alone()
    assert not number.retained.is_due(0.2)
    assert number.retained.is_due(0.1 + FOLLOW_S)


def test_what_was_read_is_applied_behind_the_messages_that_were_read_with_it() -> None:
    number = Number().load()
    parcels = [Parcel(2, 1, 1, 5, [b"1", b"2"]), Parcel(2, 1, 3, 5, [b"3"])]
    nodes, clock = [node(1, 0), node(2, 2)], [{"now": 0.0}]
    changed = [row("a", 2, 2, b"y")]
    number.errand(9.0, [nodes, [], changed, [], [parcels[0].row()], changed, clock])
    number.inbox.on_parcel(parcels[1])
    number.retained.apply_alone()
    assert number.memory.messages == {"a": b"x"}
    received, cut = number.inbox.take(), number.retained.take()
    assert cut is not None and [one.last <= cut.ends[2] for one in received] == [True, False]
    number.retained.apply(cut)
    assert number.memory.messages == {"a": b"y"}


def test_it_sweeps_when_there_is_nothing_to_read() -> None:
    number = Number(RetainedLimits(tombstones=0, generation_s=0.0)).load()
    for group in (1, 2):
        number.retained.on_committed(group, [RetainedMessage(f"t{group}", b"")])
        number.retained.next(1, "e", 4, 0.1)
    statements = number.errand(0.2, [[], [], [], []])
    assert any(isinstance(one, Delete) and one.where["topic"] == ["t1"] for one in statements)
    assert number.retained.tombstones == 1


def test_a_group_takes_a_bounded_number_and_each_publisher_in_order() -> None:
    budget = RetainedBudget(RetainedLimits(group_rows=2))
    asked = [("p", True), ("p", True), ("p", True), ("p", False), ("q", False), ("q", True)]
    found = [budget.admits(publisher, is_retained=retained) for publisher, retained in asked]
    assert found == [True, True, False, False, True, False]

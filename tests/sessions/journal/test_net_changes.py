"""Net changes: batches of any size come to the same, and what came and went leaves nothing."""

from __future__ import annotations

import pytest

from sessions.journal.net_changes import Changes, Run, SessionDeliveries
from sessions.journal.records import Delivered, Released, Retained, Stored, unseal
from tests.sessions.store.histories import History


def run(n: int, count: int, mid: int = 100) -> Run:
    form = Delivered(1, n, mid, count, 10, 1, False, (), "", ())
    return Run(form, n, n + count)


def spans(deliveries: SessionDeliveries) -> list[tuple[int, int, int]]:
    return [(one.n, one.end, one.mid) for one in deliveries.runs]


@pytest.mark.parametrize(
    ("n", "end", "left", "missing"),
    [
        (10, 20, [(30, 40, 300)], []),
        (10, 15, [(15, 20, 105), (30, 40, 300)], []),
        (15, 20, [(10, 15, 100), (30, 40, 300)], []),
        (12, 15, [(10, 12, 100), (15, 20, 105), (30, 40, 300)], []),
        (5, 12, [(12, 20, 102), (30, 40, 300)], [(5, 10)]),
        (18, 32, [(10, 18, 100), (32, 40, 302)], [(20, 30)]),
        (1, 50, [], [(1, 10), (20, 30), (40, 50)]),
        (20, 30, [(10, 20, 100), (30, 40, 300)], [(20, 30)]),
        (40, 41, [(10, 20, 100), (30, 40, 300)], [(40, 41)]),
        (1, 2, [(10, 20, 100), (30, 40, 300)], [(1, 2)]),
    ],
)
def test_finishing_cuts_runs(
    n: int, end: int, left: list[tuple[int, int, int]], missing: list[tuple[int, int]]
) -> None:
    deliveries = SessionDeliveries()
    deliveries.add(run(10, 10))
    deliveries.add(run(30, 10, mid=300))
    deliveries.finish(n, end)
    assert spans(deliveries) == left
    assert deliveries.finished == missing


def test_neighbours_that_are_missing_are_one_range() -> None:
    deliveries = SessionDeliveries()
    for n in range(5, 9):
        deliveries.finish(n, n + 1)
    deliveries.finish(20, 22)
    assert deliveries.finished == [(5, 9), (20, 22)]


def test_runs_that_come_late_find_their_place() -> None:
    deliveries = SessionDeliveries()
    for n in (20, 5, 10):
        deliveries.add(run(n, 2, mid=n))
    assert [one.n for one in deliveries.runs] == [5, 10, 20]
    deliveries.finish(10, 12)
    assert [one.n for one in deliveries.runs] == [5, 20]


def test_references_are_counted_by_run() -> None:
    changes = Changes()
    changes.apply(Stored(10, "a", 1, False, b"", "p", 0.0, -1, [b"x"] * 10))
    changes.apply(Stored(20, "b", 1, False, b"", "p", 0.0, -1, [b"y"] * 5))
    changes.apply(Delivered(1, 1, 10, 10, 9, 1, False, (), "", ()))
    changes.apply(Delivered(2, 1, 12, 10, 9, 1, False, (), "", ()))
    changes.apply(Delivered(3, 7, 4, 2, 9, 1, False, (), "", ()))  # stored before
    changes.apply(Retained(24, 3))
    changes.apply(Released(1, [(1, 10, 77)]))
    references = changes.references([(3, 4, 1), (4, 5, 2)])
    assert references == [
        (3, 5, -1),
        (5, 6, 1),
        (11, 12, 1),
        (12, 20, 2),
        (20, 22, 1),
        (24, 25, 1),
    ]
    new, old = changes.split(references)
    assert old == [(3, 5, -1), (5, 6, 1)]
    assert [(record.mid, first, end, count) for record, first, end, count in new] == [
        (10, 1, 2, 1),
        (10, 2, 10, 2),
        (20, 0, 2, 1),
        (20, 4, 5, 1),
    ]


def test_an_end_leaves_nothing_of_a_session() -> None:
    history = History(3)
    changes = Changes()
    for blob, _ in history.groups(40):
        for record in unseal(blob):
            changes.apply(record)
    for sid in (*history.sessions, *history.shares):
        changes._end(sid)
    for table in (
        changes.sessions, changes.shares, changes.subscriptions, changes.deliveries,
        changes.releases, changes.received,
    ):  # fmt: skip
        assert not set(table) & changes.ended


# Against tables in memory: many histories, cut into batches anywhere.

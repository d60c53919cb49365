"""The ledger notices what is lost, doubled, out of order or torn."""

from __future__ import annotations

import json

import pytest

from mqtt_broker.cluster.tables import GROUPS, NODES
from tests.cluster.torture.ledger import Found, Writer, check_lists
from tests.cluster.torture.tables import Rows
from tests.sim.cluster.hosts import TOTALS, VALUES
from tests.sim.cluster.oracles import Broken


def found(folded: list[int], blobs: list[list[int]], total: int | None = None) -> Found:
    values: Rows = [{"number": 1, "writer": "w", "value": value} for value in folded]
    count = len(folded) if total is None else total
    totals: Rows = [{"number": 1, "writer": "w", "total": count}] if count else []
    groups: Rows = [
        {"number": 1, "group": group, "blob": json.dumps([["w", one] for one in blob]).encode()}
        for group, blob in enumerate(blobs)
    ]
    return Found({NODES: [], GROUPS: groups, VALUES: values, TOTALS: totals})


def writer(acknowledged: int) -> Writer:
    one = Writer("w", 1)
    for _ in range(acknowledged):
        assert one.on_ack(one.next())
    one.next()
    return one


def test_what_is_whole_is_right() -> None:
    check_lists([writer(4)], found([1, 2], [[3], [4]]))
    check_lists([writer(4)], found([1, 2, 3, 4], [[5]]))  # 5 is sent, and not acknowledged
    check_lists([writer(0)], found([], []))


@pytest.mark.parametrize(
    ("wrong", "oracle"),
    [
        (found([1, 2], [[4]]), "lost"),
        (found([1, 2, 3], []), "lost"),
        (found([1, 2, 3, 4], [[5, 6]]), "lost"),
        (found([1, 2], [[2], [3], [4]]), "once"),
        (found([1, 2], [[4], [3]]), "order"),
        (found([1, 2, 3, 4], [], total=3), "torn"),
        (found([], [[1, 2, 3, 4]], total=1), "torn"),
    ],
)
def test_what_is_wrong_is_found(wrong: Found, oracle: str) -> None:
    with pytest.raises(Broken) as broken:
        check_lists([writer(4)], wrong)
    assert broken.value.oracle == oracle


def test_a_late_acknowledgement_counts_once() -> None:
    one = Writer("w", 1)
    value = one.next()
    assert one.next() == value
    assert one.on_ack(value)
    assert not one.on_ack(value)
    assert one.acknowledged == 1 and one.next() == 2

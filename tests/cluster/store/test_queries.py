"""Statements of one shape share their SQL, and values keep their types."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.node_row import new_row
from mqtt_broker.cluster.statements import (
    Delete,
    Insert,
    InsertNew,
    Put,
    PutAll,
    Select,
    Statement,
    Update,
)
from mqtt_broker.cluster.store.queries import Queries
from mqtt_broker.cluster.store.schema import TABLES
from mqtt_broker.cluster.tables import GROUPS, NODES, WANTS


def test_statements_of_one_shape_share_their_query() -> None:
    queries = Queries(TABLES)

    def is_same(one: Statement, other: Statement) -> bool:
        return queries.find(one)[0] is queries.find(other)[0]

    assert is_same(Select(NODES, {"number": 1}), Select(NODES, {"number": 2}))
    assert not is_same(Select(NODES, {"number": 1}), Select(NODES, {"number": [1]}))
    assert not is_same(Select(NODES), Select(NODES, for_update=True))
    assert not is_same(Select(NODES), Select(NODES, limit=1))
    assert not is_same(Select(NODES), Select(NODES, columns=("turn",)))
    assert not is_same(Select(NODES, above=("number", 1)), Select(NODES, above=("turn", 1)))
    assert not is_same(Update(NODES, {}, {"turn": 1}), Update(NODES, {"turn": 1}, {"turn": 1}))
    assert not is_same(Update(NODES, {}, {"turn": 1}), Update(NODES, {}, {"group": 1}))
    change = Update(NODES, {}, {"turn": 1}, required=True)
    assert not is_same(change, Update(NODES, {}, {"turn": 1}))
    assert not is_same(Delete(GROUPS, {}), Delete(GROUPS, {}, up_to=("group", 1)))
    assert not is_same(Insert(NODES, new_row(1, "e")), Put(NODES, new_row(1, "e")))
    assert is_same(PutAll(NODES, []), PutAll(NODES, [new_row(1, "e")]))
    assert not is_same(PutAll(NODES, []), InsertNew(NODES, []))


def test_rows_have_all_columns() -> None:
    with pytest.raises(AssertionError, match="not the columns of cluster_wants"):
        Queries(TABLES).find(Put(WANTS, {"number": 1}))


def test_a_key_is_not_changed() -> None:
    with pytest.raises(AssertionError, match="a key is changed"):
        Queries(TABLES).find(Update(NODES, {}, {"number": 2}))


def test_values_are_encoded_in_the_order_of_the_parameters() -> None:
    query, values = Queries(TABLES).find(Select(NODES, {"number": 1, "epoch": "é"}))
    assert query.encode(values) == [b"\0\0\0\0\0\0\0\1", "é".encode()]
    found = {(0, 0): b"\xff" * 8, (0, 1): b"e", (0, 2): b"\0" * 8, (0, 3): b"\0" * 8}
    rows = query.decode(1, lambda row, at: found.get((row, at), b"\0" * 8))
    assert rows == [{**new_row(-1, "e")}]

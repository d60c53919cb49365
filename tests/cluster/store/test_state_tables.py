"""Folds of a number on PostgreSQL, compared with the model of the tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from mqtt_broker.cluster.statements import Commit, Delete, Insert, Statement
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.store.schema import SECRET_BYTES, TABLES, prepare
from mqtt_broker.cluster.store.state_tables import (
    Loaded,
    fold,
    page_of,
    select_clients,
    select_number,
    select_page,
)
from mqtt_broker.cluster.tables import OWNERS
from sessions.journal import records
from sessions.journal.net_changes import Changes
from sessions.journal.number_range import range_of
from sessions.journal.records import Left, unseal
from sessions.journal.snapshot import Snapshot
from sessions.store.row_import import has_right_references
from tests.sessions.store.histories import History
from tests.sessions.store.memory_store import Tables

NUMBER = 3
OWN = range_of(NUMBER)


@pytest.fixture
def store(database_url: str) -> Iterator[StoreConnection]:
    prepare(database_url, "one", bytes(SECRET_BYTES))
    connection = Connector(make_url(database_url), "one", TABLES).connect("test")
    yield connection
    connection.close()


@pytest.fixture
def reader(store: StoreConnection, database_url: str) -> Iterator[Connection]:
    engine = create_engine(database_url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def history(seed: int) -> History:
    found = History(seed, has_streams=False)
    found.sid = found.mid = OWN.first
    return found


def own(store: StoreConnection, clients: set[str]) -> None:
    """Let the number own these clients, and no others."""
    rows = [
        {"client": client, "number": NUMBER, "tenure": 1, "is_offered": False}
        for client in sorted(clients)
    ]
    run(store, [Delete(OWNERS, {"number": NUMBER}), *(Insert(OWNERS, row) for row in rows)])


def run(store: StoreConnection, statements: list[Statement]) -> list[Any]:
    return store.execute([*statements, Commit()])[:-1]


def plain(snapshot: Snapshot, *, has_numbers: bool = True) -> dict[str, Any]:
    """Return what can be compared; without numbers of messages, where they have changed."""

    def message(row: Any) -> Any:
        return row if has_numbers else replace(row, mid=0)

    def pairs(rows: Any) -> list[Any]:
        return [(message(delivery), message(row)) for delivery, row in rows]

    return {
        "sessions": list(snapshot.sessions),
        "subscriptions": sorted(snapshot.subscriptions, key=lambda row: (row.sid, row.filter)),
        "shares": list(snapshot.shares),
        "windows": pairs(snapshot.windows),
        "releases": list(snapshot.releases),
        "received": list(snapshot.received),
        "backlogs": list(snapshot.backlogs),
        "retained": list(map(message, snapshot.retained)),
        "shared": pairs(snapshot.shared),
        "healed": snapshot.healed,
    }


@pytest.mark.parametrize("seed", range(6))
def test_folds_of_any_size_come_to_the_same(
    store: StoreConnection, reader: Connection, seed: int
) -> None:
    rng = random.Random(seed)
    tables = Tables()
    changes = Changes(1, OWN)
    story = history(20_000 + seed)
    leaves = seed % 2 == 1
    for number, (blob, at) in enumerate(story.groups(40), 1):
        tables.apply_group(number, blob, at)
        for record in unseal(blob):
            changes.apply(record)
        if rng.random() < 0.2 or number == 40:
            if leaves:
                leave(rng, story, changes)
            run(store, fold(changes))
            own(store, {row.client_id for row in tables.sessions.values()})
            loaded = Loaded(run(store, select_number(NUMBER)), NUMBER)
            expected = plain(tables.snapshot(), has_numbers=not leaves)
            assert plain(loaded.snapshot, has_numbers=not leaves) == expected
            assert loaded.next_place <= changes.place
            assert has_right_references(reader)
            reader.rollback()
            changes = Changes(changes.place, OWN)


def leave(rng: random.Random, story: History, changes: Changes) -> None:
    """Let a session leave, with numbers for as many messages as it can have."""
    sid = rng.choice([*story.sessions])
    count = len(story.waiting[sid]) + len(story.sent[sid]) + 1_000
    changes.apply(Left(sid, story.mid, count))
    story.mid += count


def test_what_leaves_shares_no_message(store: StoreConnection, reader: Connection) -> None:
    story = history(7)
    one, two, three = (story.connect() for _ in range(3))
    changes = Changes(1, OWN)
    mid = OWN.first + 1
    blob = [
        *one, *two, *three,
        records.encode_stored(mid, b"t", 1, False, b"", b"p", 1.0, -1, [b"a", b"b", b"c"]),
        records.encode_delivered(OWN.first + 1, 1, mid, 3, 9, 1, False, (), "", []),
        records.encode_delivered(OWN.first + 2, 1, mid + 1, 1, 9, 1, False, (), "", []),
        records.encode_delivered(OWN.first + 3, 5, mid, 3, 9, 1, False, (), "", [7, 8, 9]),
        records.encode_retained(mid + 2, 0),
        records.encode_left(OWN.first + 2, mid + 10, 1),
        records.encode_left(OWN.first + 3, mid + 20, 3),
    ]  # fmt: skip
    for record in unseal(records.seal(blob)):
        changes.apply(record)
    run(store, fold(changes))
    found = reader.execute(text("SELECT sid, n, mid FROM deliveries ORDER BY sid, n")).all()
    assert [(sid - OWN.first, n, number - mid) for sid, n, number in found] == [
        (1, 1, 0), (1, 2, 1), (1, 3, 2), (2, 1, 11), (3, 5, 21), (3, 6, 22), (3, 7, 23),
    ]  # fmt: skip
    found = reader.execute(text("SELECT mid, payload, refs FROM messages ORDER BY mid")).all()
    assert [(number - mid, bytes(payload), refs) for number, payload, refs in found] == [
        (0, b"a", 1), (1, b"b", 1), (2, b"c", 2), (11, b"b", 1), (21, b"a", 1), (22, b"b", 1),
        (23, b"c", 1),
    ]  # fmt: skip
    # What is left of them is nobody else's: it goes with the last of the old sessions.
    changes = Changes(1, OWN)
    for record in unseal(records.seal([records.encode_end(OWN.first + 1)])):
        changes.apply(record)
    run(store, fold(changes))
    found = reader.execute(text("SELECT mid FROM messages ORDER BY mid")).all()
    assert [number - mid for (number,) in found] == [2, 11, 21, 22, 23]
    assert has_right_references(reader)


def test_only_sessions_of_owned_clients_are_read_and_pages_in_order(
    store: StoreConnection,
) -> None:
    story = history(8)
    changes = Changes(1, OWN)
    mid = OWN.first + 1
    blob = [
        *story.connect(), *story.connect(),
        records.encode_stored(mid, b"t", 1, False, b"", b"p", 1.0, -1, [b"x" * 10] * 50),
        records.encode_delivered(OWN.first + 1, 1, mid, 50, 10, 1, False, (3, 4), "", []),
    ]  # fmt: skip
    for record in unseal(records.seal(blob)):
        changes.apply(record)
    run(store, fold(changes))
    sid = OWN.first + 1
    name = story.sessions[sid].client_id
    own(store, {name})
    for clients, expected in (([name, "client-x"], [sid]), (["client-x"], [])):
        found = Loaded(run(store, select_clients(NUMBER, clients)), NUMBER).snapshot
        assert [row.sid for row in found.sessions] == expected
        assert [row.messages for row in found.backlogs] == [50] * len(expected)
    assert not list(Loaded(run(store, select_clients(4, [name])), 4).snapshot.sessions)
    after, places = 0, []
    while page := page_of(run(store, [select_page(sid, after, 20, 65)])[0]):
        assert len(page) <= 7 and page[0][0].subscription_ids == (3, 4)
        places += [delivery.n for delivery, _ in page]
        after = places[-1]
    assert places == list(range(1, 51))
    assert len(page_of(run(store, [select_page(sid, 0, 20, 1)])[0])) == 1

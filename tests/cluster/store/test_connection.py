"""How a batch succeeds and fails on PostgreSQL, and how a connection ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from mqtt_broker.cluster.node_row import new_row
from mqtt_broker.cluster.statements import (
    Aborted,
    Clock,
    Commit,
    ConnectionLost,
    EndBackends,
    Expect,
    Insert,
    InsertNew,
    LockTimeout,
    Put,
    Refused,
    Rows,
    Select,
    Stale,
    Statement,
    Update,
)
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.store.schema import TABLES, prepare
from mqtt_broker.cluster.tables import GROUPS, NODES, WANTS
from sessions.store.database import StoreError
from tests.cluster.store.loop import SECRET
from tests.fault.postgres import PostgreSQL

Connect = Callable[..., StoreConnection]
PATIENCE_S = 120.0


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    prepare(database_url, "one", SECRET)
    opened: list[StoreConnection] = []

    def connect(label: str = "node", **arguments: Any) -> StoreConnection:
        url = make_url(arguments.pop("url", database_url))
        opened.append(Connector(url, "one", TABLES, **arguments).connect(label))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def nodes(connection: StoreConnection) -> Rows:
    return connection.execute([Select(NODES), Commit()])[0]


def make(connection: StoreConnection, *numbers: int) -> None:
    connection.execute([*(Insert(NODES, new_row(number, "e")) for number in numbers), Commit()])


def change(number: int, turn: int, *, required: bool = False) -> Update:
    return Update(NODES, {"number": number}, {"turn": turn}, required=required)


def in_thread(connection: StoreConnection, batch: list[Statement]) -> Callable[[], object]:
    """Execute a batch in a thread; return a call that waits for its rows, or its error."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(connection.execute(batch))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> object:
        thread.join(PATIENCE_S)
        return found[0]

    return wait


def test_statements_and_their_rows(connect: Connect) -> None:
    one = connect()
    make(one, 1, 2)
    rows = one.execute([change(2, 7), Update(NODES, {}, {"group": 3}), Select(WANTS), Commit()])
    first = {"number": 1, "epoch": "e", "turn": 0, "group": 3, "folded": 0}
    second = {**first, "number": 2, "turn": 7}
    assert rows == [[{**second, "group": 0}], [first, second], [], []]


@pytest.mark.parametrize(
    "text", ["", "é", "𝄞", "a/b/+/#", "$share/g/x", "\x01\x7f\x80\ufeff", "x" * 65_535, "%s '\"\\"]
)
def test_texts_are_kept(connect: Connect, text: str) -> None:
    one = connect()
    one.execute([Put(WANTS, {"number": 1, "epoch": text}), Commit()])
    assert one.execute([Select(WANTS, {"epoch": text}), Commit()])[0][0]["epoch"] == text


def test_texts_are_kept_whatever_the_environment_says(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    one = connect()
    one.execute([Put(WANTS, {"number": 1, "epoch": "é"}), Commit()])
    monkeypatch.undo()
    assert connect().execute([Select(WANTS), Commit()])[0][0]["epoch"] == "é"


def test_no_rows_are_inserted(connect: Connect) -> None:
    assert connect().execute([InsertNew(WANTS, []), Commit()]) == [[], []]


def test_bytes_are_kept(connect: Connect) -> None:
    blob = bytes(range(256)) * 4_000
    one = connect()
    one.execute([Insert(GROUPS, {"number": 1, "group": 2**62, "blob": blob}), Commit()])
    found = one.execute([Select(GROUPS, {"number": 1}, above=("group", 2**62 - 1)), Commit()])
    assert found[0] == [{"number": 1, "group": 2**62, "blob": blob}]


def test_a_text_with_a_null_character_is_refused(connect: Connect) -> None:
    one = connect()
    with pytest.raises(Aborted, match="invalid byte sequence"):
        one.execute([Put(WANTS, {"number": 1, "epoch": "a\0b"}), Commit()])
    assert one.execute([Select(WANTS), Commit()])[0] == []


def test_nothing_is_written_without_a_required_row(connect: Connect) -> None:
    one = connect()
    make(one, 1)
    with pytest.raises(Refused):
        one.execute([change(1, 5), change(2, 5, required=True), change(1, 6), Commit()])
    assert [row["turn"] for row in nodes(one)] == [0]
    one.execute([change(1, 5, required=True)])
    with pytest.raises(Refused):
        one.execute([change(2, 5, required=True), Commit()])
    assert [row["turn"] for row in nodes(one)] == [0]


def test_an_inserted_row_must_be_new(connect: Connect) -> None:
    one = connect()
    make(one, 1)
    with pytest.raises(Refused, match="cluster_nodes"):
        one.execute([change(1, 5), Insert(NODES, new_row(1, "e")), Commit()])
    assert [row["turn"] for row in nodes(one)] == [0]


def test_other_rows_than_expected(connect: Connect) -> None:
    one = connect()
    make(one, 1, 2)
    one.execute([Expect(NODES, ("number", "epoch"), [(1, "e"), (2, "e")]), Commit()])
    for rows in ([(1, "e")], [(2, "e"), (1, "e")], [(1, "e"), (2, "E")], []):
        with pytest.raises(Stale):
            one.execute([change(1, 5), Expect(NODES, ("number", "epoch"), rows), Commit()])
    assert [row["turn"] for row in nodes(one)] == [0, 0]


def test_other_rows_than_expected_of_those_that_match(connect: Connect) -> None:
    one = connect()
    make(one, 1, 2, 3)
    where = {"epoch": "e", "number": [2, 3, 4]}
    one.execute([Expect(NODES, ("number", "turn"), [(2, 0), (3, 0)], where), Commit()])
    one.execute([Expect(NODES, ("number",), [], {"epoch": "x"}), Commit()])
    for rows in ([(2, 0)], [(1, 0), (2, 0), (3, 0)], [(2, 0), (3, 1)]):
        with pytest.raises(Stale):
            one.execute([Expect(NODES, ("number", "turn"), rows, where), Commit()])


def test_a_wait_for_a_row_times_out(connect: Connect) -> None:
    one, two = connect(), connect()
    make(one, 1)
    one.execute([change(1, 5)])
    with pytest.raises(Aborted, match="lock timeout"):
        two.execute([LockTimeout(0.01), change(1, 6), Commit()])
    one.execute([Commit()])
    two.execute([change(1, 7), Commit()])  # the timeout was that of the transaction
    assert [row["turn"] for row in nodes(one)] == [7]


def test_a_ring_of_waits_is_a_deadlock(connect: Connect) -> None:
    one, two = connect(), connect()
    make(one, 1, 2)
    one.execute([change(1, 5)])
    two.execute([change(2, 6)])
    waits = in_thread(one, [change(2, 5), Commit()]), in_thread(two, [change(1, 6), Commit()])
    found = [wait() for wait in waits]
    ended = [error for error in found if isinstance(error, Aborted)]
    assert len(ended) == 1 and "deadlock" in str(ended[0])
    turns = {row["turn"] for row in nodes(one)}
    assert turns in ({5}, {6})


def test_connections_are_ended_by_their_label(connect: Connect) -> None:
    old, other, own = connect("e1"), connect("e2"), connect("e1")
    make(own, 1)
    old.execute([change(1, 5)])
    own.execute([EndBackends("e1"), change(1, 6), Commit()])  # waits until the old one has ended
    with pytest.raises(ConnectionLost) as error:
        old.execute([Commit()])
    assert error.value.is_unknown and old.is_closed
    assert [row["turn"] for row in nodes(other)] == [6]


def test_connections_of_another_role_cannot_be_ended(
    postgresql: PostgreSQL, connect: Connect, database_url: str
) -> None:
    one = connect("e1")
    make(one, 1)
    name = make_url(database_url).database
    postgresql.psql(
        str(name), f"CREATE ROLE other_{name} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public "
        f"TO other_{name}",
    )  # fmt: skip
    other = connect("e2", url=database_url.replace("postgres@", f"other_{name}@"))
    line = "connections of e1 belong to the role 'postgres', and 'other_.*' may not end them"
    with pytest.raises(Aborted, match=line):
        other.execute([EndBackends("e1"), Commit()])
    assert nodes(one) and nodes(other)


def test_a_lost_connection_is_unknown_only_after_commit(
    postgresql: PostgreSQL, connect: Connect
) -> None:
    one, two, end = connect("e1"), connect("e1"), connect("e3")
    make(end, 1)
    one.execute([change(1, 5)])
    end.execute([EndBackends("e1"), Commit()])
    with pytest.raises(ConnectionLost) as error:
        one.execute([change(1, 6)])
    assert not error.value.is_unknown
    with pytest.raises(ConnectionLost) as error:
        two.execute([change(1, 6), Commit()])
    assert error.value.is_unknown
    with pytest.raises(ConnectionLost):
        two.execute([Select(NODES), Commit()])  # and again
    assert [row["turn"] for row in nodes(end)] == [0]


def test_a_wait_is_interrupted_from_another_thread(
    postgresql: PostgreSQL, connect: Connect
) -> None:
    one, two = connect(), connect()
    make(one, 1)
    one.execute([change(1, 5)])
    wait = in_thread(two, [change(1, 6), Commit()])
    two.interrupt()
    error = wait()
    assert isinstance(error, ConnectionLost) and two.is_closed
    two.interrupt()


def test_a_server_that_does_not_answer_is_given_up(connect: Connect) -> None:
    one, two = connect(), connect(answer_s=0.05)
    make(one, 1)
    one.execute([change(1, 5)])
    with pytest.raises(ConnectionLost) as error:
        two.execute([change(1, 6), Commit()])
    assert error.value.is_unknown and two.is_closed


def test_a_server_that_never_speaks_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = make_url(f"postgresql+psycopg://postgres@127.0.0.1:{port}/one?connect_timeout=2")
        with pytest.raises(StoreError, match="cannot be reached"):
            Connector(url, "one", TABLES).connect("node")


def test_the_settings_of_a_session_are_ours(
    postgresql: PostgreSQL, connect: Connect, database_url: str
) -> None:
    name = str(make_url(database_url).database)
    for setting, value in {
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
        "idle_in_transaction_session_timeout": "0",
    }.items():
        postgresql.psql("postgres", f"ALTER DATABASE {name} SET {setting} = '{value}'")
    url = database_url + "&target_session_attrs=any"
    one, two = connect(url=url), connect(url=url)
    make(one, 1)
    two.execute([Select(NODES)])
    one.execute([change(1, 5), Commit()])
    # READ COMMITTED: a transaction sees what was committed since it began.
    assert two.execute([Select(NODES), Commit()])[0][0]["turn"] == 5


def test_a_commit_whose_standby_was_not_awaited_is_unknown(
    postgresql: PostgreSQL, connect: Connect, database_url: str
) -> None:
    one, watch = connect("e1"), connect("watch")
    make(one, 1)
    name = str(make_url(database_url).database)
    postgresql.psql(name, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    postgresql.psql(name, "SELECT pg_reload_conf()")
    try:
        wait = in_thread(one, [change(1, 5), Commit()])
        postgresql.psql(
            name,
            "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE "
            "wait_event = 'SyncRep') LOOP PERFORM pg_sleep(0.001); "
            "PERFORM pg_stat_clear_snapshot(); END LOOP; PERFORM pg_cancel_backend(pid) "
            "FROM pg_stat_activity WHERE wait_event = 'SyncRep'; END $$",
        )
        error = wait()
    finally:
        postgresql.psql(name, "ALTER SYSTEM RESET synchronous_standby_names")
        postgresql.psql(name, "SELECT pg_reload_conf()")
    assert isinstance(error, ConnectionLost) and error.is_unknown
    assert nodes(watch)[0]["turn"] == 5  # it is visible, and a fail-over would lose it


def test_a_value_that_cannot_be_sent_closes_the_connection(connect: Connect) -> None:
    one = connect()
    with pytest.raises(UnicodeEncodeError):
        one.execute([Put(WANTS, {"number": 1, "epoch": "\ud800"}), Commit()])
    assert one.is_closed


def test_a_large_batch_both_ways(connect: Connect) -> None:
    one = connect()
    blob = b"x" * 100_000
    rows = [{"number": 1, "group": at, "blob": blob} for at in range(100)]
    one.execute([*(Insert(GROUPS, row) for row in rows), Commit()])
    found = one.execute([*(Select(GROUPS, {"group": at}) for at in range(100)), Commit()])
    assert [rows[0]["group"] for rows in found[:-1]] == list(range(100))


def test_the_clock_is_the_databases(connect: Connect) -> None:
    one = connect()
    one.execute([Select(NODES)])
    first, second, _ = one.execute([Clock(), Clock(), Commit()])
    assert first[0]["now"] < second[0]["now"] < first[0]["now"] + 60  # not the transaction's

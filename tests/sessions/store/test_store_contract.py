"""What a store promises, on either database."""

from __future__ import annotations

import random

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, text

from sessions.journal import records
from sessions.store import schema
from sessions.store.store import Store, StoreError
from tests.sessions.store.histories import STREAMS
from tests.sessions.store.places import (
    BYTES_MAX,
    PATIENCE_S,
    Ledger,
    Place,
    Watch,
    check_same,
    contents,
    delivered,
    queued,
    rows_of,
    session_row,
    stored,
)


def test_a_new_store_is_empty(place: Place) -> None:
    snapshot = place.open().snapshot()
    assert (snapshot.last_number, snapshot.alive_at) == (0, 0.0)
    found = contents(snapshot)
    assert found.pop("last") == (0, 0)
    assert not any(found.values())


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_history_survives_stops_and_crashes(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger(seed)
    for _ in range(4):
        store = place.open()
        check_same(store, ledger.tables(len(ledger.groups)))
        watch = Watch(store)
        for _ in range(rng.randint(1, 6)):
            ledger.submit(watch, rng.randint(1, 12))
            if rng.random() < 0.7:
                watch.apply_soon()
        watch.until_committed()
        if rng.random() < 0.5:
            assert store.stop(PATIENCE_S)
        else:
            store.abandon()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_loses_nothing_that_was_committed(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger(1000 + seed)
    watch = Watch(place.open())
    ledger.submit(watch, 60)
    watch.until(lambda: watch.committed[-1] > rng.randint(0, 40))
    watch.apply_soon()
    watch.store.abandon()
    safe = watch.committed[-1]
    again = place.open()
    number = again.snapshot().last_number
    assert safe <= number <= 60
    check_same(again, ledger.tables(number))


def test_nothing_is_left_when_everything_has_ended(place: Place) -> None:
    ledger = Ledger(7)
    watch = Watch(place.open())
    ledger.submit(watch, 80)
    watch.until_folded()
    history = ledger.history
    ended = [records.encode_end(sid) for sid in (*history.sessions, *history.shares)]
    forgotten = [records.encode_retained(0, mid) for mid in history.retained.values()]
    gone = [records.encode_stream_gone(name) for name in STREAMS]
    watch.submit(records.seal([*ended, *forgotten, *gone]))
    watch.until_folded()
    with watch.store.database.tables.connect() as connection:
        for table in schema.tables.tables.values():
            if table is not schema.meta:
                assert rows_of(connection, "*", table.name) == []


def test_one_message_for_many_is_one_row(place: Place) -> None:
    watch = Watch(place.open())
    sids = range(1, 301)
    sessions = [records.encode_session(session_row(sid)) for sid in sids]
    message = stored(1, [b"x" * 1000])
    watch.submit(records.seal([*sessions, message, *(delivered(sid, 1, 1, 1) for sid in sids)]))
    watch.until_folded()
    with watch.store.database.tables.connect() as connection:
        assert rows_of(connection, "mid, refs", "messages") == [(1, 300)]
    done = [records.encode_done(sid, [(1, 1, 1)]) for sid in range(1, 300)]
    watch.submit(records.seal(done))
    watch.until_folded()
    with watch.store.database.tables.connect() as connection:
        assert rows_of(connection, "mid, refs", "messages") == [(1, 1)]
        assert rows_of(connection, "sid, n", "deliveries") == [(300, 1)]
    watch.submit(records.seal([records.encode_end(300)]))
    watch.until_folded()
    with watch.store.database.tables.connect() as connection:
        assert rows_of(connection, "mid", "messages") == []


def test_what_comes_and_goes_between_folds_never_becomes_a_row(place: Place) -> None:
    watch = Watch(place.open())
    watch.submit(queued(1, 100))
    watch.submit(records.seal([records.encode_done(1, [(1, 1, 90)])]))
    watch.until_folded()
    with watch.store.database.tables.connect() as connection:
        assert len(rows_of(connection, "mid", "messages")) == 10
    stats = watch.store
    assert (stats.folded, stats.cancelled, stats.lag) == (2, 90, 0)
    assert 1 <= stats.commits <= 2


def test_pages(place: Place) -> None:
    watch = Watch(place.open())
    assert watch.page(1, 0, 10, BYTES_MAX) == []
    watch.submit(queued(1, 1000))
    watch.until_folded()
    watch.submit(
        records.seal([records.encode_sent(1, [(3, 77)]), records.encode_done(1, [(5, 5, 2)])])
    )
    watch.until_folded()

    def numbers(after_n: int, messages_max: int, bytes_max: int) -> list[int]:
        found = watch.page(1, after_n, messages_max, bytes_max)
        assert all(one.mid == message.mid == one.n for one, message in found)
        return [one.n for one, _ in found]

    assert numbers(0, 6, BYTES_MAX) == [1, 2, 4, 7, 8, 9]
    assert numbers(9, 3, BYTES_MAX) == [10, 11, 12]
    assert numbers(0, 1000, 350) == [1, 2, 4]
    assert numbers(2, 1000, 1) == [4]
    assert numbers(999, 10, BYTES_MAX) == [1000]
    assert numbers(1000, 10, BYTES_MAX) == []
    assert len(numbers(0, 2000, BYTES_MAX)) == 997
    assert [message.payload for _, message in watch.page(1, 998, 9, BYTES_MAX)] == [
        b"00998",
        b"00999",
    ]


def test_packet_ids_keep_their_order(place: Place) -> None:
    watch = Watch(place.open())
    watch.submit(queued(1, 6))
    watch.submit(
        records.seal([records.encode_sent(1, [(n, 50 - n) for n in range(1, 7)])])
    )  # fmt: skip
    watch.until_folded()
    for n in (4, 1, 6):
        watch.submit(records.seal([records.encode_released(1, [(n, n, 50 - n)])]))
    watch.until_folded()
    watch.submit(records.seal([records.encode_ids(records.COMPLETED, 1, [49])]))
    watch.submit(records.seal([records.encode_released(1, [(2, 2, 48)])]))
    watch.submit(records.seal([records.encode_ids(records.RECEIVED, 1, [9, 8, 7])]))
    watch.store.stop(PATIENCE_S)
    snapshot = place.open().snapshot()
    assert list(snapshot.releases) == [(1, [46, 44, 48])]
    assert list(snapshot.received) == [(1, [9, 8, 7])]
    assert [(row.n, row.packet_id) for row, _ in snapshot.windows] == [(3, 47), (5, 45)]


def test_numbers_follow_one_another(place: Place) -> None:
    watch = Watch(place.open())
    with pytest.raises(ValueError, match="group 2 cannot follow 0"):
        watch.store.submit(2, queued(1, 1), 1.0)
    watch.submit(queued(1, 1))
    with pytest.raises(ValueError, match="group 1 cannot follow 1"):
        watch.store.submit(1, queued(1, 1), 1.0)


def test_a_stop_commits_and_folds_what_was_submitted(place: Place) -> None:
    ledger = Ledger(3)
    watch = Watch(place.open())
    ledger.submit(watch, 40)
    assert watch.store.stop(PATIENCE_S)
    assert watch.committed[-1] == watch.folded[-1] == 40
    assert not watch.store.lag
    assert watch.store.stop(1)  # again, for nothing
    store = place.open()
    check_same(store, ledger.tables(40))
    with store.database.journal.connect() as connection:
        assert rows_of(connection, "number", "journal") == []
    assert store.snapshot().alive_at > 1_000_000_000  # the real time of the stop


def test_a_store_that_was_never_started_can_be_stopped(place: Place) -> None:
    assert place.open().stop(PATIENCE_S)
    assert place.open().snapshot().last_number == 0


def test_one_broker_a_store(place: Place) -> None:
    store = place.open()
    with pytest.raises(StoreError, match=r"another (process|broker) uses this"):
        place.open()
    Watch(store)
    with pytest.raises(StoreError, match=r"another (process|broker) uses this"):
        place.open()
    store.abandon()
    place.open()


def test_a_store_can_be_asked_for_that_must_exist(place: Place) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        place.open(must_exist=True)
    place.open().stop(PATIENCE_S)
    place.open(must_exist=True)


def test_a_newer_store_is_refused(place: Place) -> None:
    store = place.open()
    with store.database.tables.connect() as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.abandon()
    with pytest.raises(StoreError, match=r"written by a newer FleetMQ \(schema 9999"):
        place.open()


def test_steps_lead_to_the_tables_the_program_uses(place: Place) -> None:
    store = place.open()
    database = store.database
    everything = MetaData()
    for known in (schema.tables, schema.journal_tables):
        for table in known.sorted_tables:
            table.to_metadata(everything)
    found = []
    for engine, wanted in (
        [(database.tables, schema.tables), (database.journal, schema.journal_tables)]
        if place.is_sqlite
        else [(database.tables, everything)]
    ):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            found += compare_metadata(context, wanted)
    assert found == []


def test_the_newest_step_is_known() -> None:
    assert ScriptDirectory(str(schema.MIGRATIONS)).get_current_head() == schema.HEAD


def test_a_url_that_names_no_store(tmp_path: object) -> None:
    for url, said in (
        ("nonsense", "not a database URL"),
        ("sqlite://", "must name a file"),
        ("mysql://user:secret@host/db", "unsupported database 'mysql'"),
        ("postgresql+psycopg://user:secret@127.0.0.1:1/db", "connection|needs the Python package"),
    ):
        with pytest.raises(StoreError, match=said) as refused:
            Store.open(data_dir="", database_url=url)
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)

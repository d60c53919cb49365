"""The state of a store that is written to, copied as of one moment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from sessions.store import database, export_import, online_copy
from sessions.store.online_copy import LINES_FILE, StateSnapshot, open_snapshot
from tests.sessions.store.places import Ledger, Place, Watch, check_same, queued


def restored(place: Place, snapshot: StateSnapshot, directory: Path) -> Place:
    """Write the copy, and return the place of a store that is made of it."""
    directory.mkdir()
    written: list[int] = []
    files = snapshot.write(directory, written.append)
    assert sum(written) == sum(file.stat().st_size for file in files) > 0
    if place.is_sqlite:
        assert sorted(path.name for path in directory.iterdir()) == ["fleetmq.db", "journal.db"]
        return Place(directory)
    back = Place(directory / "data")
    with (directory / LINES_FILE).open("rb") as lines:
        store = back.open()
        export_import.load(store, lines)
        store.abandon()
    return back


def test_what_came_before_is_in_the_copy_and_nothing_later(place: Place, tmp_path: Path) -> None:
    ledger = Ledger(4)
    watch = Watch(place.open())
    ledger.submit(watch, 60)
    watch.until_folded()  # some of it is in the tables,
    ledger.submit(watch, 40)
    watch.until_committed()  # and some in the journal alone
    snapshot = open_snapshot(watch.store.database)
    ledger.submit(watch, 50)
    watch.until_folded()
    back = restored(place, snapshot, tmp_path / "copy")
    snapshot.close()
    check_same(back.open(), ledger.tables(100))
    back.close()
    ledger.submit(watch, 10)
    watch.until_folded()
    check_same(watch.store, ledger.tables(160))


def test_copies_while_groups_arrive(place: Place, tmp_path: Path) -> None:
    """Each has a prefix of the groups, whatever the store's threads do meanwhile."""
    ledger = Ledger(5)
    watch = Watch(place.open())
    for at in range(4):
        ledger.submit(watch, 30)
        if at % 2:
            watch.apply_soon()
        before = watch.committed[-1]
        snapshot = open_snapshot(watch.store.database)
        ledger.submit(watch, 10)
        back = restored(place, snapshot, tmp_path / f"copy{at}")
        snapshot.close()
        store = back.open()
        last = store.snapshot().last_number if place.is_sqlite else None
        assert last is None or before <= last <= len(ledger.groups)
        if last is not None:
            check_same(store, ledger.tables(last))
        back.close()


def test_ends_of_the_log_are_those_of_the_moment(place: Place, tmp_path: Path) -> None:
    store = place.open()
    with store.database.journal.connect() as connection, connection.begin():
        connection.execute(text("INSERT INTO stream_ends VALUES ('s', '{}')"))
    snapshot = open_snapshot(store.database)
    with store.database.journal.connect() as connection, connection.begin():
        connection.execute(text("UPDATE stream_ends SET ends = 'later'"))
    assert snapshot.ends == {"s": "{}"}
    back = restored(place, snapshot, tmp_path / "copy")
    snapshot.close()
    assert back.open().snapshot().stream_ends == {"s": "{}"}
    back.close()


def test_a_journal_that_falls_behind_is_read_again(
    files: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that was committed and applied between the two transactions is not lost."""
    watch = Watch(files.open())
    real = database.execute
    is_first = True

    def execute(*arguments: object) -> object:
        nonlocal is_first
        found = real(*arguments)  # type: ignore[arg-type]
        if is_first and "removed_to" in str(arguments[1]):
            is_first = False
            watch.submit(queued(1, 3))
            watch.until_folded()
        return found

    monkeypatch.setattr(online_copy, "execute", execute)
    snapshot = open_snapshot(watch.store.database)
    back = restored(files, snapshot, tmp_path / "copy")
    snapshot.close()
    assert not is_first
    assert [row.client_id for row in back.open().snapshot().sessions] == ["client-1"]
    back.close()


def test_a_copy_that_is_interrupted_leaves_the_store_as_it_was(
    place: Place, tmp_path: Path
) -> None:
    watch = Watch(place.open())
    watch.submit(queued(1, 3))
    watch.until_folded()
    directory = tmp_path / "copy"
    directory.mkdir()
    snapshot = open_snapshot(watch.store.database)

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        snapshot.write(directory, stop)
    snapshot.close()
    shutil.rmtree(directory)
    watch.submit(queued(2, 3))
    watch.until_folded()
    assert snapshot_of(watch, tmp_path / "second") > 0


def snapshot_of(watch: Watch, directory: Path) -> int:
    directory.mkdir()
    snapshot = open_snapshot(watch.store.database)
    try:
        return sum(path.stat().st_size for path in snapshot.write(directory, lambda _: None))
    finally:
        snapshot.close()

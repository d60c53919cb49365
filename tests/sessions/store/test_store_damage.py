"""Damaged files are refused with one line that says what to do, and left as they are.

With `recover` what can be read is saved, the old files are kept, and what is lost is said.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from sessions.store import sqlite_files as sqlite_files
from sessions.store.store import Store, StoreError
from tests.sessions.store.log_files import EMPTY, LogFiles
from tests.sessions.store.places import PATIENCE_S, Ledger, Place, Watch, check_same

FOLDED: Final = 60
GROUPS: Final = 70
ADVICE: Final = "start once with --recover to save what is left"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """A store with rows in the tables and groups in the journal, as a crash leaves it."""
    place = Place(tmp_path_factory.mktemp("whole") / "data")
    ledger = Ledger(42)
    watch = Watch(place.open())
    ledger.submit(watch, FOLDED)
    watch.until_folded()
    ledger.submit(watch, GROUPS - FOLDED)
    watch.until_committed()
    place.close()
    return place.data_dir, ledger


@pytest.fixture
def logged(broken: Place, whole: tuple[Path, Ledger]) -> Place:
    """The same with a telemetry log beside it."""
    log = LogFiles()
    log.watch = watch = Watch(broken.open(), log)
    log.append(watch.number + 1, "telemetry", 3)
    for _ in range(3):
        watch.submit(EMPTY)
    watch.until_folded()
    for _ in range(3):
        log.append(watch.number + 1, "other", 3)
        watch.submit(EMPTY)
    watch.until_committed()
    broken.close()
    assert whole[1].tables(GROUPS).streams
    return broken


def tables_of(place: Place) -> Path:
    return place.data_dir / "fleetmq.db"


def journal_of(place: Place) -> Path:
    return place.data_dir / "journal.db"


@pytest.fixture
def broken(files: Place, whole: tuple[Path, Ledger]) -> Place:
    shutil.copytree(whole[0], files.data_dir)
    return files


def overwrite(path: Path, start: int, count: int, what: bytes = b"\0") -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(what * count)


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def spoil_group(path: Path, after: int = FOLDED + 1) -> None:
    """One bit of one group: SQLite itself cannot see it."""
    with sqlite3.connect(path) as connection:
        number, data = connection.execute(
            "SELECT number, data FROM journal WHERE number > ? LIMIT 1", (after,)
        ).fetchone()
        spoilt = data[:-1] + bytes((data[-1] ^ 1,))
        connection.execute("UPDATE journal SET data = ? WHERE number = ?", (spoilt, number))
    connection.close()


def lose_group(path: Path, number: int = FOLDED + 2) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM journal WHERE number = ?", (number,))
    connection.close()


def other_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sessions (whose TEXT)")
    connection.close()


DAMAGES: Final[dict[str, tuple[Callable[[Path, Path], None], str]]] = {
    "no tables": (lambda t, j: t.unlink(), "fleetmq.db is missing, but journal.db is there"),
    "no journal": (lambda t, j: j.unlink(), "journal.db is missing, but fleetmq.db is there"),
    "empty tables": (lambda t, j: cut(t, 0), "fleetmq.db is empty"),
    "empty journal": (lambda t, j: cut(j, 0), "journal.db is empty"),
    "tables half": (lambda t, j: cut(t, 0.5), "fleetmq.db: database is damaged"),
    "journal half": (lambda t, j: cut(j, 0.5), "journal.db: database is damaged"),
    "tables torn": (lambda t, j: os.truncate(t, t.stat().st_size - 100), "is truncated"),
    "journal torn": (lambda t, j: os.truncate(j, j.stat().st_size - 100), "is truncated"),
    "tables' head": (lambda t, j: overwrite(t, 0, 4096), "it has no SQLite header"),
    "journal's head": (lambda t, j: overwrite(j, 0, 100), "it has no SQLite header"),
    "garbage in the tables": (
        lambda t, j: overwrite(t, 20 * 4096, 8 * 4096, b"\xa5"),
        "fleetmq.db is damaged",
    ),
    "zeros in the journal": (
        lambda t, j: overwrite(j, j.stat().st_size // 8192 * 4096, 8 * 4096),
        "journal.db is damaged",
    ),
    "a spoilt group": (lambda t, j: spoil_group(j), "does not match its checksum"),
    "a group lost": (lambda t, j: lose_group(j), f"group {FOLDED + 2} is missing"),
    "another program's": (lambda t, j: other_program(t), "is a SQLite file, but not FleetMQ's"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_and_recovered(
    broken: Place, whole: tuple[Path, Ledger], damage: str
) -> None:
    spoil, said = DAMAGES[damage]
    spoil(tables_of(broken), journal_of(broken))
    before = {path.name: path.read_bytes() for path in broken.data_dir.glob("*.db")}
    with pytest.raises(StoreError) as refused:
        broken.open()
    line = str(refused.value)
    assert said in line
    assert ADVICE in line
    assert "\n" not in line
    # Nothing was written, so a backup or another attempt has all there was.
    assert {path.name: path.read_bytes() for path in broken.data_dir.glob("*.db")} == before

    log: list[str] = []
    store = broken.open(recover=True, log=log.append)
    assert any("lost" in line or "nothing of" in line or "saved" in line for line in log)
    for name, old in before.items():
        kept = [path.read_bytes() for path in broken.data_dir.glob(f"{name}.damaged-*")]
        assert kept == [old]
    live_on(store, broken, whole[1])


def live_on(store: Store, place: Place, ledger: Ledger) -> None:
    """Whatever was saved is sound: it takes groups, and everything in it can be taken out."""
    history = Ledger(43)
    history.history.sid = store.snapshot().last_sid
    history.history.mid = store.snapshot().last_mid
    assert history.history.mid <= ledger.history.mid
    watch = Watch(store)
    for blob, at in history.history.groups(20):
        watch.submit(blob, at)
    watch.until_folded()
    assert store.stop(PATIENCE_S)
    names = {path.name for path in place.data_dir.iterdir() if "damaged" not in path.name}
    assert names == {"fleetmq.db", "journal.db", "lock"}
    sound = place.open()
    for iterator in (
        "sessions",
        "subscriptions",
        "windows",
        "releases",
        "backlogs",
        "shared",
        "retained",
    ):
        list(getattr(sound.snapshot(), iterator))


@pytest.mark.parametrize(
    "damage", ["tables' head", "journal's head", "tables torn", "no journal", "a spoilt group"]
)
def test_what_can_be_saved_is_saved(broken: Place, whole: tuple[Path, Ledger], damage: str) -> None:
    """Everything, or all but what one lost group or one lost journal had."""
    ledger = whole[1]
    DAMAGES[damage][0](tables_of(broken), journal_of(broken))
    store = broken.open(recover=True)
    if damage == "no journal":
        check_same(store, ledger.tables(FOLDED))
    elif damage != "a spoilt group":
        check_same(store, ledger.tables(GROUPS))
    else:
        found = {row.sid for row in store.snapshot().sessions}
        wanted = set(ledger.tables(GROUPS).sessions)
        assert len(found & wanted) > len(wanted) // 2


def spoil_ends(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE stream_ends SET ends = x'ff' WHERE name = 'other'")
    connection.close()


def zero_ends(path: Path) -> None:
    """The page that has them, and no other."""
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'stream_ends'")
        page = found.fetchone()[0]
    connection.close()
    overwrite(path, (page - 1) * 4096, 4096)


@pytest.mark.parametrize(
    ("damage", "is_kept"),
    [
        *((name, True) for name in ("tables' head", "tables torn", "journal's head", "no tables")),
        *((name, False) for name in ("no journal", "empty journal", "a spoilt group")),
        *((name, False) for name in ("a group lost", "no page of ends", "ends of no sense")),
    ],
)
def test_the_ends_of_the_log_are_believed_when_nothing_of_the_journal_is_missing(
    logged: Place, whole: tuple[Path, Ledger], damage: str, is_kept: bool
) -> None:
    if damage == "no page of ends":
        zero_ends(journal_of(logged))
    elif damage == "ends of no sense":
        spoil_ends(journal_of(logged))
        cut(tables_of(logged), 0.5)
    elif damage == "a group lost":
        lose_group(journal_of(logged), GROUPS + 5)
    elif damage == "a spoilt group":
        spoil_group(journal_of(logged), GROUPS + 4)
    else:
        DAMAGES[damage][0](tables_of(logged), journal_of(logged))
    log: list[str] = []
    store = logged.open(recover=True, log=log.append)
    snapshot = store.snapshot()
    assert snapshot.stream_ends == ({"telemetry": "3", "other": "9"} if is_kept else {})
    assert snapshot.has_lost_ends is not is_kept
    assert any("the log's own files decide" in line for line in log) is not is_kept
    # It is said at the start that lost them, and at no later one.
    store.abandon()
    assert not logged.open().snapshot().has_lost_ends


def test_recover_leaves_a_sound_store_alone(broken: Place, whole: tuple[Path, Ledger]) -> None:
    log: list[str] = []
    check_same(broken.open(recover=True, log=log.append), whole[1].tables(GROUPS))
    assert log == []


def test_a_journal_of_another_store_is_refused(broken: Place, tmp_path: Path) -> None:
    Place(tmp_path).open().stop(PATIENCE_S)
    shutil.copy(tmp_path / "journal.db", journal_of(broken))
    with pytest.raises(StoreError, match="belongs to another store"):
        broken.open()


@pytest.mark.parametrize("part", ["fleetmq.db", "journal.db"])
def test_one_file_from_a_backup_is_refused(files: Place, tmp_path: Path, part: str) -> None:
    """They are of one time or they are of no use."""
    ledger = Ledger(44)
    for _ in range(2):
        watch = Watch(files.open())
        ledger.submit(watch, 10)
        assert watch.store.stop(PATIENCE_S)
        if not (tmp_path / part).exists():
            shutil.copy(files.data_dir / part, tmp_path / part)
    shutil.copy(tmp_path / part, files.data_dir / part)
    with pytest.raises(StoreError, match="is older than"):
        files.open()


def test_a_first_start_that_was_cut_short_is_no_damage(files: Place) -> None:
    files.open().stop(PATIENCE_S)
    tables_of(files).unlink()
    files.open().stop(PATIENCE_S)


def test_a_recovery_that_was_cut_short_is_finished(
    broken: Place, whole: tuple[Path, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at each rename: never is there a moment when a start would find an empty store."""
    overwrite(tables_of(broken), 0, 4096)
    real = os.replace
    for nth in range(1, 30):
        again = broken.data_dir.with_name(f"again{nth}")
        shutil.copytree(broken.data_dir, again)
        calls = 0

        def replace(source: Path, target: Path, nth: int = nth) -> None:
            nonlocal calls
            if "rescue" in source.name or "recovered" in source.name or "damaged" in target.name:
                calls += 1
                if calls == nth:
                    raise KeyboardInterrupt
            real(source, target)

        place = Place(again)
        monkeypatch.setattr(os, "replace", replace)
        try:
            place.open(recover=True).abandon()
            assert calls < nth
            break
        except KeyboardInterrupt:
            monkeypatch.setattr(os, "replace", real)
        store = place.open(recover=True)
        check_same(store, whole[1].tables(GROUPS))
        store.abandon()
    else:
        pytest.fail("it never came to an end")


def test_the_lock_names_who_holds_it(files: Place) -> None:
    files.open()
    with pytest.raises(StoreError, match=rf"pid {os.getpid()} holds .*lock"):
        files.open()


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(data_dir=str(tmp_path / "file" / "data"))


def test_large_files_are_not_read_whole_at_each_start(
    broken: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But with `recover` they are."""
    for module in ("sqlite_files", "store"):
        monkeypatch.setattr(f"sessions.store.{module}.CHECKED_BYTES_MAX", 1000)
    broken.open().stop(PATIENCE_S)
    middle = tables_of(broken).stat().st_size // 8192 * 4096  # of some long topic
    overwrite(tables_of(broken), middle, 4096, b"\xa5")
    log: list[str] = []
    broken.open().abandon()
    broken.open(recover=True, log=log.append)
    assert "is damaged" in log[0]

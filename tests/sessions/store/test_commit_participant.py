"""Files that belong to groups are written before them, and told after them: the telemetry log.

Whatever fails when, what the journal has of them is what belongs to the groups it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from sessions.journal import records
from sessions.store import worker, writer
from sessions.store.store import Store
from tests.sessions.store.log_files import EMPTY, LogFiles
from tests.sessions.store.places import PATIENCE_S, Place, StorePart, Watch, rows_of, session_row
from tests.sessions.store.sabotage import CALLS_MAX, STEPS, sabotaged


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RETRY_S", 0.001)
    monkeypatch.setattr(worker, "RETRY_S_MAX", 0.01)


def begin(place: Place, files: LogFiles) -> Watch:
    store = place.open()
    # A crash between log and journal is what the log's own recovery is for: here what the
    # journal does not know is gone.
    number = store.snapshot().last_number
    files.appended = [one for one in files.appended if one[0] <= number]
    files.known = dict(store.snapshot().stream_ends)
    files.written = number
    files.watch = watch = Watch(store, files)
    return watch


def submit(watch: Watch, files: LogFiles, *streams: str, blob: bytes = EMPTY) -> None:
    for name in streams:
        files.append(watch.number + 1, name, 3)
    watch.submit(blob)


def check(place: Place, files: LogFiles) -> None:
    """The journal has the ends that belong to its last group, and no others."""
    place.close()
    store = place.open()
    snapshot = store.snapshot()
    assert snapshot.stream_ends == files.ends(snapshot.last_number)
    assert not snapshot.has_lost_ends
    store.abandon()


def test_log_then_journal_then_readers_then_acknowledgements(place: Place) -> None:
    store = place.open()
    said: list[tuple[str, Any]] = []
    done = threading.Event()

    def numbers() -> list[int]:
        with store.database.journal.connect() as connection:
            connection.execution_options(sqlite_reads=True)
            return [row[0] for row in rows_of(connection, "number", "journal")]

    class Seen(StorePart):
        def is_durable_alone(self, number: int) -> bool:
            return False

        def write(self, number: int, *, stands_alone: bool = False) -> dict[str, str]:
            said.append(("write", (number, numbers())))
            return {"telemetry": "7"}

        def committed(self, ends: object, *, stands_alone: bool = False) -> None:
            said.append(("commit", (ends, numbers())))

    def on_committed(number: int) -> None:
        said.append(("committed", number))
        done.set()

    store.writer.gather_more = lambda: None  # type: ignore[method-assign]
    store.enlist(Seen())
    store.start(on_committed, lambda _: None, lambda _: None)
    store.submit(1, EMPTY, 1.0)
    assert done.wait(60)
    store.abandon()
    assert said[:3] == [
        ("write", (1, [])),
        ("commit", ({"telemetry": "7"}, [1])),
        ("committed", 1),
    ]


def test_ends_are_there_after_a_stop_and_after_a_crash(place: Place) -> None:
    files = LogFiles()
    watch = begin(place, files)
    submit(watch, files, "telemetry", "other")
    submit(watch, files, "telemetry")
    submit(watch, files)
    watch.until_committed()
    assert files.known == {"telemetry": "6", "other": "3"} == files.recorded()
    check(place, files)
    watch = begin(place, files)
    submit(watch, files, "telemetry")
    assert watch.store.stop(PATIENCE_S)
    check(place, files)
    assert files.ends(9) == {"telemetry": "9", "other": "3"}


def test_a_full_disk_holds_up_commits_and_says_so(place: Place) -> None:
    files = LogFiles()
    watch = begin(place, files)
    submit(watch, files, "telemetry")
    watch.until_committed()
    opened: list[object] = []

    def count(driver: object, _: object) -> None:
        if threading.current_thread().name == "fleetmq-journal":
            opened.append(driver)

    tried_again = threading.Event()

    def fail(stage: str, call: int) -> bool:
        if files.failed > 3:
            tried_again.set()
        return stage == "write"

    event.listen(watch.store.database.journal, "connect", count)
    files.fails = fail
    submit(watch, files, "telemetry")
    submit(watch, files, "other")
    watch.until_state("telemetry log: disk full")
    assert watch.committed[-1] == 1
    assert tried_again.wait(60)
    assert not opened  # the database had nothing to do with it
    files.fails = lambda stage, call: False
    watch.until_committed()
    watch.until_state("")
    assert [state for state in watch.states if state] == ["telemetry log: disk full"]
    check(place, files)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "p0/1.seg"), "disk full (p0/1.seg)"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (RuntimeError("stream 'a' is full\nof surprises"), "stream 'a' is full"),
        (KeyError(), "KeyError"),
    ],
)
def test_whatever_it_raises_is_one_line(files: Place, error: Exception, said: str) -> None:
    beside = LogFiles()
    watch = begin(files, beside)
    beside.error = error
    beside.fails = lambda stage, call: beside.failed < 3
    submit(watch, beside, "telemetry")
    watch.until_committed()
    watch.until_state("")
    assert [state for state in watch.states if state] == [f"telemetry log: {said}"]


def test_readers_who_cannot_be_told_hold_up_nobody(place: Place) -> None:
    """The groups are safe: only the telling is repeated."""
    files = LogFiles()
    watch = begin(place, files)
    files.fails = lambda stage, call: stage == "commit"
    for _ in range(5):
        submit(watch, files, "telemetry")
        watch.until_committed()
        watch.until_state("telemetry log: disk full")
    assert files.known == {}
    assert files.recorded() == {"telemetry": "15"}
    files.fails = lambda stage, call: False
    watch.until(lambda: files.known == {"telemetry": "15"} and not watch.states[-1])
    assert watch.committed == sorted(set(watch.committed))
    check(place, files)


def test_one_thing_fails_after_the_other(files: Place) -> None:
    beside = LogFiles()
    watch = begin(files, beside)
    submit(watch, beside, "telemetry")
    watch.until_folded()
    with sabotaged(1, after_commit=False):
        beside.fails = lambda stage, call: beside.failed < 2
        submit(watch, beside, "telemetry")
        watch.until_committed()
    watch.until_state("")
    said = [state for state in watch.states if state]
    assert said[0] == "telemetry log: disk full"
    assert said[-1] == "journal: sabotage"
    check(files, beside)


def test_a_commit_that_nobody_heard_of_and_more_behind_it(place: Place) -> None:
    """Both what was committed unheard and what came meanwhile, each once."""
    files = LogFiles()
    watch = begin(place, files)
    submit(watch, files, "telemetry")
    watch.until_committed()
    lost = threading.Event()

    def hold(stage: str, call: int) -> bool:
        """Between the lost commit and its repetition more comes."""
        if stage == "write" and files.written == 2 and not lost.is_set():
            lost.set()
            submit(watch, files, "telemetry", "other")
            return True
        return False

    files.fails = hold
    with sabotaged(1, after_commit=True) as sabotage:
        submit(watch, files, "telemetry")
        watch.until(lambda: watch.committed[-1] == 3)
    assert sabotage.calls > 1
    assert lost.is_set()
    watch.until_state("")
    assert files.known == {"telemetry": "9", "other": "3"} == files.recorded()
    check(place, files)


def live(watch: Watch, files: LogFiles) -> None:
    """A short life, to its end."""
    blob = records.seal([records.encode_session(session_row(1))])
    submit(watch, files, "telemetry")
    submit(watch, files, "telemetry", "other", blob=blob)
    watch.until_committed()
    submit(watch, files, blob=blob)
    watch.until_folded()
    watch.store.forget_ends("never")
    submit(watch, files, "other")
    watch.until_committed()
    assert watch.store.stop(PATIENCE_S)
    assert watch.committed == sorted(set(watch.committed))
    assert watch.states[-1] == ""
    assert files.known == files.ends(watch.number)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("stands_alone", [False, True], ids=["", "alone"])
@pytest.mark.parametrize("after_commit", [False, True], ids=["undone", "unknown"])
def test_the_nth_call_of_the_database_fails(
    place: Place, after_commit: bool, stands_alone: bool, step: int
) -> None:
    """From the start on: those of an opening are counted in test_store_failures."""
    files = LogFiles()
    files.may_stand_alone = stands_alone
    for nth in range(1 + after_commit % step, CALLS_MAX, step):
        watch = begin(place, files)
        with sabotaged(nth, after_commit=after_commit) as sabotage:
            live(watch, files)
        if sabotage.calls < nth:
            break
        if nth // step % 5 == 0:
            check(place, files)
    else:
        pytest.fail("the store never stopped calling")
    check(place, files)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("stands_alone", [False, True], ids=["", "alone"])
def test_the_nth_stage_of_the_log_fails(place: Place, stands_alone: bool, step: int) -> None:
    """Before and after it has written; before and after it has told its readers."""
    files = LogFiles()
    files.may_stand_alone = stands_alone
    for nth in range(1 + stands_alone % step, CALLS_MAX, step):
        files.calls = files.failed = 0
        files.fails = _only(nth)
        watch = begin(place, files)
        live(watch, files)
        check(place, files)
        if not files.failed:
            break
        assert any("telemetry log: disk full" in state for state in watch.states), nth
    else:
        pytest.fail("the store never stopped calling")


def test_groups_without_records_are_safe_before_the_database_hears_of_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "UNRECORDED_S", 3600.0)
    monkeypatch.setattr(writer, "IDLE_S", 3600.0)
    files = LogFiles()
    files.may_stand_alone = True
    watch = begin(place, files)
    for _ in range(3):
        submit(watch, files, "telemetry")
        watch.until_committed()
    assert files.alone == 3 and files.recorded() == {}
    submit(watch, files, "other", blob=records.seal([records.encode_session(session_row(1))]))
    watch.until_folded()
    assert files.alone == 3 and files.recorded() == {"telemetry": "9", "other": "3"}
    submit(watch, files, "telemetry")
    watch.until_committed()
    assert watch.store.flush(PATIENCE_S)
    assert files.alone == 4 and files.recorded() == {"telemetry": "12", "other": "3"}
    check(place, files)


def test_the_database_hears_of_them_after_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "IDLE_S", 0.01)
    files = LogFiles()
    files.may_stand_alone = True
    watch = begin(place, files)
    submit(watch, files, "telemetry")
    watch.until_folded()
    assert files.alone == 1 and files.recorded() == {"telemetry": "3"}
    monkeypatch.setattr(writer, "IDLE_S", 3600.0)
    monkeypatch.setattr(writer, "UNRECORDED_MAX", 2)
    for _ in range(5):
        submit(watch, files, "telemetry")
        watch.until_committed()
    assert files.alone == 5 and files.recorded() == {"telemetry": "12"}
    check(place, files)


def _only(nth: int) -> Callable[[str, int], bool]:
    return lambda stage, call: call == nth


def test_a_crash_at_any_stage(place: Place) -> None:
    """From the n-th stage on nothing works, and then the process is gone."""
    files = LogFiles()
    for nth in range(1, 12):
        files.calls = 0
        files.fails = _from(nth)
        watch = begin(place, files)
        for _ in range(3):
            submit(watch, files, "telemetry")
        watch.until_state_or_committed()
        safe = watch.committed[-1]
        watch.store.abandon()
        check(place, files)
        store = place.open()
        assert store.snapshot().last_number >= safe
        store.abandon()


def _from(nth: int) -> Callable[[str, int], bool]:
    return lambda stage, call: call >= nth


def test_a_stop_that_cannot_write_says_so(place: Place) -> None:
    files = LogFiles()
    watch = begin(place, files)
    files.fails = lambda stage, call: True
    submit(watch, files, "telemetry")
    watch.until_state("telemetry log: disk full")
    assert not watch.store.stop(0.2)
    check(place, files)


# Ends that are forgotten.


def ends_of(place: Place) -> dict[str, str]:
    store = place.open()
    try:
        return store.snapshot().stream_ends
    finally:
        store.abandon()


def test_forgotten_ends_go_without_a_commit(place: Place) -> None:
    files = LogFiles()
    watch = begin(place, files)
    submit(watch, files, "telemetry", "other")
    assert watch.store.stop(PATIENCE_S)
    watch = begin(place, files)
    watch.store.forget_ends("telemetry")
    watch.store.forget_ends("no such")
    assert watch.store.stop(PATIENCE_S)
    assert ends_of(place) == {"other": "3"}


def test_what_comes_again_under_a_forgotten_name_stays(place: Place) -> None:
    files = LogFiles()
    watch = begin(place, files)
    submit(watch, files, "telemetry")
    watch.until_committed()
    files.fails = lambda stage, call: stage == "write"  # so that all of it is one commit
    watch.store.forget_ends("telemetry")
    watch.until_state("telemetry log: disk full")
    files.appended.clear()
    files.known.clear()
    files.append(watch.number + 1, "telemetry", 1)
    watch.submit(EMPTY)
    files.fails = lambda stage, call: False
    watch.until_committed()
    assert watch.store.stop(PATIENCE_S)
    assert ends_of(place) == {"telemetry": "1"}
    assert [state for state in watch.states if state] == ["telemetry log: disk full"]


# Groups without records: only the log had something.


def test_empty_groups_are_folded_and_removed(place: Place) -> None:
    watch = Watch(place.open())
    for _ in range(300):
        watch.submit(EMPTY)
    watch.submit(records.seal([records.encode_session(session_row(1))]))
    for _ in range(300):
        watch.submit(EMPTY)
    assert watch.store.stop(PATIENCE_S)
    store = place.open()
    snapshot = store.snapshot()
    assert snapshot.last_number == 601
    assert [row.sid for row in snapshot.sessions] == [1]
    with store.database.journal.connect() as connection:
        assert rows_of(connection, "number", "journal") == []


def test_empty_groups_survive_a_crash(place: Place) -> None:
    watch = Watch(place.open())
    for _ in range(40):
        watch.submit(EMPTY)
    watch.until_committed()
    watch.store.abandon()
    assert place.open().snapshot().last_number == 40


def test_a_fold_of_empty_groups_asks_the_tables_for_nothing(files: Place) -> None:
    """One statement: that they are folded."""
    store: Store = files.open()
    watch = Watch(store)
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    watch.submit(EMPTY)
    watch.until_folded()
    event.listen(store.database.tables, "before_cursor_execute", note)
    for _ in range(20):
        watch.submit(EMPTY)
    watch.until_folded()
    changing = [one for one in statements if not one.startswith(("BEGIN", "SELECT"))]
    assert changing
    assert all(one.startswith("UPDATE meta") for one in changing)

"""The state as lines of JSON: out of one database, into another and back, the same."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqtt_broker.cli.main import main
from sessions.store import export_import, schema
from sessions.store.store import StoreError
from tests.sessions.store.log_files import EMPTY, LogFiles
from tests.sessions.store.places import PATIENCE_S, Ledger, Place, Watch, check_same, queued


@pytest.fixture
def state(files: Place) -> tuple[Place, Ledger]:
    return files, fill(files)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    """The lines of `state`."""
    place = Place(tmp_path_factory.mktemp("exported"))
    fill(place)
    return tuple(export(place))


def fill(place: Place) -> Ledger:
    ledger = Ledger(21)
    watch = Watch(place.open())
    ledger.submit(watch, 80)
    watch.until_committed()
    place.close()  # with most of it in the journal
    return ledger


def export(place: Place) -> list[bytes]:
    store = place.open(must_exist=True)
    lines = [line.encode() for line in export_import.export(store)]
    store.abandon()
    return lines


def load(place: Place, lines: list[bytes]) -> dict[str, int]:
    store = place.open()
    try:
        return export_import.load(store, lines)
    finally:
        store.abandon()


def test_there_and_back(state: tuple[Place, Ledger], database: Place, tmp_path: Path) -> None:
    files, ledger = state
    lines = export(files)
    counts = load(database, lines)
    assert sum(counts.values()) == len(lines) - 2
    check_same(database.open(), ledger.tables(80))
    database.close()
    back = Place(tmp_path / "back")
    load(back, export(database))
    check_same(back.open(), ledger.tables(80))
    back.close()
    assert export(back) == lines


def test_life_goes_on_after_a_move(state: tuple[Place, Ledger], place: Place) -> None:
    lines = export(state[0])
    if place is state[0]:  # the same files: move them out of the way
        place = Place(place.data_dir.with_name("elsewhere"))
    load(place, lines)
    watch = Watch(place.open())
    assert watch.number == 0
    tables = state[1].tables(80)
    for number, (blob, at) in enumerate(state[1].history.groups(20), 1):
        watch.submit(blob, at)
        tables.apply_group(number, blob, at)
    assert watch.store.stop(PATIENCE_S)
    check_same(place.open(), tables)
    place.close()


ENDS = {"telemetry": "3", "Zeta": "6", "alpha": "3", "_": "3"}


@pytest.fixture
def logged(state: tuple[Place, Ledger]) -> Place:
    """The same with a telemetry log beside it."""
    files = state[0]
    log = LogFiles()
    log.watch = watch = Watch(files.open(), log)
    for name in (*ENDS, "Zeta"):
        log.append(watch.number + 1, name, 3)
        watch.submit(EMPTY)
    watch.until_committed()
    assert log.known == ENDS
    files.close()
    return files


def ends_of(place: Place) -> dict[str, str]:
    store = place.open()
    try:
        return store.snapshot().stream_ends
    finally:
        store.abandon()


def test_the_ends_of_the_log_move_too(logged: Place, database: Place, tmp_path: Path) -> None:
    lines = export(logged)
    names = [json.loads(line).get("name") for line in lines if b'"stream_ends", ' in line]
    assert names == sorted(ENDS)
    assert load(database, lines)["stream_ends"] == len(ENDS)
    assert ends_of(database) == ENDS
    back = Place(tmp_path / "back")
    load(back, export(database))
    assert ends_of(back) == ENDS
    assert export(back) == lines


def test_an_import_that_dies_between_two_files_can_be_repeated(
    logged: Place, tmp_path: Path
) -> None:
    """The journal has its rows, the tables have none."""
    lines = export(logged)
    target = Place(tmp_path)
    store = target.open()
    with store.database.journal.connect() as connection, connection.begin():
        connection.execute(
            schema.stream_ends.insert(), [{"name": name, "ends": "1"} for name in ("old", "_")]
        )
    store.abandon()
    load(target, lines)
    assert ends_of(target) == ENDS


def test_a_file_from_before_there_were_streams(state: tuple[Place, Ledger], tmp_path: Path) -> None:
    later = ("streams", "stream_offsets", "stream_ends")
    lines = [one for one in map(json.loads, export(state[0])) if one.get("table") not in later]
    lines[0]["format"] = 1
    for name in later:
        del lines[-1]["end"][name]
    target = Place(tmp_path)
    counts = load(target, [json.dumps(line).encode() for line in lines])
    assert [counts[name] for name in later] == [0, 0, 0]
    tables = state[1].tables(80)
    tables.streams.clear()
    tables.cursors.clear()
    check_same(target.open(), tables)
    target.close()


@pytest.mark.parametrize("form", [1, 2, 3])
def test_rows_without_a_checksum_get_one(
    state: tuple[Place, Ledger], tmp_path: Path, form: int
) -> None:
    """Those of before, and those that somebody has changed."""
    lines = [json.loads(line) for line in export(state[0])]
    assert any(line.get("crc") for line in lines)
    lines[0]["format"] = form
    for line in lines:
        for name in ("crc", "will_crc"):
            line.pop(name, None)
    target = Place(tmp_path)
    load(target, [json.dumps(line).encode() for line in lines])
    store = target.open()
    assert store.healed == {}
    check_same(store, state[1].tables(80))
    target.close()
    assert export(target) == export(state[0])


def test_what_was_altered_stays_so(state: tuple[Place, Ledger], tmp_path: Path) -> None:
    """Neither an export nor an import makes it right."""
    lines = [json.loads(line) for line in export(state[0])]
    altered = next(line for line in lines if line.get("crc"))
    altered["payload"] = base64.b64encode(b"altered").decode()
    target = Place(tmp_path)
    load(target, [json.dumps(line).encode() for line in lines])
    store = target.open()
    assert store.healed["message left out: altered on disk, it does not match its checksum"] == 1
    target.close()


def test_a_store_that_is_not_empty_is_refused(state: tuple[Place, Ledger], place: Place) -> None:
    lines = export(state[0])
    if place is not state[0]:
        Watch(place.open()).submit(queued(1, 1))
        assert place.opened[-1].stop(PATIENCE_S)
    with pytest.raises(StoreError, match="is not empty"):
        load(place, lines)


def without(name: str) -> Any:
    return lambda line: {key: value for key, value in line.items() if key != name}


WRONG: dict[str, tuple[str, Any, str]] = {
    "a column missing": ("messages", without("topic"), "messages: missing or unknown keys: topic"),
    "a column too many": ("messages", lambda x: x | {"more": 1}, "missing or unknown keys: more"),
    "a table nobody knows": ("retained", lambda x: x | {"table": "meta"}, "unknown table"),
    "no table": ("retained", without("table"), "unknown table"),
    "a word for a number": ("deliveries", lambda x: x | {"n": "7"}, "deliveries: n: not a number"),
    "a number too large": ("deliveries", lambda x: x | {"n": 1 << 63}, "n: out of range"),
    "yes for true": ("messages", lambda x: x | {"retain": 1}, "retain: not true or false"),
    "an offset too large": (
        "stream_offsets",
        lambda x: x | {"next_offset": 1 << 63},
        "next_offset: out of range",
    ),
    "no epoch": (
        "stream_offsets",
        without("epoch"),
        "stream_offsets: missing or unknown keys: epoch",
    ),
    "settings that are no text": (
        "streams",
        lambda x: x | {"settings": {}},
        "streams: settings: not a string",
    ),
    "a list for a table": ("streams", lambda x: x | {"table": []}, "unknown table"),
    "no base64": ("messages", lambda x: x | {"payload": "?"}, "payload: not base64"),
    "no time": ("sessions", lambda x: x | {"expires_at": "soon"}, "expires_at: not a time"),
    "half a character": ("messages", lambda x: x | {"topic": "\ud800"}, "a lone surrogate"),
    "a zero": ("messages", lambda x: x | {"topic": "a\0b"}, "in a string"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_line_is_named(exported: tuple[bytes, ...], tmp_path: Path, case: str) -> None:
    table, change, said = WRONG[case]
    lines = list(exported)
    number = next(at for at, line in enumerate(lines) if json.loads(line).get("table") == table)
    lines[number] = json.dumps(change(json.loads(lines[number]))).encode() + b"\n"
    target = Place(tmp_path)
    with pytest.raises(StoreError, match=rf"^line {number + 1}: .*{said}"):
        load(target, lines)
    # All or nothing.
    load(target, list(exported))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], r"^line \d+: the file is truncated"),
        (lambda lines: [], "^line 0: the file is truncated"),
        (lambda lines: [*lines, lines[-1]], r"^line \d+: unexpected line after the end"),
        (lambda lines: [*lines[:5], *lines[6:]], r"^line \d+: the file has .* rows, expected"),
        (lambda lines: [*lines[:-1], b'{"end": {}}'], r"^line \d+: the file has .* rows, expected"),
        (lambda lines: [*lines[:-1], b'{"end": 5}'], r"^line \d+: not the numbers of rows: 5"),
        (lambda lines: [lines[0], lines[1], *lines[1:]], "conflict with each other"),
        (lambda lines: [b"{}\n", *lines], "^line 1: not an exported state"),
        (lambda lines: [b"\xff\n", *lines], "^line 1: not JSON"),
        (lambda lines: [b"[" * 9_000 + b"\n", *lines], "^line 1: not JSON: nested too deeply"),
        (lambda lines: [lines[0], b"[]\n", *lines[1:]], "^line 2: not an object"),
        (lambda lines: [lines[0].replace(b'"format": 4', b'"format": 5')], "^line 1: format 5"),
    ],
)
def test_a_file_that_is_not_whole(
    exported: tuple[bytes, ...], tmp_path: Path, change: Any, said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        load(Place(tmp_path), change(list(exported)))


def test_a_message_that_is_missing_is_noticed(exported: tuple[bytes, ...], tmp_path: Path) -> None:
    lines = list(exported)
    at = next(at for at, line in enumerate(lines) if json.loads(line).get("table") == "messages")
    end = json.loads(lines[-1])
    end["end"]["messages"] -= 1
    lines[-1] = json.dumps(end).encode()
    del lines[at]
    with pytest.raises(StoreError, match="without their messages"):
        load(Place(tmp_path), lines)


# The command.


def test_the_command(
    state: tuple[Place, Ledger], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, file = str(state[0].data_dir), tmp_path / "state.jsonl"
    target = tmp_path / "target"
    assert main(["ctl", "export", "--data-dir", source, str(file)]) == 0
    assert main(["ctl", "import", "--data-dir", str(target), str(file)]) == 0
    said = capsys.readouterr().err.splitlines()
    rows = len(file.read_text().splitlines()) - 2
    assert said[0] == f"exported {rows} rows"
    assert said[1].startswith("imported ")
    assert main(["ctl", "import", "--data-dir", str(target), str(file)]) == 1
    assert "is not empty" in capsys.readouterr().err
    # Again, to stdout: nothing but the lines.
    assert main(["ctl", "export", "--data-dir", str(target), "--quiet"]) == 0
    out = capsys.readouterr()
    assert out.out == file.read_text()
    assert out.err == ""
    check_same(Place(target).open(), state[1].tables(80))


def test_stdin(
    state: tuple[Place, Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = export(state[0])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(lines))))
    assert main(["ctl", "import", "--data-dir", str(tmp_path), "--quiet"]) == 0
    place = Place(tmp_path)
    check_same(place.open(), state[1].tables(80))
    place.close()


def test_while_a_broker_runs(files: Place, capsys: pytest.CaptureFixture[str]) -> None:
    Watch(files.open())
    assert main(["ctl", "export", "--data-dir", str(files.data_dir)]) == 1
    assert "another process uses this store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["export"], "no store given", 2),
        (["export", "--data-dir", "a", "--database-url", "sqlite:///b"], "give one", 2),
        (["import", "--data-dir", "{}", "{}/none"], "No such file", 2),
        (["export", "--data-dir", "{}/none"], "there is no store", 1),
        (["export", "--database-url", "nonsense"], "not a database URL", 1),
    ],
)
def test_wrong_calls(
    arguments: list[str], said: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["ctl", *(one.format(tmp_path) for one in arguments)])
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == code
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_file_is_not_written_over_by_mistake(
    state: tuple[Place, Ledger], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "state.jsonl"
    file.write_text("precious")
    call = ["ctl", "export", "--data-dir", str(state[0].data_dir), str(file)]
    with pytest.raises(SystemExit, match="2"):
        main(call)
    assert file.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main([*call, "--force"]) == 0
    assert file.read_text() != "precious"
    assert {path.name for path in tmp_path.iterdir()} == {file.name}

"""Streams and how far they are read: from the journal's calls to what a start finds."""

from __future__ import annotations

from sessions.journal.journal import Journal
from sessions.journal.rows import CursorRow, StreamRow
from sessions.journal.snapshot import Snapshot
from tests.sessions.store.places import PATIENCE_S, Place, Watch, rows_of

EPOCH = "11111111-2222-3333-4444-555555555555"
LONG = "reader:" + "x" * 65_535  # a client id of any length, and what says that it is one


def row(name: str, epoch: str = EPOCH) -> StreamRow:
    return StreamRow(name, epoch, f"fleet/+/{name}", f'{{"name": "{name}"}}', 17.5)


class Book:
    """A journal whose groups go to a store."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.watch = Watch(place.open())
        self.journal = Journal(self._submit, number=self.watch.number)

    def _submit(self, number: int, blob: bytes) -> None:
        assert self.watch.submit(blob) == number

    def fold(self) -> None:
        self.journal.flush(1.0)
        self.watch.until_folded()

    def restart(self) -> Snapshot:
        self.journal.flush(1.0)
        assert self.watch.store.stop(PATIENCE_S)
        self.watch = Watch(self.place.open())
        return self.watch.store.snapshot()


def test_streams_and_cursors_come_back(place: Place) -> None:
    book = Book(place)
    book.journal.on_stream(row("telemetry"))
    book.journal.on_stream(row("a"))
    book.journal.on_cursor("$share/g/$stream/telemetry", "telemetry", EPOCH, [(0, 5), (1, 9)])
    book.journal.on_cursor(LONG, "telemetry", EPOCH, [(255, (1 << 63) - 1)])
    book.journal.on_cursor(LONG + "y", "telemetry", EPOCH, [(255, 1)])
    found = book.restart()
    assert found.streams == [row("a"), row("telemetry")]
    assert found.cursors == [
        CursorRow("$share/g/$stream/telemetry", "telemetry", EPOCH, 0, 5),
        CursorRow("$share/g/$stream/telemetry", "telemetry", EPOCH, 1, 9),
        CursorRow(LONG, "telemetry", EPOCH, 255, (1 << 63) - 1),
        CursorRow(LONG + "y", "telemetry", EPOCH, 255, 1),
    ]


def test_the_last_word_counts(place: Place) -> None:
    """Within a group, between groups of a fold, and between folds; forward and back."""
    book = Book(place)
    for offset in (1, 7, 3):
        book.journal.on_cursor("g", "s", EPOCH, [(0, offset)])
    for offset in (8, 2):
        book.journal.on_cursor("g", "s", EPOCH, [(0, offset), (1, offset)])
        book.journal.flush(1.0)
    changed = StreamRow("s", EPOCH, "other/#", "{}", 17.5)
    book.journal.on_stream(row("s"))
    book.fold()
    book.journal.on_cursor("g", "s", EPOCH, [(1, 40)])
    book.journal.on_stream(changed)
    found = book.restart()
    assert [(one.partition, one.offset) for one in found.cursors] == [(0, 2), (1, 40)]
    assert found.streams == [changed]


def test_a_stream_that_goes_takes_its_cursors(place: Place) -> None:
    book = Book(place)
    for name in ("s", "t"):
        book.journal.on_stream(row(name))
        for owner in ("g", "h"):
            book.journal.on_cursor(owner, name, EPOCH, [(0, 1), (1, 2)])
    book.fold()
    # Made anew, before anybody looks: what was read of the old one is of no use.
    book.journal.on_cursor("g", "s", EPOCH, [(0, 99)])
    book.journal.on_stream_gone("s")
    book.journal.on_stream(row("s", "another"))
    book.journal.on_cursor("h", "s", "another", [(1, 3)])
    book.journal.on_stream_gone("t")
    found = book.restart()
    assert found.streams == [row("s", "another")]
    assert found.cursors == [CursorRow("h", "s", "another", 1, 3)]


def test_an_owner_that_reads_no_longer(place: Place) -> None:
    book = Book(place)
    for owner in ("g", "h", "i"):
        for name in ("s", "t"):
            book.journal.on_cursor(owner, name, EPOCH, [(0, 1), (1, 2)])
    book.fold()
    book.journal.on_cursors_gone("g", "s")
    book.journal.on_cursor("h", "t", EPOCH, [(0, 77)])
    book.journal.on_cursors_gone("h", "")
    book.journal.on_cursor("h", "t", EPOCH, [(7, 7)])
    book.journal.on_cursors_gone("nobody", "s")
    found = book.restart()
    assert [(one.owner, one.stream, one.partition) for one in found.cursors] == [
        ("i", "s", 0),
        ("i", "s", 1),
        ("g", "t", 0),
        ("g", "t", 1),
        ("h", "t", 7),
        ("i", "t", 0),
        ("i", "t", 1),
    ]


def test_many_go_at_once(place: Place) -> None:
    """More than one statement takes."""
    book = Book(place)
    owners = [f"client-{number}" for number in range(300)]
    for number, owner in enumerate(owners):
        book.journal.on_cursor(owner, f"s{number}", EPOCH, [(0, number)])
        book.journal.on_stream(row(f"s{number}"))
    book.fold()
    for owner in owners[:100]:
        book.journal.on_cursors_gone(owner, "")
    for number in range(100, 200):
        book.journal.on_cursors_gone(owners[number], f"s{number}")
    for number in range(200, 299):
        book.journal.on_stream_gone(f"s{number}")
    found = book.restart()
    assert [one.offset for one in found.cursors] == [299]
    assert len(found.streams) == 201


def test_a_cursor_that_moves_is_one_row(place: Place) -> None:
    """However often it does, between folds and across them."""
    book = Book(place)
    for offset in range(3):
        for step in range(100):
            book.journal.on_cursor("g", "s", EPOCH, [(0, 100 * offset + step)])
        book.fold()
    with book.watch.store.database.tables.connect() as connection:
        assert rows_of(connection, "next_offset", "stream_offsets") == [(299,)]

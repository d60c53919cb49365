"""Save what can be read of a damaged SQLite store into a new one.

The old files are kept, renamed with a date. Copies of them are read table by table, in key order:
after an unreadable page the scan searches for the next readable key, and reads backwards from there
to the edge of the damage. Then the complete groups of the journal that the tables do not have are
applied. The ends of the telemetry log are kept only if the journal is complete: with older ends the
log would be truncated. All losses are reported.

The new files replace the old ones by renaming; after a crash between two renames, the next start
completes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Integer, Table

from sessions.journal.net_changes import Changes
from sessions.journal.records import unseal
from sessions.store import schema
from sessions.store.applier import StoreMeta, read_meta
from sessions.store.database import execute, explain, insert, sqlite_engine
from sessions.store.row_import import LOADED, RowImport, columns, recount_references
from sessions.store.sqlite_files import (
    LOGS,
    MAGIC,
    PAGE_BYTES,
    Files,
    create,
    remove,
    sibling,
    sync,
)
from sessions.store.table_updates import TableUpdate
from sessions.store.worker import discard

READY: Final = ".recovered"
KEY_BITS: Final = 62

Key = tuple[Any, ...]
_DAMAGE: Final[Key] = ("damage",)
Say = Callable[[str], None]


def salvage(files: Files, say: Say) -> None:
    """Make a new store of all readable data, and put it in place."""
    copies, made, ready = (files.aside(name) for name in (".copy", ".rescue", READY))
    for path in (*copies.both, *made.both, *ready.both):
        remove(path)
    try:
        for path, copy in zip(files.both, copies.both, strict=True):
            for suffix in ("", *LOGS):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(sibling(path, suffix), sibling(copy, suffix))
        create(made)
        for copy, fresh in zip(copies.both, made.both, strict=True):
            _repair_header(copy, fresh)
        _rescue(copies, made, say)
        # The tables come last: if they exist, both files are complete.
        for path, target in ((made.journal, ready.journal), (made.tables, ready.tables)):
            sync(path)
            os.replace(path, target)
            sync(target.parent)
    finally:
        for path in (*copies.both, *made.both):
            remove(path)
    finish(files, say)


def finish(files: Files, say: Say) -> bool:
    """Replace the old files by rescued ones, also after an attempt that was interrupted.

    Return False if there are no rescued files.
    """
    ready = files.aside(READY)
    if not ready.tables.exists():
        return False
    date = time.strftime("%Y%m%d-%H%M%S")
    for made, path in ((ready.journal, files.journal), (ready.tables, files.tables)):
        if not made.exists():
            continue
        kept = sibling(path, f".damaged-{date}")
        for suffix in (*LOGS, ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(sibling(path, suffix), sibling(kept, suffix))
        if kept.exists():
            say(f"the old {path.name} is kept as {kept.name}")
        os.replace(made, path)
        sync(path.parent)
    return True


def _rescue(old: Files, new: Files, say: Say) -> None:
    database = new.database()
    try:
        with database.tables.connect() as connection:
            meta = _rescue_tables(old, connection, say)
            ends = _rescue_journal(old, connection, meta.folded, say)
            with connection.begin():
                for gone in recount_references(connection, is_strict=False):
                    say(f"dropped {gone}")
                execute(
                    connection,
                    "UPDATE meta SET "
                    "last_mid = max(?, last_mid, (SELECT coalesce(max(mid), 0) FROM messages)), "
                    "last_sid = max(?, last_sid, (SELECT coalesce(max(sid), 0) FROM sessions), "
                    "(SELECT coalesce(max(sid), 0) FROM shares)), "
                    "next_place = max(?, (SELECT coalesce(max(place), 0) + 1 FROM releases)), "
                    "alive_at = max(?, alive_at)",
                    (meta.last_mid, meta.last_sid, meta.next_place, meta.alive_at),
                )
                has_streams = execute(connection, "SELECT count(*) FROM streams").scalar_one()
        if ends:
            with database.journal.connect() as connection, connection.begin():
                insert(connection, "stream_ends", columns(schema.stream_ends), ends)
        elif has_streams:
            say("lost the ends of the telemetry log in the journal: the log's own files decide")
    finally:
        database.dispose()


def _rescue_tables(old: Files, new: Connection, say: Say) -> StoreMeta:
    meta = StoreMeta(folded=0, last_mid=0, last_sid=0, next_place=1, alive_at=0.0)
    with _opened(old.tables) as connection:
        if connection is None:
            say("the tables are unreadable")
            return meta
        with new.begin():
            rows_in = RowImport(new, is_strict=False)
            for table in _existing(connection, LOADED):
                names = _existing_columns(connection, table)
                for row in readable(connection, table, names, say):
                    try:
                        found_row = dict(zip(names, row, strict=True))
                        rows_in.add(table, tuple(map(found_row.get, columns(table))))
                    except (AttributeError, TypeError):
                        say(f"{table.name}: lost an invalid row")
            rows_in.flush()
            for gone in recount_references(new, is_strict=False):
                say(f"dropped {gone}")
        found = ", ".join(f"{count} {name}" for name, count in rows_in.counts.items() if count)
        say(f"saved {found or 'nothing'} from the tables")
        try:
            with connection.begin():
                return read_meta(connection)
        except Exception:
            say("the number of the last applied group is unreadable: applying the whole journal")
            return meta


def _rescue_journal(old: Files, new: Connection, folded: int, say: Say) -> list[tuple[Any, ...]]:
    """Apply the readable groups; only damaged or inconsistent ones are lost.

    Return the ends of the telemetry log, if they are known.
    """
    losses: list[str] = []

    def lose(line: str) -> None:
        losses.append(line)
        say(line)

    with _opened(old.journal) as connection:
        if connection is None:
            say("the journal is unreadable: groups that are not yet in the tables are lost")
            return []
        rows = readable(connection, schema.journal, columns(schema.journal), lose)
        groups = sorted(row for row in rows if row[0] > folded)
        ends = [
            row
            for table in _existing(connection, (schema.stream_ends,))
            for row in readable(connection, table, columns(table), lose)
        ]
    place = execute(new, "SELECT coalesce(max(place), 0) + 1 FROM releases").scalar_one()
    new.rollback()
    saved = 0
    for number, at, data in groups:
        try:
            changes = Changes(place)
            for record in unseal(data):
                changes.apply(record)
            if not changes.records:  # only the telemetry log has data in this group
                saved += 1
                continue
            with new.begin():
                TableUpdate(new, changes, _no_pause).apply()
                execute(
                    new,
                    "UPDATE meta SET last_mid = max(last_mid, ?), last_sid = max(last_sid, ?), "
                    "alive_at = max(alive_at, ?)",
                    (changes.last_mid, changes.last_sid, at),
                )
        except Exception as error:
            lose(f"lost group {number} of the journal: {explain(error)}")
        else:
            place = changes.place
            saved += 1
    say(f"saved {saved} groups from the journal")
    if groups and groups[0][0] > folded + 1 and folded:
        lose(f"lost groups {folded + 1} to {groups[0][0] - 1} of the journal")
    has_all = not groups or groups[-1][0] - groups[0][0] == len(groups) - 1
    is_sound = all(isinstance(value, str) for row in ends for value in row)
    return ends if has_all and is_sound and not losses else []


def _existing(connection: Connection, tables: tuple[Table, ...]) -> list[Table]:
    """Return the tables that exist; an older schema has fewer."""
    try:
        with connection.begin():
            found = execute(connection, "SELECT name FROM sqlite_master").scalars().all()
    except Exception:  # try all of them
        return list(tables)
    return [table for table in tables if table.name in found]


def _existing_columns(connection: Connection, table: Table) -> tuple[str, ...]:
    """Return the columns to be copied that exist; an older schema has fewer."""
    names = columns(table)
    with contextlib.suppress(Exception), connection.begin():
        found = execute(connection, f"PRAGMA table_info({table.name})").all()
        known = {row[1] for row in found}
        return tuple(name for name in names if name in known) or names
    return names


def _no_pause() -> None:
    """Do nothing: there is no event loop yet."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Connection | None]:
    """Open a connection that reads damaged files; yield None if that fails."""
    engine = sqlite_engine(path, checkpoint_pages=0, is_damaged=True)
    with contextlib.ExitStack() as stack:
        found: Connection | None = None
        with contextlib.suppress(Exception):
            connection = engine.connect()
            stack.callback(discard, connection)
            connection.execution_options(sqlite_reads=True)
            with connection.begin():
                if execute(connection, "SELECT count(*) FROM sqlite_master").scalar():
                    found = connection
        yield found


def _repair_header(copy: Path, fresh: Path) -> None:
    """Replace a damaged first page by that of a new store, which has the same layout."""
    if not copy.exists() or copy.stat().st_size < PAGE_BYTES:
        return
    with copy.open("r+b") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
        page = bytearray(fresh.read_bytes()[:PAGE_BYTES])
        # Its length in pages, and an empty list of free pages.
        struct.pack_into(">III", page, 28, copy.stat().st_size // PAGE_BYTES, 0, 0)
        file.seek(0)
        file.write(page)


# Reading around damage.


def readable(
    connection: Connection, table: Table, names: tuple[str, ...], say: Say
) -> Iterator[tuple[Any, ...]]:
    """Yield every row that can be read, once; report the keys between which rows are lost."""
    scan = _TableScan(connection, table, names)
    after: Key | None = None
    while True:
        try:
            for key, row in scan.rows(after):
                yield row
                after = key
        except Exception as error:
            where = "from the start" if after is None else f"after {scan.name(after)}"
            last = scan.beyond(after)
            if last is None:
                say(f"{table.name}: lost all rows {where} ({explain(error)})")
                return
            # Read backwards from the far edge to the damage, at most down to `last`.
            with contextlib.suppress(Exception):
                for key, row in scan.rows(after, before=last):
                    yield row
                    after = key
            say(f"{table.name}: lost rows {where}, up to {scan.name(last)} ({explain(error)})")
            yield scan.row(last)
            after = last
        else:
            return


class _TableScan:
    """Reads rows of one table by its key: one number, or a number and a second column.

    A table with another kind of key is read by SQLite's rowid.
    """

    def __init__(self, connection: Connection, table: Table, names: tuple[str, ...]) -> None:
        self._connection = connection
        keys = list(table.primary_key.columns)
        has_number = isinstance(keys[0].type, Integer)
        self._keys = tuple(column.name for column in keys) if has_number else ("rowid",)
        key = ", ".join(self._keys)
        self._width = len(self._keys)
        self._marks = ", ".join("?" * self._width)
        self._key = f"({key})"
        self._select = f"SELECT {key}, {', '.join(names)} FROM {table.name}"
        self._up = ", ".join(self._keys)
        self._down = ", ".join(f"{name} DESC" for name in self._keys)

    def name(self, key: Key) -> str:
        return f"{self._keys[0]} {key[0]}"

    def rows(
        self, after: Key | None, *, before: Key | None = None
    ) -> Iterator[tuple[Key, tuple[Any, ...]]]:
        """Yield rows with keys above `after`; or, with `before`, in reverse below that one."""
        conditions: list[str] = []
        values: list[Any] = []
        for key, sign in ((after, ">"), (before, "<")):
            if key is not None:
                conditions.append(f"{self._key} {sign} ({self._marks})")
                values += key
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = self._up if before is None else self._down
        with self._connection.begin():
            found = execute(self._connection, f"{self._select}{where} ORDER BY {order}", values)
            for row in found:
                yield tuple(row[: self._width]), tuple(row[self._width :])

    def row(self, key: Key) -> tuple[Any, ...]:
        with self._connection.begin():
            found = execute(
                self._connection, f"{self._select} WHERE {self._key} = ({self._marks})", key
            ).one()
        return tuple(found[self._width :])

    def beyond(self, after: Key | None) -> Key | None:
        """Return the first readable key after damage: search in growing steps, then backwards."""
        for probe in self._probes(after):
            bad = 0
            for bit in range(KEY_BITS):
                good = 1 << bit
                if (found := self._first(probe(good))) is not _DAMAGE:
                    break
                bad = good
            else:
                continue
            while good - bad > 1:
                middle = (bad + good) // 2
                nearer = self._first(probe(middle))
                if nearer is _DAMAGE:
                    bad = middle
                else:
                    good, found = middle, nearer
            return found
        return None

    def _first(self, after: Key) -> Key | None:
        try:
            for key, _ in self.rows(after):
                return key
        except Exception:
            return _DAMAGE
        return None

    def _probes(self, after: Key | None) -> Iterator[Callable[[int], Key]]:
        """Yield functions from a distance to a key: first in the second column, then the first."""
        first = after[0] if after is not None else 0
        if self._width == 1:
            yield lambda step: (first + step,)
            return
        second = after[1] if after is not None else 0
        if isinstance(second, int):
            yield lambda step: (first, second + step)
        yield lambda step: (first + step, b"")

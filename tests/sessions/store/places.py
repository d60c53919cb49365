"""Places where a store can be, and watching one that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from sessions.journal import records
from sessions.journal.participant import CommitParticipant
from sessions.journal.rows import SessionRow
from sessions.journal.snapshot import Snapshot
from sessions.store.state_loader import read_page
from sessions.store.store import Store
from tests.sessions.store.histories import History
from tests.sessions.store.memory_store import Page, Tables

PATIENCE_S: Final = 120.0
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 30


@dataclass(slots=True)
class Place:
    """Opens the same store again and again."""

    data_dir: Path
    database_url: str = ""
    opened: list[Store] = field(default_factory=list)

    @property
    def is_sqlite(self) -> bool:
        return not self.database_url

    def open(self, **arguments: Any) -> Store:
        store = Store.open(data_dir=str(self.data_dir), database_url=self.database_url, **arguments)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.abandon()


class StorePart(CommitParticipant):
    """A participant of which only the store's part is called: there is no journal."""

    @property
    def has_new(self) -> bool:
        raise AssertionError("no journal asks it")

    @property
    def waiting_bytes(self) -> int:
        raise AssertionError("no journal asks it")

    def delay_s(self, now: float) -> float:
        raise AssertionError("no journal asks it")

    def assign(self, number: int) -> bool:
        raise AssertionError("no journal asks it")


class Watch:
    """Starts a store, hands it groups and knows what it said."""

    def __init__(self, store: Store, participant: CommitParticipant | None = None) -> None:
        self.store = store
        self.number = store.snapshot().last_number
        self.committed = [self.number]
        self.folded = [self.number]
        self.states = [""]
        self._news = threading.Condition()
        if participant is not None:
            store.enlist(participant)
        store.start(
            self._teller(self.committed),
            self._teller(self.folded),
            self._teller(self.states),
        )

    def _teller(self, said: list[Any]) -> Callable[[Any], None]:
        def tell(value: Any) -> None:
            with self._news:
                said.append(value)
                self._news.notify_all()

        return tell

    def submit(self, blob: bytes, at: float = 1.0) -> int:
        self.number += 1
        self.store.submit(self.number, blob, at)
        return self.number

    def until(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE_S), (
                f"committed {self.committed[-1]}, folded {self.folded[-1]} of {self.number}, "
                f"state {self.states[-1]!r}"
            )

    def until_committed(self) -> None:
        self.until(lambda: self.committed[-1] == self.number)

    def until_folded(self) -> None:
        """At once, and not when the folder's second is over."""
        self.until_committed()
        self.apply_soon()
        self.until(lambda: self.folded[-1] == self.number)

    def apply_soon(self) -> None:
        self.store.apply_soon()

    def until_state(self, part: str) -> None:
        """Whole if it is empty: "" means all is well."""
        self.until(lambda: part in self.states[-1] if part else not self.states[-1])

    def until_state_or_committed(self) -> None:
        """All is committed, or something is wrong."""
        self.until(lambda: bool(self.states[-1]) or self.committed[-1] == self.number)

    def page(self, sid: int, after_n: int, messages_max: int, bytes_max: int) -> Page:
        pages: list[Page] = []
        self.store.page(sid, after_n, messages_max, bytes_max, self._teller(pages))
        self.until(lambda: bool(pages))
        return pages[0]


class Ledger:
    """A history as it was submitted, to say what a store should hold after so many groups."""

    def __init__(self, seed: int) -> None:
        self.history = History(seed)
        self.groups: list[tuple[int, bytes, float]] = []

    def submit(self, watch: Watch, count: int) -> None:
        for blob, at in self.history.groups(count):
            number = watch.submit(blob, at)
            assert number == len(self.groups) + 1
            self.groups.append((number, blob, at))

    def tables(self, number: int) -> Tables:
        tables = Tables()
        for group in self.groups[:number]:
            tables.apply_group(*group)
        return tables


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """All of it, but for the time."""
    subscriptions = sorted(snapshot.subscriptions, key=lambda row: (row.sid, row.filter))
    return {
        "sessions": list(snapshot.sessions),
        "subscriptions": subscriptions,
        "shares": list(snapshot.shares),
        "windows": list(snapshot.windows),
        "releases": list(snapshot.releases),
        "received": list(snapshot.received),
        "backlogs": list(snapshot.backlogs),
        "shared": list(snapshot.shared),
        "retained": list(snapshot.retained),
        "streams": snapshot.streams,
        "cursors": snapshot.cursors,
        "stream_ends": snapshot.stream_ends,
        "last": (snapshot.last_mid, snapshot.last_sid),
    }


def check_same(store: Store, tables: Tables) -> None:
    """That a store holds what it should: everything, and nothing else."""
    found, wanted = contents(store.snapshot()), contents(tables.snapshot())
    for name, rows in wanted.items():
        assert found[name] == rows, name
    with store.database.tables.connect() as connection:
        references = {row[0]: row[1] for row in rows_of(connection, "mid, refs", "messages")}
        assert references == {mid: count for mid, count in tables.references.items() if count}
        for sid in [*tables.sessions, *tables.shares]:
            page = read_page(connection, sid, 0, MESSAGES_MAX, BYTES_MAX)
            assert page == tables.page(sid, 0, MESSAGES_MAX, BYTES_MAX)
        owners = {row[0] for row in rows_of(connection, "DISTINCT sid", "deliveries")}
        assert owners == {sid for sid, found in tables.deliveries.items() if found}


def rows_of(connection: Connection, names: str, table: str) -> list[Any]:
    return list(connection.execute(text(f"SELECT {names} FROM {table}")))


# Groups for tests that need something simple.


def session_row(sid: int, **others: Any) -> SessionRow:
    values: dict[str, Any] = {
        "sid": sid, "client_id": f"client-{sid}", "username": None, "version": 5,
        "created_at": 1.0, "expiry_interval": 3600, "is_online": False, "expires_at": 4601.0,
        "will_at": 0.0, "will": None,
    }  # fmt: skip
    return SessionRow(**(values | others))


def stored(mid: int, payloads: list[bytes], topic: bytes = b"a/b", retain: bool = False) -> bytes:
    return records.encode_stored(mid, topic, 1, retain, b"", b"publisher", 5.0, -1, payloads)


def delivered(sid: int, n: int, mid: int, count: int, size: int = 100) -> bytes:
    return records.encode_delivered(sid, n, mid, count, size, 1, False, (), "", [])


def queued(sid: int, count: int) -> bytes:
    """A session with so many messages that wait, numbered from 1."""
    return records.seal(
        [
            records.encode_session(session_row(sid)),
            stored(1, [b"%05d" % at for at in range(count)]),
            delivered(sid, 1, 1, count),
        ]
    )

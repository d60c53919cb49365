"""Engines for SQLite and PostgreSQL, and statements that work on both.

Database    the engines of tables and journal: two SQLite files, or one PostgreSQL database
execute     runs a statement on either: `?` becomes the driver's own placeholder
insert      inserts many rows at once
explain     describes an exception in one line, for the operator
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL, Dialect
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sessions.journal.records import Corrupt

# How long a statement waits for a lock of another process.
LOCK_WAIT_S: Final = 1.0
_URLS: Final = "sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
# Rows of any columns.
Found = CursorResult[*tuple[Any, ...]]

# Terms per statement. A statement holds the interpreter while its parameters are bound, and
# releases it once.
TERMS_MAX: Final = 64
COPY_MIN: Final = 16


class StoreError(Exception):
    """An error of the store, in one line for the operator."""


class Unreachable(StoreError):
    """The server of the database does not answer, or refuses the login."""


@dataclass(slots=True)
class Database:
    """The engines of tables and journal; on PostgreSQL they are the same."""

    tables: Engine
    journal: Engine
    is_sqlite: bool
    name: str  # for messages, without a password

    def dispose(self) -> None:
        self.tables.dispose()
        self.journal.dispose()


def sqlite_engine(path: Path, *, checkpoint_pages: int, is_damaged: bool = False) -> Engine:
    """Return an engine for a file.

    With `checkpoint_pages` 0 commits make no checkpoint: another thread does.
    With `is_damaged` a file is read as far as possible, even if it is too short.
    """
    # A missing file is an error; do not create an empty database.
    uri = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=LOCK_WAIT_S,
            isolation_level=None,  # transactions begin where `begin` is called
            check_same_thread=False,
            cached_statements=512,
        )
        try:
            if is_damaged:
                connection.execute("PRAGMA writable_schema = ON")
            for pragma in (
                "synchronous = FULL",
                # Overwriting deleted rows with zeros would double the cost of commits.
                "secure_delete = OFF",
                f"wal_autocheckpoint = {checkpoint_pages}",
                "cache_size = -16384",
                "temp_store = MEMORY",
            ):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Take the write lock at once: a transaction that begins with a read may fail to get it.
        is_reader = connection.get_execution_options().get("sqlite_reads", False)
        connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")

    return engine


# Let the server notice a broker that was killed: while its server process waits for something and
# does not check the connection, it still holds the lock. Unknown settings are left out.
DETECT_DEAD_CLIENT: Final = """
SELECT set_config(name, wanted.value, false) FROM pg_settings JOIN (VALUES
    ('client_connection_check_interval', '1000'), ('tcp_keepalives_idle', '10'),
    ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')
) AS wanted (setting, value) ON name = wanted.setting
"""


# Options of libpq, which let a broker notice that the server's machine is gone.
DETECT_DEAD_SERVER: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def postgres_engine(url: URL, application_name: str) -> Engine:
    """Return an engine with synchronous commits, that detects a dead connection in seconds."""
    engine = create_engine(
        url,
        connect_args={**DETECT_DEAD_SERVER, "application_name": application_name, **url.query},
        poolclass=NullPool,
        # A returned connection is closed, which ends its transaction. A rollback before that
        # would fail again on a lost connection.
        pool_reset_on_return=None,
    )

    @event.listens_for(engine, "connect")
    def on_connect(driver: Any, _: object) -> None:
        with driver.cursor() as cursor:
            cursor.execute("SELECT current_setting('synchronous_commit')")
            if cursor.fetchone()[0] == "off":
                cursor.execute("SET synchronous_commit = on")
            cursor.execute(DETECT_DEAD_CLIENT)
        driver.commit()

    return engine


def parse_url(text: str) -> URL:
    try:
        url = make_url(text)
        dialect: type[Dialect] = url.get_dialect()
        backend = url.get_backend_name()
    except (ArgumentError, SQLAlchemyError, ValueError):
        raise StoreError(f"not a database URL: {text.split('@')[-1]!r}; expected {_URLS}") from None
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError("a SQLite URL must name a file: sqlite:///directory/fleetmq.db")
    if backend == "sqlite":
        return url
    if backend == "postgresql" and dialect.driver == "psycopg":
        _check_driver(dialect)
        return url
    raise StoreError(f"unsupported database {url.drivername!r}: expected {_URLS}")


def _check_driver(dialect: type[Dialect]) -> None:
    try:
        dialect.import_dbapi()
    except ImportError:  # psycopg says so too where it finds no libpq
        raise StoreError(
            f"the database URL needs the Python package {dialect.driver}: "
            "pip install 'fleetmq[postgres]'"
        ) from None


# Statements.


def execute(connection: Connection, statement: str, values: Sequence[Any] = ()) -> Found:
    """Run a statement without SQLAlchemy's compiler, which would take longer than the database."""
    if connection.dialect.name != "sqlite":
        statement = _marked(statement)
    return connection.exec_driver_sql(statement, tuple(values))


@lru_cache(maxsize=1024)
def _marked(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=256)
def repeated(term: str, count: int, between: str = ", ") -> str:
    return between.join([term] * count)


def insert(
    connection: Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    key: Sequence[str] = (),
    *,
    verb: str = "INSERT",
    pause: Callable[[], None] = lambda: None,
) -> int:
    """Insert many rows at once; return their number. With a `key`, existing rows are replaced.

    `pause` is called between pieces.
    """
    if connection.dialect.name == "postgresql" and not key:
        return _copy(connection, table, columns, rows, pause)
    tail = ""
    if key:
        others = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
        act = f"UPDATE SET {others}" if others else "NOTHING"
        tail = f" ON CONFLICT ({', '.join(key)}) DO {act}"
    head = f"{verb} INTO {table} ({', '.join(columns)}) VALUES "
    term = f"({repeated('?', len(columns))})"
    done = 0
    rows = iter(rows)
    while some := list(islice(rows, TERMS_MAX)):
        pause()
        values = [value for row in some for value in row]
        execute(connection, head + repeated(term, len(some)) + tail, values)
        done += len(some)
    return done


def _copy(
    connection: Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    pause: Callable[[], None],
) -> int:
    """Insert many rows with COPY of PostgreSQL: half the cost of binding, and less on the server.

    COPY needs a round trip of its own, so a few rows are bound instead. During a COPY the
    connection cannot run statements, so the iterator `rows` must not run any.
    """
    rows = iter(rows)
    some = list(islice(rows, COPY_MIN))
    if not some:
        return 0
    names = ", ".join(columns)
    if len(some) < COPY_MIN:
        term = f"({repeated('?', len(columns))})"
        values = [value for row in some for value in row]
        statement = f"INSERT INTO {table} ({names}) VALUES {repeated(term, len(some))}"
        execute(connection, statement, values)
        return len(some)
    driver: Any = connection.connection.driver_connection
    done = 0
    with driver.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        while some:
            pause()
            for row in some:
                copy.write_row(row)
            done += len(some)
            some = list(islice(rows, TERMS_MAX))
    return done


def chunks(found: Sequence[Any], size: int = TERMS_MAX) -> Iterable[Sequence[Any]]:
    for at in range(0, len(found), size):
        yield found[at : at + size]


# Errors.

_SQLITE: Final = {
    "SQLITE_FULL": "disk full",
    "SQLITE_BUSY": "database is locked",
    "SQLITE_LOCKED": "database is locked",
    "SQLITE_CORRUPT": "database is damaged",
    "SQLITE_NOTADB": "database is damaged",
    "SQLITE_READONLY": "database is read-only",
    "SQLITE_CANTOPEN": "database file cannot be opened",
    "SQLITE_IOERR": "disk error",
    "SQLITE_TOOBIG": "a value is too large for SQLite",
}
_POSTGRES: Final = {
    "53100": "disk full",
    "53300": "too many connections",
    "55P03": "database is locked",
    "57P01": "connection lost",
    "57P02": "connection lost",
    "57P03": "the server is starting or stopping",
    "3D000": "the database does not exist",
    "28P01": "the password is wrong",
    "28000": "login refused",
    "25006": "database is read-only",
    "XX001": "database is damaged",
    "XX002": "database is damaged",
}


def is_conflict(error: BaseException) -> bool:
    """Tell whether a row violates a constraint of its table, such as a unique key."""
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, IntegrityError) or state.startswith("23")


def is_damage(error: BaseException) -> bool:
    return explain(error).startswith("database is damaged")


def explain(error: BaseException) -> str:
    cause: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", "")
        known = _SQLITE.get("_".join(name.split("_")[:2]))
        if known is None:
            return _first_line(cause)
        return known if known in ("disk full", "database is locked") else f"{known} ({name})"
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return _POSTGRES.get(state) or f"{_first_line(cause)} ({state})"
    if isinstance(error, DBAPIError) and (
        error.connection_invalidated or cause.__class__.__name__ == "OperationalError"
    ):
        return "connection lost"
    if isinstance(cause, Corrupt):
        return f"journal is damaged: {cause}"
    return _first_line(cause)


def explain_connect(error: BaseException) -> str:
    """Describe why no connection was made; unlike for a connection that broke, the driver's words
    name the cause.
    """
    said = explain(error)
    cause = error.orig if isinstance(error, DBAPIError) else error
    return _first_line(cause) if said == "connection lost" else said


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else error.__class__.__name__

"""Statements as data, the transactions that yield them, and how a transaction fails.

A transaction is a generator. It yields batches of statements, each one round trip, is sent the
rows of each statement, and returns its result. The last statement of its last batch is `Commit`; a
batch before it may end so, too, where nothing has to hold from there to the next one.
PostgreSQL executes a batch as a pipeline: what follows a statement that fails is not executed.
In `where` a list stands for any of its values. A `Select` locks rows in the order of their keys,
and so does an `Update` with a list. What else changes or deletes several rows locks them in any
order, so their locks are taken before.

TransactionError
    Refused         a required row is not there, or an inserted one is: nothing was written
    Stale           rows are not what was expected of them: nothing was written
    Aborted         a deadlock or a lock timeout: nothing was written, and it may be tried again
    ConnectionLost  the connection ended; whether an unanswered COMMIT was applied is unknown
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Row = dict[str, Any]
Rows = list[Row]
Result = TypeVar("Result")


class Statement:
    """A statement of a batch."""

    __slots__ = ()


class Select(Statement):
    """Read the rows of a table in the order of their keys; lock them with `for_update`.

    `above` reads only rows with a larger value of a column, `limit` no more than so many, and
    `columns` no other columns.
    """

    __slots__ = ("above", "columns", "for_update", "limit", "table", "where")

    def __init__(
        self,
        table: str,
        where: Row | None = None,
        *,
        above: tuple[str, int] | None = None,
        limit: int | None = None,
        columns: tuple[str, ...] = (),
        for_update: bool = False,
    ) -> None:
        assert not (columns and for_update), "rows that are locked are read whole"
        self.table = table
        self.where = where or {}
        self.above = above
        self.columns = columns
        self.limit = limit
        self.for_update = for_update


class SelectNewer(Statement):
    """Read what has changed of several numbers, in one snapshot, in the order of the keys.

    A row is read if its `number` is in `than` and its `column` is larger than the value there.
    With `limit` no more than so many are read, in the order of number, column and key.
    """

    __slots__ = ("column", "limit", "table", "than")

    def __init__(
        self, table: str, column: str, than: dict[int, int], *, limit: int | None = None
    ) -> None:
        self.table = table
        self.column = column
        self.than = than
        self.limit = limit


class Expect(Statement):
    """Fail with `Stale` unless a table has these rows, in the order of its keys, and no other.

    Only `columns` are compared, of the rows that match. No row is locked.
    """

    __slots__ = ("columns", "rows", "table", "where")

    def __init__(
        self,
        table: str,
        columns: tuple[str, ...],
        rows: list[tuple[Any, ...]],
        where: Row | None = None,
    ) -> None:
        self.table = table
        self.columns = columns
        self.rows = rows
        self.where = where or {}


class Insert(Statement):
    """Insert a row; fail with `Refused` if its key exists."""

    __slots__ = ("row", "table")

    def __init__(self, table: str, row: Row) -> None:
        self.table = table
        self.row = row


class InsertNew(Statement):
    """Insert those rows whose keys do not exist, in their order; return what was inserted.

    It waits for transactions that insert, change or delete a row with one of the keys, and not for
    those that have only locked it. A row that exists is not locked.
    """

    __slots__ = ("rows", "table")

    def __init__(self, table: str, rows: Rows) -> None:
        self.table = table
        self.rows = rows


class Put(Statement):
    """Insert a row, or replace the one with its key."""

    __slots__ = ("row", "table")

    def __init__(self, table: str, row: Row) -> None:
        self.table = table
        self.row = row


class PutAll(Statement):
    """Insert rows, or replace those with their keys, in their order. No key is there twice."""

    __slots__ = ("rows", "table")

    def __init__(self, table: str, rows: Rows) -> None:
        self.table = table
        self.rows = rows


class Update(Statement):
    """Change the rows that match, and return them as they are then.

    With `required` a statement that matches no row fails with `Refused`.
    """

    __slots__ = ("change", "required", "table", "where")

    def __init__(self, table: str, where: Row, change: Row, *, required: bool = False) -> None:
        self.table = table
        self.where = where
        self.change = change
        self.required = required


class Delete(Statement):
    """Delete the rows that match; with `up_to` only those whose column is not above the value."""

    __slots__ = ("table", "up_to", "where")

    def __init__(self, table: str, where: Row, *, up_to: tuple[str, int] | None = None) -> None:
        self.table = table
        self.where = where
        self.up_to = up_to


class Named(Statement):
    """Execute a statement on the tables of sessions and messages, which the store knows by name."""

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: Row) -> None:
        self.name = name
        self.values = values


class LockTimeout(Statement):
    """Fail with `Aborted` when a statement of this transaction waits longer for a row."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Clock(Statement):
    """Read the database's clock: one row, with the seconds as `now`."""

    __slots__ = ()


class EndBackends(Statement):
    """End all other connections that carry this label, the epoch of the host that uses them."""

    __slots__ = ("label",)

    def __init__(self, label: str) -> None:
        self.label = label


class Commit(Statement):
    """Commit; the answer comes when the commit is as safe as the database is asked to make it."""

    __slots__ = ()


Transaction = Generator[list[Statement], list[Rows], Result]


class TransactionError(Exception):
    """A transaction has failed."""


class Refused(TransactionError):
    """A required row is not there, or an inserted one is."""


class Stale(TransactionError):
    """Rows are not what was expected of them, and nothing of the transaction was written."""


class Aborted(TransactionError):
    """The database ended the transaction, and nothing of it was written."""


class ConnectionLost(TransactionError):
    """The connection ended before the transaction was answered."""

    def __init__(self, *, is_unknown: bool) -> None:
        super().__init__("the connection to the database was lost")
        self.is_unknown = is_unknown  # COMMIT was sent

"""Makes the n-th call of a store fail: a statement or a commit; or a commit that is done, and
then nobody hears of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

CALLS_MAX: Final = 400
# Between one n and the next: the fast tests examine every seventeenth.
STEPS: Final = [
    pytest.param(17, id="every seventeenth"),
    pytest.param(1, id="every", marks=pytest.mark.slow),
]


class Sabotage:
    def __init__(self, nth: int, *, after_commit: bool) -> None:
        self.nth = nth
        self.calls = 0
        self._after_commit = after_commit

    def _count(self, connection: Connection, *, is_commit: bool) -> None:
        self.calls += is_commit or not self._after_commit
        if self.calls != self.nth or (self._after_commit and not is_commit):
            return
        driver: Any = connection.connection.driver_connection
        if self._after_commit:
            driver.commit()
        if connection.dialect.name == "postgresql":
            driver.close()  # as it is when the link is lost: nothing more can be said on it
        raise OperationalError("sabotage", None, sqlite3.OperationalError("sabotage"))

    def on_execute(self, connection: Connection, *_: object) -> None:
        self._count(connection, is_commit=False)

    def on_commit(self, connection: Connection) -> None:
        self._count(connection, is_commit=True)


@contextmanager
def sabotaged(nth: int, *, after_commit: bool) -> Iterator[Sabotage]:
    sabotage = Sabotage(nth, after_commit=after_commit)
    event.listen(Engine, "before_cursor_execute", sabotage.on_execute)
    event.listen(Engine, "commit", sabotage.on_commit)
    try:
        yield sabotage
    finally:
        event.remove(Engine, "before_cursor_execute", sabotage.on_execute)
        event.remove(Engine, "commit", sabotage.on_commit)

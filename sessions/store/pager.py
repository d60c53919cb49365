"""Read queued deliveries from the tables in a background thread, one page at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, Engine

from sessions.journal.rows import DeliveryRow, MessageRow
from sessions.store.database import Database
from sessions.store.state_loader import read_page
from sessions.store.worker import Worker

Page = list[tuple[DeliveryRow, MessageRow]]


@dataclass(slots=True)
class Request:
    """A request for a page."""

    sid: int
    after_n: int
    messages_max: int
    bytes_max: int
    on_page: Callable[[Page], None]


class Pager(Worker):
    """The thread that reads pages."""

    def __init__(self, database: Database, on_state: Callable[[str, str], None]) -> None:
        super().__init__("pages", on_state)
        self._database = database
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()

    def ask(self, request: Request) -> None:
        self._queue.put(request)

    def stop(self) -> None:
        """Answer the requests, and end the thread."""
        self._queue.put(None)

    def abandon(self) -> None:
        super().abandon()
        self._queue.put(None)

    def run(self) -> None:
        while (request := self._queue.get()) is not None:
            self.attempt(partial(self._answer, request))

    def prepare(self, engine: Engine, connection: Connection) -> None:
        connection.execution_options(sqlite_reads=True)

    def _answer(self, request: Request) -> None:
        request.on_page(self._read(request))

    def _read(self, request: Request) -> Page:
        connection = self.connect(self._database.tables)
        with connection.begin():
            return read_page(
                connection,
                request.sid,
                request.after_n,
                request.messages_max,
                request.bytes_max,
            )

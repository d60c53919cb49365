"""A thread of the store that does not give up: the writer, the folder and the pager are such.

It keeps its own connections. What fails is reported as one line, the connections are dropped
(unless it is said that they are good, see `ParticipantFailed`), and the same work is tried again
after a while that grows to a second, for ever: until it succeeds or the store is abandoned. An
error outside such work, our own mistake or want of memory, does not end the thread either: it is
reported, and the loop begins again.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine

from sessions.store.database import explain

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0

T = TypeVar("T")


class Abandoned(Exception):
    """The store was told to give up what it could not do."""


class ParticipantFailed(Exception):
    """What failed is not the database, and nothing is wrong with the connections to it."""

    def __init__(self, name: str, said: str) -> None:
        super().__init__(said)
        self.name = name  # of what failed


class Worker(ABC):
    def __init__(self, name: str, on_state: Callable[[str, str], None]) -> None:
        self.name = name
        self._on_state = on_state
        self._failing = name  # it, or something elsewhere
        self._state = ""
        self._connections: dict[Engine, Connection] = {}
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"fleetmq-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, or never began."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def abandon(self) -> None:
        """End as soon as the statement under way does."""
        self._abandoned.set()

    @abstractmethod
    def run(self) -> None:
        """The loop of the thread."""

    @abstractmethod
    def prepare(self, engine: Engine, connection: Connection) -> None:
        """What a new connection needs before it is used."""

    def connect(self, engine: Engine) -> Connection:
        connection = self._connections.get(engine)
        if connection is None:
            connection = engine.connect()
            try:
                self.prepare(engine, connection)
            except BaseException:
                discard(connection)
                raise
            self._connections[engine] = connection
        return connection

    def adopt(self, engine: Engine, connection: Connection) -> None:
        """Use a connection that is prepared already."""
        self._connections[engine] = connection

    def drop(self) -> None:
        for connection in self._connections.values():
            discard(connection)
        self._connections.clear()

    def attempt(self, work: Callable[[], T]) -> T:
        delay_s = RETRY_S
        while not self._abandoned.is_set():
            try:
                result = work()
            except Abandoned:
                raise
            except ParticipantFailed as error:
                self._say(error.name, str(error))
            except Exception as error:  # whatever it is, the work has to be done
                self.drop()
                self._say(self.name, explain(error))
            else:
                self._say(self._failing, "")
                return result
            if self._abandoned.wait(delay_s):
                break
            delay_s = min(2 * delay_s, RETRY_S_MAX)
        raise Abandoned

    def _say(self, name: str, state: str) -> None:
        """What fails is one thing at a time: work that fails in another way has come further."""
        before, was = self._failing, self._state
        if (name, state) != (before, was):
            self._on_state(name, state)
            if was and name != before:
                self._on_state(before, "")
            self._failing, self._state = name, state  # at last: what is not told is told again

    def _main(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    self.run()
                except Abandoned:
                    return
                except Exception as error:
                    self._on_stumble(error)
                else:
                    return
        finally:
            self.drop()

    def _on_stumble(self, error: Exception) -> None:
        """Say it, if that can be done, and wait a moment. The next success says the opposite."""
        with contextlib.suppress(Exception):
            self.drop()
            self._say(self.name, explain(error))
        self._abandoned.wait(RETRY_S_MAX)


def discard(connection: Connection) -> None:
    """Close it without another word to the database."""
    # A connection that failed may fail to roll back, too: what it held is gone either way.
    with contextlib.suppress(Exception):
        connection.invalidate()
    with contextlib.suppress(Exception):
        connection.close()

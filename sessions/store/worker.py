"""The base of the store's threads: writer, applier and pager. They repeat failed work.

A worker has its own connections. A failure is reported in one line, the connections are closed
(unless the error is a `ParticipantFailed`), and the same work is repeated after a delay that grows
to a second, until it succeeds or the store is abandoned. An error outside such work (a bug, or lack
of memory) is reported, too, and the thread's loop starts again.
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
    """The store was abandoned: stop repeating."""


class ParticipantFailed(Exception):
    """The participant failed, not the database: connections are kept."""

    def __init__(self, name: str, said: str) -> None:
        super().__init__(said)
        self.name = name  # the participant


class Worker(ABC):
    """A thread with connections of its own."""

    def __init__(self, name: str, on_state: Callable[[str, str], None]) -> None:
        self.name = name
        self._on_state = on_state
        self._failing = name  # the worker's name, or the participant's
        self._state = ""
        self._connections: dict[Engine, Connection] = {}
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"fleetmq-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return True if the thread has ended or was never started."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Tell whether the thread was started and has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def abandon(self) -> None:
        """End after the current statement."""
        self._abandoned.set()

    @abstractmethod
    def run(self) -> None:
        """The loop of the thread."""

    @abstractmethod
    def prepare(self, engine: Engine, connection: Connection) -> None:
        """Prepare a new connection."""

    def connect(self, engine: Engine) -> Connection:
        """Return the connection to an engine, a new one if there is none."""
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
        """Use a connection that was prepared elsewhere."""
        self._connections[engine] = connection

    def drop(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            discard(connection)
        self._connections.clear()

    def attempt(self, work: Callable[[], T]) -> T:
        """Repeat this work until it succeeds; return its result."""
        delay_s = RETRY_S
        while not self._abandoned.is_set():
            try:
                result = work()
            except Abandoned:
                raise
            except ParticipantFailed as error:
                self._set_state(error.name, str(error))
            except Exception as error:  # whatever the error, the work must be done
                self.drop()
                self._set_state(self.name, explain(error))
            else:
                self._set_state(self._failing, "")
                return result
            if self._abandoned.wait(delay_s):
                break
            delay_s = min(2 * delay_s, RETRY_S_MAX)
        raise Abandoned

    def _set_state(self, name: str, state: str) -> None:
        """Report a state. Only the latest failure counts: a different one means progress."""
        before, was = self._failing, self._state
        if (name, state) != (before, was):
            self._on_state(name, state)
            if was and name != before:
                self._on_state(before, "")
            self._failing, self._state = (
                name,
                state,
            )

    def _main(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    self.run()
                except Abandoned:
                    return
                except Exception as error:
                    self._on_internal_error(error)
                else:
                    return
        finally:
            self.drop()

    def _on_internal_error(self, error: Exception) -> None:
        """Report a bug, if possible, and wait a moment. The next success clears the state."""
        with contextlib.suppress(Exception):
            self.drop()
            self._set_state(self.name, explain(error))
        self._abandoned.wait(RETRY_S_MAX)


def discard(connection: Connection) -> None:
    """Close a connection without another statement."""
    # A failed connection may also fail to roll back; closing it ends its transaction.
    with contextlib.suppress(Exception):
        connection.invalidate()
    with contextlib.suppress(Exception):
        connection.close()

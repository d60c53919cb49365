"""`Directory` of a running server: walks over its tables, and commands, on its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from mqtt_broker.core.commands import Operator
from mqtt_broker.core.inspection import Inspector
from mqtt_broker.core.interfaces.rows import (
    ClientDetail,
    ClientRow,
    MatchRow,
    MessageRow,
    NewMessage,
    Published,
    RetainedMessage,
    RetainedSelect,
    RetainedSelected,
    Rows,
    SubscriptionRow,
)
from mqtt_broker.http_api.request.directory_interface import CACHE_S
from mqtt_broker.server.server import Server

T = TypeVar("T")
Start = Callable[[Callable[[T], None]], object]
_LISTS_MAX: Final = 16  # that are kept for a second
_FREE_S: Final = 0.001  # between parts of rows that are freed
_PUBLISHED_AT_ONCE: Final = 20  # messages, then others have their turn


class ServerDirectory:
    """Gives the HTTP server access to the tables of a running broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._inspector = Inspector(server.broker.state)
        self._operator = Operator(server.broker.state)
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, object], Future[Any]] = {}

    def now(self) -> float:
        return self._server.now()

    # Lists.

    def clients(self) -> Future[Rows[ClientRow]]:
        inspector = self._inspector
        return self._list(("clients", None), inspector.clients)

    def subscriptions(self, client_id: str | None) -> Future[Rows[SubscriptionRow]]:
        inspector = self._inspector
        return self._list(
            ("subscriptions", client_id), lambda done: inspector.subscriptions(client_id, done)
        )

    def matches(self, topic: str) -> Future[Rows[MatchRow]]:
        inspector = self._inspector
        return self._list(("matches", topic), lambda done: inspector.matches(topic, done))

    def retained(self, query: RetainedSelect) -> Future[RetainedSelected]:
        inspector = self._inspector
        return self._list(("retained", query), lambda done: inspector.retained(query, done))

    def branches(self, prefix: str) -> Future[dict[str, int]]:
        inspector = self._inspector
        return self._list(("branches", prefix), lambda done: inspector.branches(prefix, done))

    def inflight(self, client_id: str) -> Future[Rows[MessageRow] | None]:
        return self._messages(lambda done: self._inspector.inflight(client_id, done))

    def queue(self, client_id: str) -> Future[Rows[MessageRow] | None]:
        return self._messages(lambda done: self._inspector.queue(client_id, done))

    def _messages(
        self, start: Callable[[Callable[[Rows[MessageRow]], None]], bool]
    ) -> Future[Rows[MessageRow] | None]:
        found: Future[Rows[MessageRow] | None] = Future()

        def run() -> None:
            if not start(found.set_result):
                found.set_result(None)

        return self._on_loop(run, found)

    def _list(self, key: tuple[str, object], start: Start[T]) -> Future[T]:
        """Return the list that was begun less than a second ago, or begin one."""
        with self._lock:
            found: Future[T] | None = self._lists.get(key)
            if found is not None:
                return found
            found = Future()
            if len(self._lists) < _LISTS_MAX:
                self._lists[key] = found
        begun = found

        def run() -> None:
            self._server.loop.call_later(CACHE_S, self._forget, key, begun)
            start(begun.set_result)

        return self._on_loop(run, begun)

    def _forget(self, key: tuple[str, object], found: Future[Any]) -> None:
        with self._lock:
            if self._lists.get(key) is found:
                del self._lists[key]
        if found.done() and isinstance(found.result(), Rows):
            self._free(list(found.result().parts))

    def _free(self, parts: list[list[Any]]) -> None:
        """Free rows a part at a time: very many at once are milliseconds for everybody."""
        if parts:
            parts.pop()
            self._server.loop.call_later(_FREE_S, self._free, parts)

    # One thing.

    def client(self, client_id: str) -> Future[ClientDetail | None]:
        return self._do(lambda now: self._inspector.client(client_id))

    def retained_message(self, topic: str) -> Future[RetainedMessage | None]:
        return self._do(lambda now: self._inspector.retained_message(topic, now))

    # Commands.

    def kick(self, client_id: str, reason: int, remove_session: bool) -> Future[bool]:
        return self._change(
            lambda now: self._operator.kick(client_id, reason, now, remove_session=remove_session)
        )

    def expire(self, client_id: str) -> Future[bool]:
        return self._change(lambda now: self._operator.expire(client_id, now))

    def clear_queue(self, client_id: str) -> Future[int | None]:
        return self._change(lambda now: self._operator.clear_queue(client_id, now))

    def clear_retained(self, text: str) -> Future[int]:
        found: Future[int] = Future()

        def finish(count: int) -> None:
            self._forget_all()
            found.set_result(count)

        return self._on_loop(lambda: self._operator.clear_retained(text, finish), found)

    def publish(self, messages: Sequence[NewMessage], publisher: str) -> Future[list[Published]]:
        found: Future[list[Published]] = Future()
        done: list[Published] = []

        def run() -> None:
            now = self._server.now()
            for message in messages[len(done) : len(done) + _PUBLISHED_AT_ONCE]:
                done.append(self._operator.publish(message, publisher, now))
            if len(done) == len(messages):
                self._forget_all()
                found.set_result(done)
            else:
                self._on_loop(run, found)

        return self._on_loop(run, found)

    # On the loop.

    def _forget_all(self) -> None:
        """Gather the lists anew: something was changed."""
        with self._lock:
            self._lists.clear()

    def _change(self, act: Callable[[float], T]) -> Future[T]:
        def changed(now: float) -> T:
            self._forget_all()
            return act(now)

        return self._do(changed)

    def _do(self, act: Callable[[float], T]) -> Future[T]:
        found: Future[T] = Future()
        return self._on_loop(lambda: found.set_result(act(self._server.now())), found)

    def _on_loop(self, run: Callable[[], object], found: Future[T]) -> Future[T]:
        """Call `run` on the broker's loop; what it raises is the outcome."""

        def guarded() -> None:
            try:
                run()
            except Exception as error:  # for the caller
                found.set_exception(error)
            self._server.turn.end_now()

        self._server.loop.call_soon_threadsafe(guarded)
        return found

"""Threads for what is slow about access: hashing, tables, files.

Who waits is served in a fair order; verdicts come back to the loop in small portions, so that
those who are connected do not notice a storm.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.security.authentication.fair_queue import FairQueue
from mqtt_broker.security.rules.identity import address_of, line_of

if TYPE_CHECKING:
    from mqtt_broker.server.server import Server

_VERDICTS_A_TURN: Final = 32
_STOP_S: Final = 2.0
_log = logging.getLogger("fleetmq")


class AuthWorkers:
    """Slow work of the access door. `Workers` for the chain."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, waiting_max: int, server: Server
    ) -> None:
        self._loop = loop
        self._server = server
        self._waiting: FairQueue[tuple[ConnectRequest, Callable[[], Verdict]]] = FairQueue(
            waiting_max
        )
        self._jobs: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()
        self._is_over = False
        self._done: deque[tuple[ConnectRequest, Verdict]] = deque()
        self._is_scheduled = False
        self._threads = [
            threading.Thread(target=self._run, name=f"fleetmq-access-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return self._waiting.count

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        line = line_of(address_of(request.peer))
        with self._ready:
            if not self._waiting.put(str(line), (request, work)):
                return False
            self._ready.notify()
        return True

    def job(self, work: Callable[[], None]) -> None:
        """Something else that is slow, before clients that wait."""
        with self._ready:
            self._jobs.append(work)
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not (self._is_over or self._jobs or self._waiting.count):
                    self._ready.wait()
                if self._is_over:
                    return
                job = self._jobs.popleft() if self._jobs else None
                found = None if job is not None else self._waiting.take()
            if job is not None:
                job()
            elif found is not None:
                self._decide(*found)

    def _decide(self, request: ConnectRequest, work: Callable[[], Verdict]) -> None:
        if not request.reply.is_wanted:
            return
        try:
            verdict = work()
        except Exception as error:  # ours: it may cost this client its way in, nobody else
            _log.error("internal error in the access door", exc_info=error)
            verdict = Refuse(reasons.UNSPECIFIED_ERROR)
        with self._ready:
            if self._is_over:
                return
            self._done.append((request, verdict))
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self.to_loop(self._deliver)

    def to_loop(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop has ended, and with it whoever waits
            return

    def _deliver(self) -> None:
        """On the loop: some verdicts, then the sockets have their turn."""
        with self._ready:
            count = min(len(self._done), _VERDICTS_A_TURN)
            some = [self._done.popleft() for _ in range(count)]
            self._is_scheduled = bool(self._done)
            is_more = self._is_scheduled
        for request, verdict in some:
            request.reply(still_welcome(verdict), self._server.now())
        self._server.end_turn()
        if is_more:
            self._loop.call_soon(self._deliver)

    def stop(self) -> None:
        with self._ready:
            self._is_over = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(_STOP_S)


def still_welcome(verdict: Verdict) -> Verdict:
    """Who was banned, or is no user any more, since a thread said yes."""
    if isinstance(verdict, Allow) and verdict.guard is not None and not verdict.guard.is_welcome:
        return Refuse()
    return verdict

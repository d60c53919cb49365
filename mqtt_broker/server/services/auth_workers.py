"""Threads for slow work of authentication: hashing, tables, files.

A fair queue decides which client is next. Verdicts return to the loop in small portions, so that
a storm of CONNECTs does not delay connected clients.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.security.authentication.fair_queue import FairQueue
from mqtt_broker.security.rules.identity import address_of, network_of
from mqtt_broker.server.process.log_limiter import ErrorLog
from mqtt_broker.server.process.turn import Turn

_VERDICTS_A_TURN: Final = 32
_STOP_S: Final = 2.0
_log = logging.getLogger("fleetmq")


class AuthWorkers:
    """A pool of threads that implements `Workers` for the chain."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn: Turn, count: int, waiting_max: int
    ) -> None:
        self._loop = loop
        self._turn = turn
        self._waiting: FairQueue[tuple[ConnectRequest, Callable[[], Verdict]]] = FairQueue(
            waiting_max
        )
        self._jobs: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()
        self._errors = ErrorLog(_log)
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
        """The number of clients that wait for a verdict."""
        return self._waiting.count

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        """Do the work in a thread and answer the request. Return False when too many wait."""
        network = network_of(address_of(request.peer))
        with self._ready:
            if not self._waiting.put(str(network), (request, work)):
                return False
            self._ready.notify()
        return True

    def job(self, work: Callable[[], None]) -> None:
        """Do other slow work, ahead of the clients that wait."""
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
        except Exception as error:  # a bug: it may cost only this client its connection
            self._errors.write(error, "internal error while a client was authenticated")
            verdict = Refuse(reasons.UNSPECIFIED_ERROR)
        with self._ready:
            if self._is_over:
                return
            self._done.append((request, verdict))
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self.to_loop(self._deliver)

    def to_loop(self, act: Callable[[], None]) -> None:
        """Call `act` on the loop, from any thread."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed, and no client waits any longer
            return

    def _deliver(self) -> None:
        """Deliver some verdicts on the loop, then let it serve the sockets."""
        with self._ready:
            count = min(len(self._done), _VERDICTS_A_TURN)
            some = [self._done.popleft() for _ in range(count)]
            self._is_scheduled = bool(self._done)
            is_more = self._is_scheduled
        for request, verdict in some:
            request.reply(still_welcome(verdict), self._turn.now())
        self._turn.end_now()
        if is_more:
            self._loop.call_soon(self._deliver)

    def stop(self) -> None:
        """Stop the threads; work that still waits is dropped."""
        with self._ready:
            self._is_over = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(_STOP_S)


def still_welcome(verdict: Verdict) -> Verdict:
    """Refuse a client that was banned or removed since a thread allowed it."""
    if isinstance(verdict, Allow) and verdict.guard is not None and not verdict.guard.is_welcome:
        return Refuse()
    return verdict

"""The watchdog: a thread that checks that publishes are acknowledged and that the loop runs.

Once a second it schedules a call on the loop, which notes the delay and the acknowledgement that
has waited longest for the store. Both are plain attributes, so they can be read while the loop
hangs. A problem is logged once when it begins and once when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from mqtt_broker.core.broker import Broker

PERIOD_S: Final = 1.0
UNANSWERED: Final = "unanswered"
LOOP: Final = "loop"
THREADS: Final = "threads"
_RECOVERED: Final = {
    UNANSWERED: "acknowledgements are sent again",
    LOOP: "the event loop responds again",
}
_log = logging.getLogger("fleetmq")


class Watched(NamedTuple):
    unanswered_s: float  # how long the oldest acknowledgement has waited for the store
    loop_late_s: float
    why: dict[str, str]  # what is wrong, a sentence for each kind of problem


class Watchdog:
    """Watch one broker, from `start` to `stop`."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        dead_threads: Callable[[], list[str]] = list,
    ) -> None:
        """`dead_threads` returns the names of the store's threads that have died."""
        self._broker = broker
        self._loop = loop
        self._clock = clock
        self._dead_threads = dead_threads
        self._asked_at = 0.0  # when the loop was asked; 0: it has answered
        self._took_s = 0.0  # the last answer
        self._took_s_max = 0.0  # since $SYS was published
        self._logged: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetmq-watchdog", daemon=True)
        broker.runtime.metrics.add("watchdog", self._figures)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    # From any thread.

    def look(self) -> Watched:
        """Return how late everything is now, and what is wrong."""
        now = self._clock()
        settings = self._broker.settings
        unanswered_s_max = settings.unanswered_s_max or float("inf")
        loop_late_s_max = settings.loop_late_s_max or float("inf")
        asked_at, since = self._asked_at, self._broker.unanswered.since
        late_s = max(self._took_s, now - asked_at) if asked_at else self._took_s
        unanswered_s = max(0.0, now - since) if since else 0.0
        why: dict[str, str] = {}
        if dead := self._dead_threads():
            why[THREADS] = f"store: thread {', '.join(dead)} has ended; restart the broker"
        if unanswered_s > unanswered_s_max:
            why[UNANSWERED] = (
                f"the oldest unanswered publish has waited {unanswered_s:.1f} s for the store; "
                f"unanswered_s_max is {unanswered_s_max:g}"
            )
        if late_s > loop_late_s_max:
            why[LOOP] = (
                f"the event loop is {late_s:.1f} s late; loop_late_s_max is {loop_late_s_max:g}"
            )
        return Watched(unanswered_s, late_s, why)

    @property
    def needs_restart(self) -> bool:
        """Tell whether only a restart helps: a thread is dead, or acknowledgements are stuck.

        A store that reports an error tries again by itself, and clients that do not need it are
        served meanwhile.
        """
        why = self.look().why
        return THREADS in why or (UNANSWERED in why and not self._broker.backpressure.store_state)

    # In the thread.

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            try:
                self.check()
            except RuntimeError:  # the loop is closed
                return

    def check(self) -> None:
        """Schedule a call on the loop, and log what has changed since the last time."""
        if not self._asked_at:
            self._asked_at = self._clock()
            self._loop.call_soon_threadsafe(self._answer)
        why = self.look().why
        for kind, text in why.items():
            if kind not in self._logged:
                _log.error("unhealthy: %s", text)
        for kind, text in _RECOVERED.items():
            if kind in self._logged and kind not in why:
                _log.warning("healthy: %s", text)
        self._logged = set(why)

    # On the loop.

    def _answer(self) -> None:
        now = self._clock()
        self._took_s = max(0.0, now - self._asked_at)
        self._took_s_max = max(self._took_s_max, self._took_s)
        self._asked_at = 0.0
        self._broker.unanswered.check(now)

    def _figures(self) -> dict[str, str]:
        """Return what $SYS shows; the loop's delay is the worst since the last time."""
        watched = self.look()
        late_s, self._took_s_max = max(watched.loop_late_s, self._took_s_max), 0.0
        return {
            "publish/unanswered/oldest": f"{watched.unanswered_s:.0f} seconds",
            "loop/late": f"{late_s:.1f} seconds",
            "health": "; ".join(watched.why.values()) or "ok",
        }

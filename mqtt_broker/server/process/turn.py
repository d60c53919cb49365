"""The clock of the broker, and the steps at the end of a turn.

In a turn every socket that is ready is read and its packets are processed. At the end of a turn the
broker writes once to each peer that has output, the storage service learns that changes wait, and
the single timer of the event loop is set to the core's next deadline. While the core's agenda is
not empty the loop does not block: slices of the agenda alternate with turns of the sockets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from mqtt_broker.core.broker import Broker

_SLEEP_S_MAX: Final = 3600.0
_RETRY_S: Final = 0.2  # before a failed end of a turn is tried again
_ADVANCE_STEPS_MAX: Final = 1000  # when the clock is moved ahead


class Turn:
    """Keep the time of one broker and end its turns. A failure in one step skips no other."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Exception], None],
        ahead_s: float = 0.0,
    ) -> None:
        # Deadlines count in wall-clock seconds, so that they mean something after a restart,
        # and never jump: the clock is read once and monotonic time is added.
        self.ahead_s = ahead_s  # how far ahead of the time of day, in a test
        self._epoch = time.time() - time.monotonic() + ahead_s
        self.at = self.now()  # when the last socket was read
        self._loop = loop
        self._report = report
        self._broker: Broker | None = None
        self._after_turn: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._retry: asyncio.TimerHandle | None = None
        self._goes_on = False  # the loop is about to call `_go_on`

    def now(self) -> float:
        """Return the time of day in seconds; it never decreases."""
        return time.monotonic() + self._epoch

    def clock(self) -> float:
        """Return the time, and keep it in `at` as the moment of the latest read."""
        now = time.monotonic() + self._epoch
        self.at = now
        return now

    def advance(self, seconds: float) -> None:
        """Move the clock ahead.

        Timers on the way fire in order and at their time, or up to a thousandth of the way later.
        """
        broker = self._broker
        assert broker is not None
        until = self.now() + seconds
        while (left := until - self.now()) > 0:
            due_in = broker.timers.next() - self.now()
            step = min(left, max(due_in, seconds / _ADVANCE_STEPS_MAX))
            self.ahead_s += step
            self._epoch += step
            self._finish()
        self._arm()

    def _finish(self) -> None:
        """Run turns until nothing is due and the agenda is empty, up to a limit."""
        broker = self._broker
        assert broker is not None
        for _ in range(_ADVANCE_STEPS_MAX):
            self._tick()
            if broker.has_work:
                self.guard(self._work)
            elif broker.timers.next() > self.now():
                return

    def _work(self) -> None:
        assert self._broker is not None
        self._broker.work(self.at)

    def serve(self, broker: Broker, after_turn: Callable[[], None] | None) -> None:
        """End the turns of this broker. `after_turn` is called while its journal waits."""
        self._broker = broker
        self._after_turn = after_turn

    def start(self) -> None:
        """Start the broker's timers."""
        self._arm()

    def stop(self) -> None:
        """Cancel the timers."""
        for handle in (self._timer, self._retry):
            if handle is not None:
                handle.cancel()

    def end(self) -> None:
        """End a turn of the sockets: write its output, store its changes."""
        broker = self._broker
        if broker is None:
            return
        try:
            if broker.has_output:
                broker.flush(self.at)
        except Exception as error:
            self.try_again(error)
        try:
            journal = broker.journal
            if journal is not None and journal.is_waiting and self._after_turn is not None:
                self._after_turn()
        except Exception as error:
            self.try_again(error)
        if broker.timers.earliest < self._timer_at:
            self._arm()
        if broker.has_more and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Run a slice of the agenda. The sockets are served before the next call."""
        self._goes_on = False
        broker = self._broker
        assert broker is not None
        self.at = self.now()
        try:
            broker.work(self.at)
        except Exception as error:
            self._report(error)
        self.end()

    def end_now(self) -> None:
        """End a turn after something that happened outside the sockets: a timer, a thread."""
        self.at = self.now()
        self.end()

    def guard(self, act: Callable[[], None]) -> None:
        """Call `act`. An exception is a bug: it is logged and stops nothing else."""
        try:
            act()
        except Exception as error:
            self._report(error)

    def try_again(self, error: Exception) -> None:
        """End the turn again a little later, even if nothing else happens."""
        self._report(error)
        if self._retry is None:  # one is enough, however many turns fail
            self._retry = self._loop.call_later(_RETRY_S, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self.end_now()

    def _arm(self) -> None:
        """Set the loop's timer to the core's next deadline."""
        broker = self._broker
        assert broker is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = broker.timers.next()
        delay = min(max(0.0, self._timer_at - self.now()), _SLEEP_S_MAX)
        self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._tick()
        self._arm()

    def _tick(self) -> None:
        """Fire the timers that are due, and end the turn."""
        broker = self._broker
        assert broker is not None
        try:
            broker.tick(self.now())
        except Exception as error:
            self._report(error)
        self.end_now()

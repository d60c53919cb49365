"""The clockwork of a device: time, reports, timers, the buffer for messages, a reboot.

Rules: a report says when it was due, so its bytes do not depend on how late the fleet asked.
While there is no link, what is said goes into a buffer with an end: the oldest is dropped.
What is measured draws from one chance, what happens to the device from another, so that the
one does not shift the other.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from iot_sim.devices.device import Publication, Spec
from iot_sim.devices.model_info import BOOL, FLOAT, INT, STR, Option
from iot_sim.devices.signals import Clock

OPTIONS: Final = (
    Option("aligned", BOOL, False, "report at whole multiples of the interval, as meters do"),
    Option("jitter_s", FLOAT, 0.0, "each report is late by up to so much", 0, 86_400),
    Option("buffer_max", INT, 100, "messages kept while there is no link", 0, 100_000),
    Option("buffer_bytes_max", INT, 1_048_576, "bytes of payload in them", 0, 1 << 30),
    Option("will_delay_s", INT, 0, "the broker waits so long with the will", 0, 86_400),
    Option("clock_ahead_s", FLOAT, 0.0, "its clock is wrong by up to so much, either way", 0, 1e8),
    Option("clock_drift_ppm", FLOAT, 0.0, "and runs off by up to so many millionths", 0, 1e5),
    Option("clock_sync", BOOL, False, "the clock is set at every connect"),
    Option("utc_offset_h", FLOAT, 0.0, "where the device's day begins", -14, 14),
    Option("reboot_s", FLOAT, 5.0, "seconds that a reboot takes", 0, 3_600),
    Option("firmware", STR, "1.0.0", "version that it starts with"),
)

# A device that was asked later than this, or than so many reports, skips what it missed.
LATE_S_MAX: Final = 5.0
LATE_REPORTS_MAX: Final = 100

Timer = Callable[[float], list[Publication]]


class Clockwork:
    """The moving parts of a device; `Thing` and the Sparkplug node build on it."""

    def __init__(self, spec: Spec) -> None:
        options = spec.options
        self.spec = spec
        self.chance = Random(f"{spec.seed}:{spec.fleet}:{spec.number}")  # of what it measures
        self._fate: Random | None = None
        self.boots = 1
        self.up_since = spec.started_at
        self.firmware: str = options["firmware"]
        self.connected = False
        self.down = False  # between two boots
        draw = self.chance.random
        ahead = (2.0 * draw() - 1.0) * options["clock_ahead_s"]
        drift = (2.0 * draw() - 1.0) * options["clock_drift_ppm"]
        self.clock = Clock(spec.started_at, ahead, drift)
        self.kept: deque[Publication] = deque()  # for the next link
        self._kept_bytes = 0
        self.dropped = 0
        self.interval = spec.interval_s
        self._pace = 1.0
        self._set_period(spec.interval_s)
        self._jitter: float = options["jitter_s"]
        self._paused = 0.0  # share of a period that was left when the pace became 0
        self._grid = self._due = math.inf
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer = math.inf  # when the first of them is
        self._timer_number = 0
        self._set_grid(self._first_report(spec.started_at, draw()))

    # What a model says.

    def reports(self, t: float) -> list[Publication]:
        """Return the publications of the report that was due at `t`."""
        return []

    def births(self, now: float) -> list[Publication]:
        """Return the publications that begin a new connection."""
        return []

    def booted(self, now: float) -> list[Publication]:
        """Arm the model's timers after a boot; return what it publishes."""
        return []

    # The contract with the fleet.

    def will_delay_s(self) -> int:
        delay: int = self.spec.options["will_delay_s"]
        return delay

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        before = self.catch_up(now)  # to be kept, if there was no link
        self.connected = True
        if self.down:  # it is not there yet; what it says, it says after the boot
            return before
        if self.spec.options["clock_sync"]:
            self.clock.set(now)
        return [*self.births(now), *self.flush(), *before]

    def on_disconnected(self, now: float) -> None:
        self.connected = False

    def next_at(self) -> float:
        return self._due if self._due < self._timer else self._timer

    def act(self, now: float) -> list[Publication]:
        if now >= self._timer:
            return self._wake(now)
        return self._report_due(now) if now >= self._due else []

    def pace(self, factor: float, now: float) -> None:
        if self._pace:
            left = min(1.0, max(0.0, self._grid - now) / self._period)
        else:
            left = self._paused
        self._pace = factor
        if not factor:
            self._paused = left
            self._grid = self._due = math.inf
            return
        self._set_period(self.interval / factor)
        if not self.down:
            self._set_grid(self._first_report(now, left))

    def wants_link(self, now: float) -> bool:
        return not self.down

    # What models use.

    @property
    def fate(self) -> Random:
        """Chance for what happens to the device; made when it is first needed."""
        if self._fate is None:
            spec = self.spec
            self._fate = Random(f"{spec.seed}:{spec.fleet}:{spec.number}:fate")
        return self._fate

    def at(self, when: float, what: Timer) -> None:
        """Call `what(when)` at `when`, unless a reboot comes before it."""
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, what))
        self._timer = self._timers[0][0]

    def catch_up(self, now: float) -> list[Publication]:
        """Act on everything that was due before `now`, so that time never runs backwards."""
        out: list[Publication] = []
        while self.next_at() <= now:
            out += self.act(now)
        return out

    def say(self, messages: list[Publication]) -> list[Publication]:
        """Return the messages while connected; otherwise buffer them and return none."""
        if self.connected:
            return messages
        for message in messages:
            self.keep(message)
        return []

    def keep(self, message: Publication) -> None:
        """Keep a publication for the next connection; a full buffer drops its oldest."""
        kept = self.kept
        kept.append(message)
        self._kept_bytes += len(message.payload)
        options = self.spec.options
        while kept and (
            len(kept) > options["buffer_max"] or self._kept_bytes > options["buffer_bytes_max"]
        ):
            self._kept_bytes -= len(kept.popleft().payload)
            self.dropped += 1

    def set_interval(self, interval_s: float, now: float) -> None:
        self.interval = interval_s
        if self._pace:
            self._set_period(interval_s / self._pace)
            self._set_grid(self._first_report(now, 1.0))

    def reboot(self, now: float) -> None:
        """Stop, and boot again after `reboot_s`. State that was only in memory is lost."""
        self.stop()
        self.at(now + self.spec.options["reboot_s"], self._boot)

    def stop(self) -> None:
        """Go down: cancel timers and reports, and forget what was only in memory."""
        self.down = True
        self._timers.clear()
        self._timer = self._grid = self._due = math.inf
        self._forget()

    def flush(self) -> list[Publication]:
        """Return the publications kept in the buffer, in their order, and empty it."""
        out = list(self.kept)
        self._forget()
        return out

    # Within.

    def _forget(self) -> None:
        self.kept.clear()
        self._kept_bytes = 0

    def _boot(self, now: float) -> list[Publication]:
        self.down = False
        self.up_since = now
        self.boots += 1
        if self._pace:
            self._set_grid(self._first_report(now, 1.0))
        said = self.booted(now)
        return [*self.births(now), *said] if self.connected else said

    def _first_report(self, now: float, share: float) -> float:
        """Return when the first report is due: after a share of the interval, or at a multiple."""
        if self.spec.options["aligned"]:
            return math.floor(now / self._period + 1.0) * self._period
        return now + share * self._period

    def _set_period(self, period: float) -> None:
        self._period = period
        self._late_s = min(LATE_S_MAX, LATE_REPORTS_MAX * period)

    def _set_grid(self, t: float) -> None:
        self._grid = t
        self._due = t + self._late() if self._jitter else t

    def _late(self) -> float:
        """Draw how late a report is: at most a period, so that none overtakes the next."""
        return min(self._jitter, self._period) * self.chance.random()

    def _report_due(self, now: float) -> list[Publication]:
        due = self._due
        period = self._period
        following = self._grid + period
        if following < now - self._late_s:  # a long silence of the fleet: no burst of old ones
            following += math.floor((now - following) / period) * period
        self._grid = following
        self._due = following + self._late() if self._jitter else following
        reports = self.reports(due)
        if self.connected:
            return reports
        for message in reports:
            self.keep(message)
        return []

    def _wake(self, now: float) -> list[Publication]:
        """Run the timers and reports that are due, in the order of their times."""
        out: list[Publication] = []
        while self._timer <= now or self._due <= now:
            if self._timer <= self._due:
                when, _, what = heapq.heappop(self._timers)
                self._timer = self._timers[0][0] if self._timers else math.inf
                out += what(when)
            else:
                out += self._report_due(now)
        return out

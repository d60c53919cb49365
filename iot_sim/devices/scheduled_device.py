"""The base of all devices: scheduled reports, timers, a message buffer, reboots.

A report carries the time at which it was due, so its bytes do not depend on how late the fleet
asked for it. While the device is offline, its messages go into a bounded buffer, which drops the
oldest first. Measurements and events draw from two random generators, so that an event does not
change the measurements that follow it.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from iot_sim.devices.device import Publication, Spec
from iot_sim.devices.model_info import BOOL, FLOAT, INT, STR, Option
from iot_sim.devices.signals import Clock

OPTIONS: Final = (
    Option("aligned", BOOL, False, "report at whole multiples of the interval, as meters do"),
    Option("jitter_s", FLOAT, 0.0, "maximum random delay of a report", 0, 86_400),
    Option("buffer_max", INT, 100, "messages buffered while offline", 0, 100_000),
    Option("buffer_bytes_max", INT, 1_048_576, "payload bytes buffered while offline", 0, 1 << 30),
    Option("will_delay_s", INT, 0, "Will Delay Interval", 0, 86_400),
    Option("clock_ahead_s", FLOAT, 0.0, "maximum error of the clock, either way", 0, 1e8),
    Option("clock_drift_ppm", FLOAT, 0.0, "maximum drift of the clock, in ppm", 0, 1e5),
    Option("clock_sync", BOOL, False, "set the clock at every connect"),
    Option("utc_offset_h", FLOAT, 0.0, "offset of the local time from UTC", -14, 14),
    Option("reboot_s", FLOAT, 5.0, "duration of a reboot", 0, 3_600),
    Option("firmware", STR, "1.0.0", "version at the start"),
)

# A device that is asked later than either of these skips the reports that it missed.
LATE_S_MAX: Final = 5.0
LATE_REPORTS_MAX: Final = 100

Timer = Callable[[float], list[Publication]]

_RENAMED: Final = {
    "at": "call_at",
    "chance": "rng",
    "fate": "event_rng",
    "keep": "buffer_message",
    "kept": "buffer",
    "say": "publish_or_buffer",
}


class ScheduledDevice:
    """A device that acts by its own schedule; `DeviceModel` and the Sparkplug node inherit it."""

    def __init__(self, spec: Spec) -> None:
        options = spec.options
        self.spec = spec
        self.rng = Random(f"{spec.seed}:{spec.fleet}:{spec.number}")  # for measurements
        self._event_rng: Random | None = None
        self.boots = 1
        self.up_since = spec.started_at
        self.firmware: str = options["firmware"]
        self.connected = False
        self.down = False  # between two boots
        draw = self.rng.random
        ahead = (2.0 * draw() - 1.0) * options["clock_ahead_s"]
        drift = (2.0 * draw() - 1.0) * options["clock_drift_ppm"]
        self.clock = Clock(spec.started_at, ahead, drift)
        self.buffer: deque[Publication] = deque()  # published after the next connect
        self._buffer_bytes = 0
        self.dropped = 0
        self.interval = spec.interval_s
        self._pace = 1.0
        self._set_period(spec.interval_s)
        self._jitter: float = options["jitter_s"]
        self._paused = 0.0  # share of a period that was left when `pace` set the factor 0
        self._next_report = self._due = math.inf
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer = math.inf  # time of the first of them
        self._timer_number = 0
        self._schedule_report(self._first_report_at(spec.started_at, draw()))

    if not TYPE_CHECKING:  # a type checker is to report the old names

        def __getattr__(self, name: str) -> Any:
            """Return an attribute by its deprecated name."""
            new = _RENAMED.get(name)
            if new is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warnings.warn(f"{name} is deprecated: use {new}", DeprecationWarning, 2)
            return getattr(self, new)

    # For a model to override.

    def reports(self, t: float) -> list[Publication]:
        """Return the publications of the report that was due at `t`."""
        return []

    def births(self, now: float) -> list[Publication]:
        """Return the publications that begin a new connection."""
        return []

    def booted(self, now: float) -> list[Publication]:
        """Start the model's timers after a boot; return what it publishes."""
        return []

    # The contract with the fleet.

    def will_delay_s(self) -> int:
        delay: int = self.spec.options["will_delay_s"]
        return delay

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        before = self.catch_up(now)
        self.connected = True
        if self.down:  # births and buffer follow at the end of the boot
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
            left = min(1.0, max(0.0, self._next_report - now) / self._period)
        else:
            left = self._paused
        self._pace = factor
        if not factor:
            self._paused = left
            self._next_report = self._due = math.inf
            return
        self._set_period(self.interval / factor)
        if not self.down:
            self._schedule_report(self._first_report_at(now, left))

    def wants_link(self, now: float) -> bool:
        return not self.down

    # For models to call.

    @property
    def event_rng(self) -> Random:
        """The random generator for events of the device, created at its first use."""
        if self._event_rng is None:
            spec = self.spec
            self._event_rng = Random(f"{spec.seed}:{spec.fleet}:{spec.number}:fate")
        return self._event_rng

    def call_at(self, when: float, action: Timer) -> None:
        """Call `action(when)` at the time `when`, unless a reboot comes before it."""
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, action))
        self._timer = self._timers[0][0]

    def catch_up(self, now: float) -> list[Publication]:
        """Run the timers and reports due by `now`, so that time never runs backwards."""
        out: list[Publication] = []
        while self.next_at() <= now:
            out += self.act(now)
        return out

    def publish_or_buffer(self, messages: list[Publication]) -> list[Publication]:
        """Return the messages while connected; otherwise buffer them and return none."""
        if self.connected:
            return messages
        for message in messages:
            self.buffer_message(message)
        return []

    def buffer_message(self, message: Publication) -> None:
        """Keep a publication for the next connection; a full buffer drops its oldest."""
        buffer = self.buffer
        buffer.append(message)
        self._buffer_bytes += len(message.payload)
        options = self.spec.options
        while buffer and (
            len(buffer) > options["buffer_max"] or self._buffer_bytes > options["buffer_bytes_max"]
        ):
            self._buffer_bytes -= len(buffer.popleft().payload)
            self.dropped += 1

    def set_interval(self, interval_s: float, now: float) -> None:
        self.interval = interval_s
        if self._pace:
            self._set_period(interval_s / self._pace)
            self._schedule_report(self._first_report_at(now, 1.0))

    def reboot(self, now: float) -> None:
        """Stop, and boot again after `reboot_s`. The buffer is lost."""
        self.stop()
        self.call_at(now + self.spec.options["reboot_s"], self._boot)

    def stop(self) -> None:
        """Go down: cancel timers and reports, and lose the buffer."""
        self.down = True
        self._timers.clear()
        self._timer = self._next_report = self._due = math.inf
        self._clear_buffer()

    def flush(self) -> list[Publication]:
        """Empty the buffer; return its publications in their order."""
        out = list(self.buffer)
        self._clear_buffer()
        return out

    # Internal.

    def _clear_buffer(self) -> None:
        self.buffer.clear()
        self._buffer_bytes = 0

    def _boot(self, now: float) -> list[Publication]:
        self.down = False
        self.up_since = now
        self.boots += 1
        if self._pace:
            self._schedule_report(self._first_report_at(now, 1.0))
        published = self.booted(now)
        return [*self.births(now), *published] if self.connected else published

    def _first_report_at(self, now: float, share: float) -> float:
        """Return when the first report is due: after a share of the interval, or at a multiple."""
        if self.spec.options["aligned"]:
            return math.floor(now / self._period + 1.0) * self._period
        return now + share * self._period

    def _set_period(self, period: float) -> None:
        self._period = period
        self._skip_after_s = min(LATE_S_MAX, LATE_REPORTS_MAX * period)

    def _schedule_report(self, t: float) -> None:
        self._next_report = t
        self._due = t + self._late() if self._jitter else t

    def _late(self) -> float:
        """Draw the delay of a report: at most a period, so that none overtakes the next."""
        return min(self._jitter, self._period) * self.rng.random()

    def _report_due(self, now: float) -> list[Publication]:
        due = self._due
        period = self._period
        following = self._next_report + period
        if following < now - self._skip_after_s:  # no burst of overdue reports
            following += math.floor((now - following) / period) * period
        self._next_report = following
        self._due = following + self._late() if self._jitter else following
        reports = self.reports(due)
        if self.connected:
            return reports
        for message in reports:
            self.buffer_message(message)
        return []

    def _wake(self, now: float) -> list[Publication]:
        """Run the timers and reports that are due, in the order of their times."""
        out: list[Publication] = []
        while self._timer <= now or self._due <= now:
            if self._timer <= self._due:
                when, _, action = heapq.heappop(self._timers)
                self._timer = self._timers[0][0] if self._timers else math.inf
                out += action(when)
            else:
                out += self._report_due(now)
        return out

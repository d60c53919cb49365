"""Close readers that take too little of what they are sent, for the memory it keeps.

Each reader may have its share unread (`Outboxes.share_bytes`), and over it gets nothing more until
it has read. Two things are left to see to here, and both hit those who do not read alone:

- A reader that is over its share and reads nothing for `stalled_reader_s` is closed. While the
  readers together have more than half of `outbox_total_bytes_max` unread, this holds for all of
  them, and each has to read half of its share in that time: a few bytes now and then do not do.
- What comes in one turn may still be more than `outbox_total_bytes_max`. Then those who have most
  unread are closed, until the rest is below it.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.runtime.backpressure import READS_SLOWLY, PausableClient
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.messages.outbox import Outbox

READS_NOTHING: Final = "reads nothing"
READS_TOO_SLOWLY: Final = "reads too slowly"
UNREAD_BYTES: Final = "unread bytes"
_CHECKS: Final = 4  # in `stalled_reader_s`
_AT_ONCE: Final = 2_000  # looked at until others have their turn
_PAUSE_S: Final = 0.002


class SlowReader(PausableClient, Protocol):
    """A connection, as far as its peer reads."""

    @property
    def reads_slowly(self) -> bool:
        """Tell whether it is over its share, and gets nothing more until it has read."""

    def write_on(self, now: float) -> None:
        """Send what has waited until it reads."""

    def read_on(self, now: float) -> None:
        """Send sources what there is room for."""


class SlowReaders:
    __slots__ = (
        "_is_watching",
        "_left",
        "_level",
        "_notices",
        "_outboxes",
        "_stalled_s",
        "_timers",
    )

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._outboxes = runtime.outboxes
        self._timers = runtime.timers
        self._notices = runtime.notices
        self._stalled_s = settings.stalled_reader_s
        self._level = 64  # of the share, in bits, when those over it were looked for
        self._is_watching = False
        self._left: list[Outbox] = []  # of this check

    def settle(self, client: SlowReader, box: Outbox, link_bytes: int, now: float) -> None:
        """Adapt to the bytes that wait at a link: it was handed some, or its peer took some."""
        outboxes = self._outboxes
        outboxes.count_waiting(box, link_bytes)
        if box.kept is not None and link_bytes <= outboxes.share_bytes // 2:
            outboxes.count_waiting(box, outboxes.hand_over(box))
        waiting_bytes = box.waiting_bytes
        if waiting_bytes and not self._is_watching:
            self._is_watching = True
            self._timers.at(now + self._stalled_s / _CHECKS, self._on_check)
        share = outboxes.share_bytes
        if waiting_bytes > share:
            if not client.reads_slowly:
                # It is not read from either: what it asks for would only pile up.
                client.pause(READS_SLOWLY)
                box.congest()
                if self._notices.is_due("slow", now):
                    line = f"{client.name}: reads slowly, {waiting_bytes} bytes wait for it"
                    self._notices.say("slow", line)
        elif client.reads_slowly and waiting_bytes <= share // 2:
            client.resume(READS_SLOWLY)
            client.write_on(now)
        else:
            client.read_on(now)

    def balance(self, now: float) -> None:
        """Hold readers to a share that has become smaller, and all of them to their limit."""
        outboxes = self._outboxes
        share = outboxes.share_bytes
        level = share.bit_length()
        if level < self._level:
            for box in list(outboxes.unread):
                if box.waiting_bytes > share:
                    box.owner.on_written(box.link_bytes, now)
        self._level = level
        if outboxes.waiting_bytes > outboxes.waiting_bytes_max:
            self._close_largest(now)

    def _close_largest(self, now: float) -> None:
        """Close those who have most unread, until the rest is below the limit of all."""
        outboxes = self._outboxes
        boxes = sorted(outboxes.unread, key=_waiting_bytes, reverse=True)
        for box in boxes:
            if outboxes.waiting_bytes <= outboxes.waiting_bytes_max:
                return
            total = f"of {outboxes.waiting_bytes} of all"
            why = f"has {box.waiting_bytes} bytes unread, the most {total}"
            box.owner.give_up(UNREAD_BYTES, why, now)

    def _on_check(self, now: float) -> None:
        self._left = list(self._outboxes.unread)
        self._check_some(now)

    def _check_some(self, now: float) -> None:
        left = self._left
        for _ in range(min(_AT_ONCE, len(left))):
            box = left.pop()
            if box.waiting_bytes:
                self._check(box, now)
        self._is_watching = len(left) > 0 or len(self._outboxes.unread) > 0
        if left:
            self._timers.at(now + _PAUSE_S, self._check_some)
        elif self._is_watching:
            self._timers.at(now + self._stalled_s / _CHECKS, self._on_check)

    def _check(self, box: Outbox, now: float) -> None:
        read_bytes = box.handed_bytes - box.link_bytes
        outboxes = self._outboxes
        mark = outboxes.unread.get(box)
        is_pressed = outboxes.is_pressed
        silent_s = now - box.owner.last_read_at
        if silent_s >= self._stalled_s and (is_pressed or box.owner.reads_slowly):
            why = f"has read nothing of {box.waiting_bytes} bytes for {int(silent_s)} s"
            box.owner.give_up(READS_NOTHING, why, now)
        elif mark is None:
            outboxes.note(box, (now, read_bytes, box.waiting_bytes))
        elif now - mark[0] >= self._stalled_s:
            least = min(mark[2], outboxes.share_bytes) // 2
            if is_pressed and read_bytes - mark[1] < least:
                elapsed = f"{int(now - mark[0])} s"
                why = f"has read {read_bytes - mark[1]} of {mark[2]} bytes in {elapsed}"
                box.owner.give_up(READS_TOO_SLOWLY, why, now)
            else:
                outboxes.note(box, (now, read_bytes, box.waiting_bytes))


def _waiting_bytes(box: Outbox) -> int:
    return box.waiting_bytes

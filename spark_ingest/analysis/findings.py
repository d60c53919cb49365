"""The pure state machine of `quality`: find what is wrong with one device's messages.

    gap         sequence numbers are missing; `count` of them; ended when the last one came late
    duplicate   a sequence number came again
    restart     the device counts from the beginning again
    stuck       a metric has the same value for as long and as often as the limits say
    silent      nothing was heard
    rejected    a payload could not be read

The key of a finding is device, kind, metric, time, and a number: the sequence number with which a
gap or a restart begins, or the offset of a duplicate or rejected message.

A message with a number of a gap fills it. A number that was seen before is a restart if its event
is newer than the last one, and a duplicate otherwise. Up to `GAPS_MAX` gaps are kept, and the
oldest is dropped first: messages that would fill it then count as duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_ingest.analysis.keyed import Finding, Reading
from spark_ingest.analysis.silence import Silence

GAP: Final = "gap"
DUPLICATE: Final = "duplicate"
RESTART: Final = "restart"
STUCK: Final = "stuck"
SILENT: Final = "silent"
REJECTED: Final = "rejected"
GAPS_MAX: Final = 100
# More numbers may be missing than 64 bits can hold: from one end of the range to the other.
_LONG_MAX: Final = (1 << 63) - 1
TOTALS: Final = (
    "messages", "rejected", "duplicates", "missing", "reordered", "restarts", "stuck", "silences",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QualityLimits:
    stuck_count: int = 20
    stuck_us: int = 0
    silence_us: int = 0


class Findings:
    """A `keyed.Machine`."""

    def __init__(self, device: str, limits: QualityLimits) -> None:
        self._device = device
        self._limits = limits
        self._totals = dict.fromkeys(TOTALS, 0)
        self._first_us: int | None = None
        self._silence = Silence(limits.silence_us)
        self._last: int | None = None  # the highest sequence number
        self._event_us = 0  # of the newest message
        # first and last missing number, when the gap was seen, its initial number and count
        self._gaps: list[list[int]] = []
        self._same: dict[str, list[Any]] = {}  # metric: value, since, how often, whether told

    def restore(self, state: Any) -> None:
        totals, *rest = state
        self._totals = dict(zip(TOTALS, totals, strict=True))
        silence = self._silence
        self._first_us, silence.heard_us, silence.is_told, self._last, self._event_us = rest[:5]
        self._gaps, self._same = rest[5:]

    def state(self) -> Any:
        silence = self._silence
        return [
            list(self._totals.values()),
            *(self._first_us, silence.heard_us, silence.is_told, self._last, self._event_us),
            *(self._gaps, self._same),
        ]

    def read(self, reading: Reading) -> Iterator[Finding]:
        self._totals["messages"] += 1
        yield from self._heard(reading.received_us)
        if reading.is_rejected:
            self._totals["rejected"] += 1
            yield self._finding(REJECTED, reading.received_us, number=reading.offset)
            return
        is_new = True
        if reading.sequence is not None:
            is_new, found = self._count(reading, reading.sequence)
            yield from found
        if is_new:
            yield from self._compare(reading)
        self._event_us = max(self._event_us, reading.at_us)

    # Sequence numbers.

    def _count(self, reading: Reading, number: int) -> tuple[bool, list[Finding]]:
        """Count a message; return whether it is new, and findings about its sequence number."""
        last = self._last
        if last is None or number == last + 1:
            self._last = number
            return True, []
        if number > last:
            self._last = number
            self._totals["missing"] += number - last - 1
            gap = [last + 1, number - 1, reading.received_us, last + 1, number - last - 1]
            self._gaps = [*self._gaps[-GAPS_MAX + 1 :], gap]
            return True, [self._gap(gap)]
        for at, gap in enumerate(self._gaps):
            if gap[0] <= number <= gap[1]:
                return True, self._fill(at, number, reading.received_us)
        if reading.at_us > self._event_us:
            self._last, self._gaps = number, []
            self._totals["restarts"] += 1
            return True, [self._finding(RESTART, reading.received_us, number=number)]
        self._totals["duplicates"] += 1
        return False, [
            self._finding(
                DUPLICATE, reading.received_us, number=reading.offset, value=float(number)
            )
        ]

    def _fill(self, at: int, number: int, now_us: int) -> list[Finding]:
        """Fill a gap with a message that came late; the rest of the gap may be two."""
        low, high, began_us, first, whole = self._gaps.pop(at)
        self._totals["missing"] -= 1
        self._totals["reordered"] += 1
        self._gaps[at:at] = [
            [begin, end, began_us, first, whole]
            for begin, end in ((low, number - 1), (number + 1, high))
            if begin <= end
        ]
        if any(gap[3] == first for gap in self._gaps):
            return []
        return [self._finding(GAP, began_us, number=first, ended_us=now_us, count=whole)]

    def _gap(self, gap: list[int]) -> Finding:
        return self._finding(GAP, gap[2], number=gap[3], count=gap[4])

    # Values.

    def _compare(self, reading: Reading) -> Iterator[Finding]:
        """Compare a metric with its last value, to find sensors that are stuck."""
        limits = self._limits
        for name, value in reading.values.items():
            same = self._same.get(name)
            if same is None or same[0] != value:
                if same is not None and same[3]:
                    yield self._finding(
                        STUCK, same[1], metric=name, ended_us=reading.at_us,
                        count=same[2], value=same[0],
                    )  # fmt: skip
                self._same[name] = [value, reading.at_us, 1, False]
                continue
            same[2] += 1
            is_stuck = same[2] >= limits.stuck_count and reading.at_us - same[1] >= limits.stuck_us
            if is_stuck and not same[3]:
                same[3] = True
                self._totals["stuck"] += 1
                yield self._finding(STUCK, same[1], metric=name, count=same[2], value=value)

    # Silence.

    def _heard(self, at_us: int) -> Iterator[Finding]:
        if self._first_us is None:
            self._first_us = at_us
        was_told = self._silence.is_told
        began_us = self._silence.hear(at_us)
        if began_us is not None:
            if not was_told:
                self._totals["silences"] += 1
            yield self._finding(SILENT, began_us, ended_us=at_us)

    def silent_at_us(self) -> int | None:
        return self._silence.due_us()

    def on_silence(self) -> Iterator[Finding]:
        began_us = self._silence.tell()
        if began_us is not None:
            self._totals["silences"] += 1
            yield self._finding(SILENT, began_us)

    # What is said.

    def summary(self) -> Iterator[Finding]:
        yield {
            **self._finding("", 0),
            "first_us": self._first_us,
            "heard_us": self._silence.heard_us,
            **{name: min(total, _LONG_MAX) for name, total in self._totals.items()},
        }

    def _finding(
        self,
        kind: str,
        began_us: int,
        *,
        metric: str = "",
        number: int = 0,
        ended_us: int | None = None,
        count: int | None = None,
        value: float | None = None,
    ) -> Finding:
        return {
            "device": self._device,
            "kind": kind,
            "metric": metric,
            "began_us": began_us,
            "number": number,
            "ended_us": ended_us,
            "count": None if count is None else min(count, _LONG_MAX),
            "value": value,
            "first_us": None,
            "heard_us": None,
            **dict.fromkeys(TOTALS),
        }

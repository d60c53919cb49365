"""Plan how much a trigger reads and which task reads what. Numbers only: no file, no Spark.

deal(starts, ends, limit, ...)       ends within a limit, by a received time that all share
share_rows(starts, ends, rows_max)   ends that are no more than so many offsets further
split(starts, ends, ...)             ranges of offsets, a list a task
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# A task costs Spark some ten milliseconds; so many rows take longer.
TASK_ROWS_MIN: Final = 10_000
# Behind every time that a log can have.
NEVER_US: Final = 1 << 62

Ends = tuple[int, ...]


class Range(NamedTuple):
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to measure ranges of the log: by rows, by bytes, or by both."""

    # How much there is from the starts to these ends.
    weigh: Callable[[Ends], int]
    # Ends from the first to the second that are so much further, something at least.
    share: Callable[[Ends, Ends, int], Ends]


class Deal(NamedTuple):
    ends: Ends
    until_us: int  # all that is read was received before this, or at this time


def deal(
    starts: Sequence[int],
    ends: Sequence[int],
    limit: int,
    find_time: Callable[[int], Sequence[int]],
    measure: Measure,
    hints: Iterable[int] = (),
) -> Deal:
    """Find ends within `limit`: all partitions up to one common time of receipt.

    So no partition is read ahead of another, whatever the rates at which they were filled; jobs
    that keep state drop what is older than their watermark, which follows the newest row read.
    `find_time` gives for a time the first offset of each partition that was received then or
    later; where clocks were set back that is still the first, so it never falls as times rise.
    The time is one at which at least three quarters of the limit are used. Where too much was
    received at one time, `measure.share` divides that. `hints` are times to try first: with good
    ones a search is a few steps, without any it is at most twice 62.
    """
    assert limit > 0
    low, taken, weight = 0, tuple(starts), 0
    high, beyond, most = NEVER_US, tuple(ends), measure.weigh(tuple(ends))
    if most <= limit:
        return Deal(beyond, NEVER_US)
    enough = limit - limit // 4
    tries = iter(hints)
    is_halved = False
    while weight < enough and high - low > 1:
        guess = next(tries, -1)
        if not low < guess < high:
            is_halved = not is_halved or not low  # what lies between 0 and the first is no rate
            part = 1 if is_halved else limit - weight
            whole = 2 if is_halved else most - weight
            guess = min(max(low + (high - low) * part // whole, low + 1), high - 1)
        reached = tuple(
            max(start, min(end, found))
            for start, end, found in zip(starts, ends, find_time(guess), strict=True)
        )
        found_weight = measure.weigh(reached)
        if found_weight <= limit:
            low, taken, weight = guess, reached, found_weight
        else:
            high, beyond, most = guess, reached, found_weight
    if weight < enough:  # the rest came at one time
        taken = measure.share(taken, beyond, limit - weight)
    return Deal(taken, low)


def share_rows(starts: Sequence[int], ends: Sequence[int], rows_max: int) -> tuple[int, ...]:
    """Share rows among partitions in proportion to the rows that wait in each.

    Shares are rounded down, and what is left over goes to those that lost most by it: never more
    than the limit, and always something where there is something.
    """
    waiting = [end - start for start, end in zip(starts, ends, strict=True)]
    total = sum(waiting)
    if total <= rows_max:
        return tuple(ends)
    shares = [rows * rows_max // total for rows in waiting]
    lost = [rows * rows_max % total for rows in waiting]
    left = rows_max - sum(shares)
    for number in sorted(range(len(waiting)), key=lambda n: (-lost[n], n))[:left]:
        shares[number] += 1
    return tuple(start + share for start, share in zip(starts, shares, strict=True))


def split(
    starts: Sequence[int], ends: Sequence[int], tasks_min: int, task_rows_max: int
) -> list[tuple[Range, ...]]:
    """Split ranges into tasks: a long partition over many, many short ones into one.

    Work is enough for `tasks_min` tasks where each then has `TASK_ROWS_MIN` rows, and no task
    has more than `task_rows_max`.
    """
    total = sum(end - start for start, end in zip(starts, ends, strict=True))
    if not total:
        return []
    wanted = max(1, min(tasks_min, -(-total // TASK_ROWS_MIN)), -(-total // task_rows_max))
    size = -(-total // wanted)
    tasks: list[tuple[Range, ...]] = []
    filling: list[Range] = []
    room = size
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while start < end:
            rows = min(room, end - start)
            filling.append(Range(number, start, start + rows))
            start += rows
            room -= rows
            if not room:
                tasks.append(tuple(filling))
                filling, room = [], size
    if filling:
        tasks.append(tuple(filling))
    return tasks

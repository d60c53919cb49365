"""How much a trigger reads, and how it is dealt to tasks. Numbers only: no file, no Spark.

share_rows(starts, ends, rows_max)   ends that are no more than so many offsets further
split(starts, ends, ...)             ranges of offsets, a list a task
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# A task costs Spark some ten milliseconds; so many rows take longer.
TASK_ROWS_MIN: Final = 10_000


class Range(NamedTuple):
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def share_rows(starts: Sequence[int], ends: Sequence[int], rows_max: int) -> tuple[int, ...]:
    """Each partition gets by what waits in it, so that all come to their ends together.

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
    """What each task reads. A long partition goes to many, many short ones to one.

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

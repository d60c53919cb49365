"""Large queues are found by their size, to a factor of four, however they grow and shrink."""

from __future__ import annotations

import random

from sessions.messages.large_queues import SMALL_BYTES, LargeQueues, level_of


class Queue:
    def __init__(self) -> None:
        self.claimed_bytes = 0
        self.memory_bytes = 0
        self.level = 0

    def shed(self, size: int, now: float) -> None:
        self.claimed_bytes = max(0, self.claimed_bytes - size)


def test_levels_are_powers_of_two() -> None:
    assert [level_of(size) for size in (0, SMALL_BYTES - 1, SMALL_BYTES)] == [0, 0, 1]
    assert [level_of(SMALL_BYTES * times) for times in (2, 3, 4, 1 << 30)] == [2, 2, 3, 31]


def test_the_largest_is_found() -> None:
    rng = random.Random(1)
    found = LargeQueues()
    queues = [Queue() for _ in range(200)]
    assert found.largest() is None and found.largest_in_memory() is None
    for _ in range(3_000):
        queue = rng.choice(queues)
        queue.claimed_bytes = int(10 ** rng.uniform(0, 9))
        queue.memory_bytes = rng.choice((0, queue.claimed_bytes))
        level = level_of(queue.claimed_bytes)
        found.move(queue, queue.level, level)
        queue.level = level
        largest = found.largest()
        most = max(queue.claimed_bytes for queue in queues)
        if most < SMALL_BYTES:
            assert largest is None
        else:
            assert largest is not None and largest.claimed_bytes * 2 >= most


def test_what_is_in_the_store_alone_frees_no_memory() -> None:
    found = LargeQueues()
    stored, small, hog = Queue(), Queue(), Queue()
    for queue, size, memory in (
        (stored, 1 << 30, 0),
        (small, 1 << 20, 1_000),
        (hog, 1 << 18, 1 << 18),
    ):
        queue.claimed_bytes, queue.memory_bytes = size, memory
        found.move(queue, 0, level_of(size))
    assert found.largest() is stored and found.largest_in_memory() is hog
    found.move(hog, level_of(1 << 18), 0)
    assert found.largest_in_memory() is None

"""A pool of memory holds to its limit, and many who take much leave something for others."""

from __future__ import annotations

from sessions.messages.memory_pool import MemoryPool


def test_a_pool_leaves_something_for_those_who_take_little() -> None:
    pool = MemoryPool(1_000_000, 16)
    taken = []
    for size in (50_000, 5_000, 500, 50):
        count = 0
        while pool.allows(0, size):
            pool.count(size)
            count += 1
        taken.append(count)
    assert all(taken) and pool.bytes <= 1_000_000
    assert pool.allows(10_000, 0) and pool.allows(10_000, -1) and not pool.allows(10_000, 1)

"""The fair queue: clients take turns, and who floods leaves room for others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.security.authentication.fair_queue import FairQueue


def test_everybody_in_turn() -> None:
    queue: FairQueue[str] = FairQueue(100_000)
    for n in range(15_000):
        assert queue.put("flood", f"flood {n}")
    for n in range(3):
        assert queue.put("quiet", f"quiet {n}")
    assert [queue.take() for _ in range(6)] == [
        "flood 0", "quiet 0", "flood 1", "quiet 1", "flood 2", "quiet 2"
    ]  # fmt: skip
    assert queue.count == 14_997


def test_who_floods_leaves_room_for_others() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for n in range(50):
        queue.put("flood", n)
    assert queue.put("quiet", 0)
    assert not queue.put("flood", 50)
    for n in range(24):
        assert queue.put("quiet", n)
    assert queue.put("third", 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_nothing_is_lost_and_each_key_keeps_its_order(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(20)
    put: dict[str, list[int]] = {key: [] for key in "abc"}
    got: dict[str, list[int]] = {key: [] for key in "abc"}
    for number, (key, is_put) in enumerate(steps):
        if is_put:
            if queue.put(key, (key, number)):
                put[key].append(number)
        elif (item := queue.take()) is not None:
            got[item[0]].append(item[1])
        assert queue.count <= 20
    while (item := queue.take()) is not None:
        got[item[0]].append(item[1])
    assert got == put and queue.count == 0

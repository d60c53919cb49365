"""What became of messages, compared with a model of random histories."""

from __future__ import annotations

import pytest

from mqtt_broker.recorder import outcomes
from tests.recorder.histories import TOPICS, History, inquiry


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40))]
)
@pytest.mark.parametrize("size", [20_000, 60_000, 1 << 20])
def test_outcomes_are_never_wrong(seed: int, size: int) -> None:
    """Also with a ring so small that it is overwritten many times."""
    history = History(seed, size)
    for _ in range(4):
        history.run(60)
        history.check()


def test_nothing_is_unknown_while_nothing_is_overwritten() -> None:
    certain = total = 0
    for seed in range(20):
        history = History(100 + seed, 4 << 20)
        history.run(150)
        certain += history.check()
        for device in history.devices:
            for topic in TOPICS:
                total += len(inquiry(history.world, device.client_id, topic).outcomes)
    assert certain > 0.9 * total


def test_every_publication_within_reach_is_found() -> None:
    for seed in range(20):
        history = History(200 + seed, 1 << 20)
        history.run(150)
        for topic in TOPICS:
            question = inquiry(history.world, "d0", topic)
            found = sum(one.publication.count for one in question.outcomes)
            since = question.sees_back_to_ms
            wanted = [m for m in history.sent if m.topic == topic and m.at_ms >= since]
            unmatched = [o for o in question.outcomes if o.state == outcomes.UNMATCHED]
            assert unmatched or found == len(wanted)

"""Seeds of messages that cross between numbers, and rules taken out."""

from __future__ import annotations

import pytest

import tests.sim.cluster.bus_ablations
import tests.sim.cluster.message_ablations  # noqa: F401
from tests.sim.cluster.ablation import search
from tests.sim.cluster.messages import play


@pytest.mark.parametrize("start", [0, 6])
def test_seeds(start: int) -> None:
    for seed in range(start, start + 6):
        play(seed)


def test_a_seed_plays_the_same_again() -> None:
    one, two = play(7), play(7)
    assert (one.events.order, one.taken) == (two.events.order, two.taken)
    assert one.database.rows("queues") == two.database.rows("queues")


@pytest.mark.parametrize(
    "name", ["compare-with-the-group", "read-rows-are-deleted", "fleeting-sessions-have-parcels"]
)
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    assert search(name, 20) is not None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

"""Seeds of nodes that host numbers, and rules taken out; see `tests.sim.cluster.run`."""

from __future__ import annotations

import pytest

import tests.sim.cluster.ablations  # noqa: F401
from tests.sim.cluster.ablation import ABLATIONS, search
from tests.sim.cluster.hosts import play


@pytest.mark.parametrize("start", [0, 10])
def test_seeds(start: int) -> None:
    for seed in range(start, start + 10):
        play(seed)


def test_a_seed_plays_the_same_again() -> None:
    one, two = play(7), play(7)
    assert (one.events.order, one.taken) == (two.events.order, two.taken)
    assert one.database.rows("values") == two.database.rows("values")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ABLATIONS))
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    assert search(name) is not None

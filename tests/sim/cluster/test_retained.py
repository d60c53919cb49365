"""Seeds of retained messages in several numbers, and rules taken out."""

from __future__ import annotations

import pytest

import tests.sim.cluster.retained_ablations  # noqa: F401
from tests.sim.cluster.ablation import search
from tests.sim.cluster.retained import play


def test_seeds() -> None:
    for seed in range(3):
        play(seed)


def test_a_seed_plays_the_same_again() -> None:
    one, two = play(7), play(7)
    assert (one.events.order, one.taken) == (two.events.order, two.taken)
    assert one.database.rows("retained") == two.database.rows("retained")


def test_a_rule_that_is_taken_out_is_missed() -> None:
    assert search("requests-stay-open", 20) is not None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

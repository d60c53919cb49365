"""Seeds of sessions that move between numbers; see `tests.sim.cluster.run`."""

from __future__ import annotations

import pytest

from tests.sim.cluster import owner_ablations
from tests.sim.cluster.ablation import search
from tests.sim.cluster.owners import play

owner_ablations.register()


@pytest.mark.parametrize("start", [0, 3])
def test_seeds(start: int) -> None:
    for seed in range(start, start + 3):
        play(seed)


@pytest.mark.parametrize("name", ["fold-before-release", "only-what-is-offered-is-claimed"])
def test_a_rule_that_is_taken_out_is_missed_soon(name: str) -> None:
    assert search(name, 5) is not None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 1_500, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

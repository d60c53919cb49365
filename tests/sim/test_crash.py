"""Seeds of the world in which the broker dies; `tests.sim.crash` takes many more."""

from __future__ import annotations

import pytest

from tests.sim.crash import CrashWorld


@pytest.mark.parametrize("seed", range(40))
def test_seed(seed: int) -> None:
    world = CrashWorld(seed)
    world.play()
    assert world.crashes


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            CrashWorld(seed).play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

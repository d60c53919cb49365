"""Seeds of the world in which the broker dies; `tests.sim.crash` takes many more."""

from __future__ import annotations

import pytest

from tests.sim.crash import play
from tests.sim.oracles import ORACLES, Abandoned, Oracles


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in (6, 12, 18))]
)
def test_seeds(start: int) -> None:
    worlds = [play(seed) for seed in range(start, start + 6)]
    assert sum(world.crashes for world in worlds if world is not None)


@pytest.mark.parametrize("seed", [930_185, 1_200_030])
def test_a_crash_planned_by_the_last_action_is_over_before_the_drain(seed: int) -> None:
    world = play(seed)
    assert world is not None and not world.is_stopped


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_rule_that_is_left_out_ends_the_world_only_where_more_would_follow() -> None:
    oracles = Oracles(["order"])
    oracles.check("order", True, "")
    oracles.check("order", False, "", is_final=True)
    with pytest.raises(Abandoned):
        oracles.check("order", False, "")
    with pytest.raises(AssertionError, match=r"\[once\] twice"):
        oracles.check("once", False, "twice")
    with pytest.raises(ValueError, match="no such oracle: nothing"):
        Oracles([*ORACLES, "nothing"])

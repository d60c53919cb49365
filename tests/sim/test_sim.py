"""Seeds of the simulation, a quarter of them fast tests; `tests.sim.run` takes many more."""

from __future__ import annotations

import pytest

from tests.sim.world import World


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(n, marks=pytest.mark.slow) for n in range(15, 60))]
)
def test_seed(seed: int) -> None:
    World(seed).play()


def test_a_seed_plays_the_same_again() -> None:
    told = []
    for _ in range(2):
        world = World(7)
        world.play()
        got = [(name, sorted(client.got.items())) for name, client in world.clients.items()]
        told.append((world.now, world.order, got, world.broker.counters.bytes_sent))
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            World(seed).play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

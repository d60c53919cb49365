"""Seeds of the world in which the host of a number dies; a broker alone keeps the same rules."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.store.connection import Connector
from tests.cluster.content.hosted_crash import play


@pytest.mark.parametrize(
    ("seed", "actions"),
    [(1, 12), *(pytest.param(seed, 150, marks=pytest.mark.slow) for seed in range(20))],
)
def test_seeds(connector: Connector, seed: int, actions: int) -> None:
    assert play(seed, connector, actions) is not None

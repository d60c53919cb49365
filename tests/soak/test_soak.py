"""A sixteenth of the default limits, filled at once: the limits and the sum hold."""

from __future__ import annotations

import dataclasses

import pytest

from mqtt_broker.core.limits.settings import DEFAULTS, Settings
from tests.soak.run import GAUGES, OF_ALL, soak


def test_the_soak_looks_at_limits_that_there_are() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    assert set(OF_ALL) <= names and set(GAUGES.values()) <= set(OF_ALL)


@pytest.mark.slow
def test_a_sixteenth_of_the_limits_holds() -> None:
    keys = {name: getattr(DEFAULTS, name) // 16 for name in OF_ALL}
    assert soak(keys, 300, "") == 0

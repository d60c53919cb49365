"""A message passes few modules: bounds for each walk of `tests.house.walks`."""

from __future__ import annotations

import pytest

from tests.house import walks

RECORDS_MAX = 5


@pytest.mark.parametrize(
    ("walk", "most"), [("memory", 17), ("commit", 24), ("stream", 37), ("replay", 40)]
)
def test_modules_of_a_walk(walk: str, most: int) -> None:
    """A timer may fire during a walk: what counts is passed in each of several."""
    passed = set(walks.modules_of(walks.record(walk)))
    for _ in range(RECORDS_MAX - 1):
        if len(passed) <= most:
            return
        passed &= set(walks.modules_of(walks.record(walk)))
    assert len(passed) <= most, sorted(passed)

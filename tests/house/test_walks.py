"""A message passes few modules: bounds for each walk of `tests.house.walks`."""

from __future__ import annotations

import pytest

from tests.house import walks


@pytest.mark.parametrize(
    ("walk", "most"), [("memory", 17), ("commit", 24), ("stream", 37), ("replay", 40)]
)
def test_modules_of_a_walk(walk: str, most: int) -> None:
    passed = walks.modules_of(walks.record(walk))
    assert len(passed) <= most, passed

"""Plays `vectors/*.vec`: each vector, each of its versions, each way to cut the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec import harness
from tests.spec.notation import NotationError, Vector, load

FILES = sorted((Path(__file__).parent / "vectors").glob("*.vec"))
VECTORS = [vector for path in FILES for vector in load(path)]
CASES = [
    pytest.param(vector, version, mode, id=f"{vector.name}-{version}-{mode}")
    for vector in VECTORS
    for version in vector.versions
    for mode in harness.MODES
    if mode == "whole" or not vector.whole_only
]


@pytest.mark.parametrize(("vector", "version", "mode"), CASES)
def test_vector(vector: Vector, version: str, mode: str) -> None:
    harness.play(vector, version, mode)


def test_there_are_many() -> None:
    assert len(VECTORS) > 300


@pytest.mark.parametrize("line", ["a > 3", "a > { 00", "a > { 00 ]", "a jumps", "a > 'x"])
def test_what_cannot_be_read_is_refused(line: str) -> None:
    vector = Vector("x", Path("x.vec"), ["v5"], lines=[(1, line)])
    with pytest.raises(NotationError):
        vector.steps("v5")

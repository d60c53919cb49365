"""Plays `vectors/*.vec`: each vector, each of its versions, each way to cut the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec import harness
from tests.spec.notation import NotationError, Vector, load

FILES = sorted((Path(__file__).parent / "vectors").glob("*.vec"))
VECTORS = [vector for path in FILES for vector in load(path)]
CASES = [
    pytest.param(vector, version, id=f"{vector.name}-{version}")
    for vector in VECTORS
    for version in vector.versions
]


@pytest.mark.parametrize(("vector", "version"), CASES)
def test_vector(vector: Vector, version: str) -> None:
    for mode in harness.MODES[:1] if vector.whole_only else harness.MODES:
        try:
            harness.play(vector, version, mode)
        except Exception as error:
            error.add_note(f"the stream was cut {mode}")
            raise


def test_there_are_many() -> None:
    assert len(VECTORS) > 300


@pytest.mark.parametrize("line", ["a > 3", "a > { 00", "a > { 00 ]", "a jumps", "a > 'x"])
def test_what_cannot_be_read_is_refused(line: str) -> None:
    vector = Vector("x", Path("x.vec"), ["v5"], lines=[(1, line)])
    with pytest.raises(NotationError):
        vector.steps("v5")

"""A rule that can be taken out, and the search for a seed that notices.

An entry changes the program in this process and puts it right again. The search ends with the
first seed that breaks an oracle without the rule, and none with it. A rule that can be taken out
unnoticed is a hole in the simulation, or a rule that nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

SEEDS: Final = 1_000

Replace = tuple[Any, str, Any]  # an object, the name of an attribute, and what stands there instead


@dataclass(frozen=True, slots=True)
class Ablation:
    name: str
    says: str
    replace: Callable[[], list[Replace]]
    play: Callable[[int], object]

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        patches = [patch.object(*one) for one in self.replace()]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


ABLATIONS: Final[dict[str, Ablation]] = {}


def ablation(
    play: Callable[[int], object],
) -> Callable[[Callable[[], list[Replace]]], Callable[[], list[Replace]]]:
    """Register an ablation under its function's name; its docstring is the rule."""

    def register(replace: Callable[[], list[Replace]]) -> Callable[[], list[Replace]]:
        name = replace.__name__.replace("_", "-")
        ABLATIONS[name] = Ablation(name, str(replace.__doc__), replace, play)
        return replace

    return register


def search(name: str, seeds: int = SEEDS) -> tuple[int, str] | None:
    """Return the first seed that notices that the rule is missing, and what it says.

    A seed that fails with the rule as well says nothing about it.
    """
    found = ABLATIONS[name]
    for seed in range(seeds):
        with found.taken_out():
            said = _failure(found, seed)
        if said and not _failure(found, seed):
            return seed, said
    return None


def _failure(ablation: Ablation, seed: int) -> str:
    """Return what a seed says when an oracle breaks, or an empty text."""
    try:
        ablation.play(seed)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""

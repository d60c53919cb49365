"""A search from a seed, until something is found or the time is up."""

from __future__ import annotations

import time
from typing import Final

from tests.fuzz.broker.replay import script_of
from tests.fuzz.broker.world import play

SCRIPTS_APART: Final = 1_000_000  # so that searches of different seeds share no script


def search(seed: int, seconds: float) -> str:
    """What the first script that fails brings out, and how to play it; empty: none did."""
    deadline = time.monotonic() + seconds
    number = seed * SCRIPTS_APART
    while time.monotonic() < deadline:
        try:
            play(script_of(number))
        except Exception as error:
            return f"{type(error).__name__}: {error} (--start {number} --seeds 1)"
        number += 1
    return ""

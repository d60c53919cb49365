"""Scripts played again: from bytes, from seeds, from text."""

from __future__ import annotations

import random

from tests.fuzz.broker import decisions
from tests.fuzz.broker.decisions import Script
from tests.fuzz.broker.world import play


def broker_once(data: bytes) -> None:
    """A fuzz target: one script as bytes."""
    script = decisions.decode(data)
    if script:
        play(script)


def script_of(seed: int) -> Script:
    rng = random.Random(seed)
    return decisions.draw(rng, rng.choice((10, 30, 60)))


def shown(script: Script) -> str:
    """As text: a step a word, in hex, words joined by dots."""
    return ".".join(step.hex() for step in script)


def read(text: str) -> Script:
    return [bytes.fromhex(step) for step in text.split(".")]

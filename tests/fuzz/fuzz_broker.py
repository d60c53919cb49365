"""Fuzz a broker with a store: `python tests/fuzz/fuzz_broker.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker", "sessions", "qos"]):
    from tests.fuzz.broker import decisions
    from tests.fuzz.broker.replay import broker_once


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.1:
        return bytes(atheris.Mutate(data, max_size))
    if rng.random() < 0.2 or not data:
        script = decisions.draw(rng, rng.choice((5, 15, 40)))
    else:
        script = decisions.mutate(decisions.decode(data), rng)
    return decisions.encode(script)[:max_size]


def cross(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
    """The beginning of one script and the end of another."""
    rng = random.Random(seed)
    first, second = decisions.decode(data), decisions.decode(other)
    at, behind = rng.randint(0, len(first)), rng.randint(0, len(second))
    return decisions.encode(first[:at] + second[behind:])[:max_size]


if __name__ == "__main__":
    arguments = [
        *sys.argv,
        *([] if any("-max_len" in one for one in sys.argv) else ["-max_len=16000"]),
    ]
    atheris.Setup(arguments, broker_once, custom_mutator=mutate, custom_crossover=cross)
    atheris.Fuzz()

"""Fuzz a whole broker: `python tests/fuzz/fuzz_connection.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker", "sessions", "qos"]):
    from tests.fuzz.targets import connection_once, mutate_script, script


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    chance = rng.random()
    if chance < 0.15:
        return bytes(atheris.Mutate(data, max_size))
    return (script(rng) if chance < 0.25 or not data else mutate_script(data, rng))[:max_size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, connection_once, custom_mutator=mutate)
    atheris.Fuzz()

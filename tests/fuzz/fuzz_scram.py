"""Fuzz AUTH, SCRAM exchanges: `python tests/fuzz/fuzz_scram.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker.security", "mqtt_broker.core"]):
    from tests.fuzz.exchanges import scram_once, script


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    if not data or rng.random() < 0.2:
        return script(rng)[:max_size]
    return bytes(atheris.Mutate(data, max_size))


if __name__ == "__main__":
    atheris.Setup(sys.argv, scram_once, custom_mutator=mutate)
    atheris.Fuzz()

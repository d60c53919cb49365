"""Fuzz the decoder: `python tests/fuzz/fuzz_decode.py -max_total_time=60 [corpus folder]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker", "sessions", "qos"]):
    from tests.fuzz import grammar
    from tests.fuzz.targets import decode_once


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return bytes(atheris.Mutate(data, max_size))
    head = data[:1] if data and rng.random() < 0.9 else bytes([rng.randrange(256)])
    body = grammar.mutate(data[1:], rng) if len(data) > 1 else grammar.stream(rng)
    return (head + body)[:max_size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, decode_once, custom_mutator=mutate)
    atheris.Fuzz()

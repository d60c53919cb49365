"""Fuzz frames between nodes: `python tests/fuzz/fuzz_frames.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker.cluster"]):
    from tests.fuzz.cluster_frames import frame_input, frame_once


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    if not data or rng.random() < 0.3:
        return frame_input(rng)[:max_size]
    return bytes(atheris.Mutate(data, max_size))[:max_size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, frame_once, custom_mutator=mutate)
    atheris.Fuzz()

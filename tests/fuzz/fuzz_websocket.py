"""Fuzz WebSocket frames: `python tests/fuzz/fuzz_websocket.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker.server"]):
    from tests.fuzz.targets import changed, frames, websocket_once


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    chance = rng.random()
    if not data or chance < 0.1:
        return frames(rng)[:max_size]
    return (changed(data, rng) if chance < 0.5 else bytes(atheris.Mutate(data, max_size)))[
        :max_size
    ]


if __name__ == "__main__":
    atheris.Setup(sys.argv, websocket_once, custom_mutator=mutate)
    atheris.Fuzz()

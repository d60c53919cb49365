"""Fuzz WebSocket frames: `python tests/fuzz/fuzz_websocket.py -max_total_time=60 [corpus]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker.server"]):
    from tests.fuzz.targets import websocket_once


if __name__ == "__main__":
    atheris.Setup(sys.argv, websocket_once)
    atheris.Fuzz()

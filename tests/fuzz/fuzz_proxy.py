"""Fuzz PROXY headers: `python tests/fuzz/fuzz_proxy.py -max_total_time=60 [corpus folder]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["mqtt_broker.server"]):
    from tests.fuzz.targets import proxy_once


if __name__ == "__main__":
    atheris.Setup(sys.argv, proxy_once)
    atheris.Fuzz()

"""What the benchmarks of a broker process take on the command line, and what they refuse."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path


def options(description: str, names: Collection[str], *, seconds: float) -> argparse.ArgumentParser:
    """Those that all of them have; `names` are what `--only` chooses from."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=description)
    beside = Path(sys.executable).with_name("fleetmq")
    parser.add_argument("--fleetmq", type=Path, default=beside, help=f"(default {beside})")
    parser.add_argument("--only", default=",".join(names), help="of " + ", ".join(names))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=seconds, help="that a flow is measured")
    parser.add_argument("--folder", help="for the stores, on the disk to measure")
    return parser


def answers(parser: argparse.ArgumentParser, names: Collection[str]) -> argparse.Namespace:
    """What was said, checked; `only` as a list."""
    found = parser.parse_args()
    found.only = found.only.split(",")
    if unknown := set(found.only) - set(names):
        parser.error(f"--only: there is no {min(unknown)}")
    if not found.fleetmq.exists():
        parser.error(f"--fleetmq: there is no {found.fleetmq}")
    found.fleetmq = found.fleetmq.absolute()
    return found

"""Parse numbers of the command line, as types for argparse.

    parser.add_argument("--workers", type=whole(1, 64, "a number of processes"))

A wrong value is refused as "'x' is not WHAT", so `what` names the limits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(low: int, high: int, what: str) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = low - 1
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return found

    return parse


def real(low: float, high: float, what: str) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`; NaN is refused."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = float("nan")
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return found

    return parse

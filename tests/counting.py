"""Count what code does, instead of timing it: the same on every machine, however busy."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_calls(act: Callable[[], object]) -> int:
    """Calls of Python functions in this thread while `act` runs, itself not counted."""
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what others left behind is not ours to count
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls - 1


def count_lines(act: Callable[[], object]) -> int:
    """Lines of Python that this thread runs while `act` does: loops count, too."""
    lines = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return note

    before = sys.gettrace()
    gc.collect()
    gc.disable()
    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines

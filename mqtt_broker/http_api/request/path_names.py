"""Names in paths: any text, percent-encoded, with one exception for `.` and `..`.

Clients remove these two from a path, percent-encoded or not, before they send it. They are written
with `~` behind them; so is a name that already looks like that, so that each name has one spelling.
"""

from __future__ import annotations

import re
from typing import Final

_DOTS: Final = re.compile(r"\.{1,2}~*")


def name_of(part: str) -> str:
    """Return the name that a part of a path stands for, after percent-decoding."""
    return part[:-1] if part.endswith("~") and _DOTS.fullmatch(part) else part

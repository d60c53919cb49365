"""Chains of levels that nothing shares, kept as text, and what such text costs in memory.

A node of a tree of levels stands for its own level and for the chain behind it that no other
name or filter parts from, so a tree has fewer than two nodes for each thing in it, however deep
that lies. An empty level is a level: the number of levels tells a chain of one empty level
from no chain.
"""

from __future__ import annotations

from typing import Final

# What CPython 3.11 to 3.14 takes for them, within a few bytes.
NODE_BYTES: Final = 104
DICT_BYTES: Final = 172  # without entries
ENTRY_BYTES: Final = 28  # of a dict: 22 to 45, as full as it is


def shared_levels(chain: str, levels: list[str], place: int) -> int:
    """Count the levels at the head of a chain that stand in `levels` from `place` on, too."""
    count = 0
    size = len(levels) - place
    for level in chain.split("/"):
        if count == size or level != levels[place + count]:
            break
        count += 1
    return count


def split_chain(chain: str, count: int) -> tuple[str, str, str]:
    """Split a chain into its first `count` levels, the level behind them, and the rest."""
    levels = chain.split("/")
    return "/".join(levels[:count]), levels[count], "/".join(levels[count + 1 :])


def join_chain(upper: str, upper_count: int, level: str, lower: str, lower_count: int) -> str:
    """Join what `split_chain` split."""
    parts = [upper] if upper_count else []
    parts.append(level)
    if lower_count:
        parts.append(lower)
    return "/".join(parts)


def fits_chain(chain: str, levels: list[str], place: int) -> bool:
    """Tell whether a chain with + in it matches the levels of a Topic Name from `place` on.

    The name has as many levels at least.
    """
    for level in chain.split("/"):
        if level != "+" and level != levels[place]:
            return False
        place += 1
    return True

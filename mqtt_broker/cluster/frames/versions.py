"""The versions of frames, and which one to write.

A node says in the database which versions it reads. The newest program writes the older version
until every node can read the new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

VERSION: Final = 1
READS: Final = frozenset((VERSION,))
WRITES: Final = frozenset((VERSION,))


class NoCommonVersion(Exception):
    """A node reads no version of frames that this program can write."""


def version_to_write(
    reads: Iterable[Iterable[int]], writes: Iterable[int] = WRITES, *, newest: int = VERSION
) -> int:
    """Return the newest version that every node reads, by what each says that it reads.

    `newest` holds a version back that this program could write.
    """
    able = {version for version in writes if version <= newest}
    for one in reads:
        left = able.intersection(one)
        if not left:
            raise NoCommonVersion(
                f"a node reads frames of version {_named(one)}, and this program can write "
                f"{_named(able)}: upgrade that node first"
            )
        able = left
    return max(able)


def _named(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"

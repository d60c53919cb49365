"""The participant in a commit beside the database: files that are written before the journal row.

The telemetry log is the only participant. The journal assigns its data to groups; the store's
writer lets it write the data before it commits these groups, and records the ends of its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class CommitParticipant(Protocol):
    """Writes files whose contents belong to groups of the journal.

    The first four methods are called on the loop, the others by the store's writer thread.
    """

    @property
    def has_new(self) -> bool:
        """Tell whether there is data that is not assigned to a group."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes that are not yet on disk."""

    def delay_s(self, now: float) -> float:
        """Return how long the data may wait for more to share its commit; 0: not at all."""

    def assign(self, number: int) -> bool:
        """Assign all data so far to group `number`; return False if there is none."""

    def is_durable_alone(self, number: int) -> bool:
        """Tell whether the data of groups up to this one is durable without the journal row.

        If so, and it is written with `stands_alone`, it is there after a crash whatever the journal
        has.
        """

    def write(self, number: int, *, stands_alone: bool = False) -> Mapping[str, str]:
        """Write the data of groups up to this one to disk; return the ends the journal lacks.

        The ends are text, by name. A second call before they are committed returns the same ends
        or later ones. If it raises an exception, it may have written anything after those ends.
        """

    def committed(self, ends: Mapping[str, str], *, stands_alone: bool = False) -> None:
        """Note that these ends are in the journal, or need not be yet."""

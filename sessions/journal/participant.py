"""The participant in a commit beside the database: files written before the journal row.

The telemetry log is the one participant. The journal assigns what it holds to groups, the
store's writer has it written before it commits these groups, and records how far it got.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class CommitParticipant(Protocol):
    """Keeps files whose contents belong to groups of the journal.

    The first four are called on the loop, the others by the store's writer thread.
    """

    @property
    def has_new(self) -> bool:
        """Tell whether anything came that no group was assigned to."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that came and are not on disk."""

    def delay_s(self, now: float) -> float:
        """Return how long what came may wait for more to share its commit; 0: no longer."""

    def assign(self, number: int) -> bool:
        """Let everything that came so far belong to group `number`; False: nothing did."""

    def is_durable_alone(self, number: int) -> bool:
        """Tell whether the part of groups up to this one is safe without the journal row.

        If it is, and is written with `stands_alone`, it is there after a crash, whatever the
        journal knows.
        """

    def write(self, number: int, *, stands_alone: bool = False) -> Mapping[str, str]:
        """Write the part of groups up to this one to disk; return the ends the journal lacks.

        The ends are text, by name. Called again before they are committed, it returns the same
        ends or later ones. If it raises, it may have written nothing, or anything behind those
        ends.
        """

    def committed(self, ends: Mapping[str, str], *, stands_alone: bool = False) -> None:
        """Take notice that these ends are in the journal, or need not be yet."""

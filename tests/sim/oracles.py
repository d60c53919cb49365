"""The rules that the crash simulation checks, each with a name under which it can be left out.

A rule that is left out and broken in the middle of a world ends that world quietly, since what
follows from the same defect would be found by other rules. `python -m tests.sim.crash
--without session-gone` looks past one defect to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ORACLES: Final[dict[str, str]] = {
    "delivered": "what was acknowledged to its publisher reaches every session it was for",
    "once": "QoS 2 is delivered once to a session",
    "order": "first deliveries come in the order of publishing",
    "group": "what was acknowledged to a group with a stored member reaches a member",
    "session-kept": "a session is there until its expiry has passed since the connection's end",
    "session-gone": "a session that has ended is gone, whatever crashes",
    "state-kept": "Session Present 1: its subscriptions and inbound QoS 2 ids are there",
    "state-gone": "a new session has nothing of the one before it",
    "will-comes": "a will comes when its connection ended without DISCONNECT 0x00",
    "will-once": "a will comes once",
    "will-cancelled": "a will does not come after DISCONNECT 0x00 or the client's return in time",
    "will-early": "a will does not come before its delay has passed",
    "will-first": "a will that is due at a start is published before any client comes back",
    "rest": "the simulation comes to rest, and every exchange to its end",
}


class Broken(AssertionError):
    """A rule does not hold."""

    def __init__(self, oracle: str, text: str) -> None:
        super().__init__(f"[{oracle}] {text}")
        self.oracle = oracle


class Abandoned(Exception):
    """A rule that is left out does not hold: what follows says nothing."""


class Oracles:
    """Raises for a rule that does not hold, unless it is left out."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.without = frozenset(without)
        if unknown := self.without - ORACLES.keys():
            raise ValueError(f"no such oracle: {', '.join(sorted(unknown))}")

    def check(self, oracle: str, holds: bool, text: str, *, is_final: bool = False) -> None:
        """`is_final`: nothing follows that the same defect could spoil."""
        assert oracle in ORACLES, oracle
        if holds:
            return
        if oracle not in self.without:
            raise Broken(oracle, text)
        if not is_final:
            raise Abandoned(oracle)

"""What has to hold in a cluster, each with the name that a finding begins with."""

from __future__ import annotations

from typing import Final

ORACLES: Final[dict[str, str]] = {
    "lost": "what was acknowledged is there",
    "once": "what was sent again is there once",
    "order": "what one client wrote is there in its order",
    "torn": "what one transaction folded is there as a whole, and nothing older over it",
    "stamp": "messages cross by the filters that they are stamped with",
    "digest": "what a number knows of another's filters is what they were at that version",
    "crosses": "when nothing is wrong, messages of QoS 0 cross from SUBACK on",
    "late": "when nothing is wrong, messages cross in time",
    "one-owner": "at rest one process hosts a number, and its memory is what the database has",
    "one-connection": "at rest a client has one connection, the one that it believes in",
    "session-present": "CONNACK says whether there is a session",
    "leftover": "nothing is left of sessions that are over",
    "will": "a will is published once if it is due, and never if it is not",
    "retained": "a SUBSCRIBE sees what was acknowledged before it came",
    "missed": "what is retained has come, live or as a retained message, to all who subscribe",
    "same": "at rest the retained messages are the same everywhere, and in the database",
    "expired": "no message is delivered that has expired",
    "needless": "no number is taken from a host that works, no connection closed without a reason",
    "deadlock": "no two transactions wait for each other",
    "bounded": "CONNECT is answered in time; at rest journals are folded, and no lock is held",
    "rest": "when the faults are over, everything that was asked for is done",
}


class Broken(AssertionError):
    """A rule does not hold."""

    def __init__(self, oracle: str, text: str) -> None:
        super().__init__(f"[{oracle}] {text}")
        self.oracle = oracle


def check(oracle: str, holds: bool, text: str) -> None:
    """Raise `Broken` for a rule that does not hold."""
    assert oracle in ORACLES, oracle
    if not holds:
        raise Broken(oracle, text)

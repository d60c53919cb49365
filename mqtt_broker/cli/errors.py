"""How a subcommand ends early.

    UsageError   the command line or the configuration is wrong: exit code 2
    Failure      it ran and failed: exit code 1, or the code it carries

`main` catches both once and prints their text as one line.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import reasons

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
TIMED_OUT: Final = 27  # what mosquitto's clients answer when -W has run out
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count


class UsageError(Exception):
    """The command line or the configuration is wrong."""


class Failure(Exception):
    """It ran and failed."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def refusal(code: int, why: str) -> str:
    """A reason code as people read it, and what the broker says beside it."""
    text = f"{reasons.name(code)} (0x{code:02X})"
    return f"{text}: {why}" if why else text

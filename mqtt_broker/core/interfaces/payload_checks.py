"""The interface to payload checks: a payload must be what its topic promises.

The check of a topic is looked for once; then it is asked about each payload. The core also checks
that a payload is the text that its Payload Format Indicator promises. A rejected message is
refused alone, whatever run it came in.
"""

from __future__ import annotations

from typing import Final, Protocol


class PayloadCheck(Protocol):
    """Checks the payloads of some topics.

    It may have a `cost(payload)`, which says in units of 0.1 us how long `problem` takes at most:
    after much work of one client others have their turn. Without it, the size is what counts.
    """

    def problem(self, payload: bytes) -> str:
        """Return why a payload is rejected, in one line; empty: it is accepted."""


class PayloadChecks(Protocol):
    """Finds the check of a topic."""

    def find(self, topic: str) -> PayloadCheck | None:
        """Return the check of a topic; None: its payloads are not checked.

        Asked once for each topic, until its route is forgotten.
        """


NOT_TEXT: Final = "the payload is not UTF-8"


def cost_of(payload: bytes, check: PayloadCheck | None) -> int:
    """Return about what it costs to check a payload, in units of `Work`."""
    cost = getattr(check, "cost", None)
    return len(payload) // 10 if cost is None else int(cost(payload))


def problem_of(payload: bytes, check: PayloadCheck | None, *, is_text: bool) -> str:
    """Say why a payload is rejected; empty: it is accepted."""
    if is_text:
        try:
            payload.decode()
        except UnicodeDecodeError:
            return NOT_TEXT
    return "" if check is None else check.problem(payload)

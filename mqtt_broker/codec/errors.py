"""The error of a peer that violates the protocol.

There is one class, because there is one consequence: `core.dispatch` catches it, answers with the
reason code in CONNACK or DISCONNECT, closes the connection and logs the text.
"""

from __future__ import annotations


class Violation(Exception):
    """A violation of `rule`, answered with `reason`; `silent`: only close the connection."""

    def __init__(self, reason: int, rule: str, text: str, *, silent: bool = False) -> None:
        super().__init__(reason, rule, text)
        self.reason = reason
        self.rule = rule
        self.text = text
        self.silent = silent

    def __str__(self) -> str:
        return f"{self.text} [{self.rule}]"

"""The error of a peer that breaks the protocol.

    Violation   the peer broke the protocol: a reason code for the answer, the rule that
                was broken, and a text for our log

There is one class, because there is one consequence: `core.connection` catches it once,
answers with the code in the packet that fits the moment, and closes.
"""

from __future__ import annotations


class Violation(Exception):
    """The peer broke rule `rule`; the answer carries `reason`. `silent`: close without a word."""

    def __init__(self, reason: int, rule: str, text: str, *, silent: bool = False) -> None:
        super().__init__(reason, rule, text)
        self.reason = reason
        self.rule = rule
        self.text = text
        self.silent = silent

    def __str__(self) -> str:
        return f"{self.text} [{self.rule}]"

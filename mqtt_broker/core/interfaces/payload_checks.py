"""The check door: whether a payload is what its topic promises, and what happens if it is not.

Whoever knows schemas answers for a topic once; then each payload is asked about, and whether it
is the text that its Payload Format Indicator says. A rejected message is refused alone, whatever
run it came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

from mqtt_broker.codec.packets import Publish


class PayloadCheck(Protocol):
    """What is asked of the messages of some topics."""

    def problem(self, payload: bytes) -> str:
        """Why this payload is rejected, in one line; empty: it is not."""


class PayloadChecks(Protocol):
    """Knows which topics are checked."""

    def find(self, topic: str) -> PayloadCheck | None:
        """Asked once for each topic, until its route is forgotten."""


NOT_TEXT: Final = "the payload is not UTF-8"


def checked(
    packet: Publish, check: PayloadCheck | None, *, is_text: bool
) -> Iterator[tuple[Publish, str]]:
    """The run in parts that are alike, each with why it is rejected, or nothing."""
    problems = [_problem(payload, check, is_text) for payload in packet.payloads()]
    if not any(problems):
        yield packet, ""
        return
    for why, part in groupby(enumerate(problems), itemgetter(1)):
        places = [place for place, _ in part]
        yield packet.part(places[0], places[-1] + 1), why


def _problem(payload: bytes, check: PayloadCheck | None, is_text: bool) -> str:
    if is_text:
        try:
            payload.decode()
        except UnicodeDecodeError:
            return NOT_TEXT
    return "" if check is None else check.problem(payload)

"""The interface to payload checks: a payload must be what its topic promises.

The check of a topic is looked for once; then it is asked about each payload. The core also checks
that a payload is the text that its Payload Format Indicator promises. A rejected message is
refused alone, whatever run it came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

from mqtt_broker.codec.packets import Publish


class PayloadCheck(Protocol):
    """Checks the payloads of some topics."""

    def problem(self, payload: bytes) -> str:
        """Return why a payload is rejected, in one line; empty: it is accepted."""


class PayloadChecks(Protocol):
    """Finds the check of a topic."""

    def find(self, topic: str) -> PayloadCheck | None:
        """Return the check of a topic; None: its payloads are not checked.

        Asked once for each topic, until its route is forgotten.
        """


NOT_TEXT: Final = "the payload is not UTF-8"


def checked(
    packet: Publish, check: PayloadCheck | None, *, is_text: bool
) -> Iterator[tuple[Publish, str]]:
    """Split a run into parts, each with why it is rejected, or with an empty text."""
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

"""Errors of the MQTT client.

    ClientError        the connection failed, or is over; the text is one line for a person
        TimedOut       a deadline ran out
    Unsendable         one message is more than the broker accepts; the connection goes on

A broker URL that cannot be read is `url.InvalidUrl`.
"""

from __future__ import annotations


class ClientError(Exception):
    """The connection failed."""


class TimedOut(ClientError):
    """A deadline ran out."""


class Unsendable(Exception):
    """A message is more than the broker accepts, as its CONNACK says; `reason` is the code."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason

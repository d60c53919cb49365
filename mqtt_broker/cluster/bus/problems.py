"""The errors of the bus.

BusConfigError      settings cannot be used; the message is for the person who wrote them
NatsProtocolError   the peer does not speak the protocol of NATS
"""

from __future__ import annotations


class BusConfigError(Exception):
    """Settings of the bus cannot be used."""


class NatsProtocolError(Exception):
    """The peer does not speak the protocol of NATS."""

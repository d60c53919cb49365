"""The access door: who may connect, and what may they do.

The core asks; whoever implements `Access` answers, at once or later. A CONNECT whose answer
is PENDING waits as data, and `Broker.resume` carries it on, in any order and once.

    Allow       come in, under this user name
    Refuse      a reason code
    Challenge   send AUTH with this data; `proceed` takes the client's reply to the next verdict
    PENDING     the answer comes later
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from mqtt_broker.codec import reasons


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    client_id: str
    username: str | None
    password: bytes | None
    version: int
    peer: str
    auth_method: str | None = None
    auth_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Allow:
    username: str | None = None
    auth_data: bytes | None = None  # the server's last word of an enhanced authentication


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: int = reasons.NOT_AUTHORIZED


@dataclass(frozen=True, slots=True)
class Challenge:
    data: bytes | None
    proceed: Callable[[bytes | None], Verdict]


class Later(enum.Enum):
    PENDING = enum.auto()


PENDING: Final = Later.PENDING
Verdict = Allow | Refuse | Challenge | Later


class Access(Protocol):
    @property
    def guards_topics(self) -> bool:
        """False: every topic is open, and `may_publish` need not be asked for each PUBLISH."""

    def connect(self, request: ConnectRequest) -> Verdict:
        """A CONNECT, or a re-authentication of a connected client."""

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool: ...

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool: ...


class OpenAccess:
    """Everybody may do everything; there are no enhanced authentication methods."""

    guards_topics = False

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.auth_method is not None:
            return Refuse(reasons.BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
        return Allow(request.username)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return True

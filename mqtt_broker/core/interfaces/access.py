"""The interface to access control: who may connect, and what clients may do.

The core asks an `Access`, which answers at once or later. A CONNECT whose answer is PENDING waits
as data, and `request.reply` (or `Broker.resume`) carries it on, in any order and once.

    Allow       let the client in, under this user name, within what the guard allows
    Refuse      a reason code
    Challenge   send AUTH with this data; `proceed` takes the client's reply to the next verdict
    PENDING     the answer comes later

A `Guard` answers for one client, as long as its session lasts. What it allows is remembered with
the connection, so that a publisher pays for its rules once a topic; `Broker.reauthorize`
forgets all that, and takes back what is no longer allowed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.limits.client_limits import ClientLimits


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The owner of a client certificate that the listener has verified."""

    common_name: str  # of the subject; empty: it has none
    names: tuple[str, ...] = ()  # Subject Alternative Names as `DNS:x`, `URI:x`, `email:x`, `IP:x`
    serial: str = ""  # upper-case hexadecimal
    issuer: str = ""  # its distinguished name, for people


class Reply(Protocol):
    """Carries a late verdict back to the client that waits for it."""

    @property
    def is_wanted(self) -> bool:
        """Tell whether the client still waits: work for one that is gone is wasted."""

    def __call__(self, verdict: Verdict, now: float) -> None:
        """Carry the client on. A second or late verdict is ignored."""


class _NoReply:
    """The reply of a request that no client made."""

    is_wanted = True

    def __call__(self, verdict: Verdict, now: float) -> None:
        raise AssertionError("no connection waits for this verdict")


_NO_REPLY: Final = _NoReply()


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A client that asks to connect, or to authenticate again."""

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    version: int
    peer: str
    auth_method: str | None = None
    auth_data: bytes | None = field(default=None, repr=False)
    certificate: PeerCertificate | None = None
    listener: str = ""  # its name, for rules
    is_again: bool = False  # a re-authentication: the client is in, as `username`
    reply: Reply = field(default=_NO_REPLY, repr=False)


class Guard(Protocol):
    """Decides what one client may do."""

    @property
    def is_welcome(self) -> bool:
        """Tell whether the client may stay connected; asked when rules have changed."""

    def may_publish(self, topic: str) -> bool:
        """Tell whether the client may publish to a Topic Name."""

    def may_subscribe(self, text: str, qos: int) -> bool:
        """Tell whether the client may subscribe to a Topic Filter."""


@dataclass(frozen=True, slots=True)
class Allow:
    """The verdict that lets a client in, and on which terms."""

    username: str | None = None
    auth_data: bytes | None = None  # the server's last word of an enhanced authentication
    guard: Guard | None = None  # None: `Access` itself is asked, by client id and user name
    expires_at: float = 0.0  # when the connection has to end; 0: never
    is_bound: bool = False  # a session of another user is not this client's to take
    limits: ClientLimits | None = (
        None  # of this client, beside those of its listener and the settings
    )
    connections_max: int = 0  # of this user; 0: any number


@dataclass(frozen=True, slots=True)
class Refuse:
    """The verdict that refuses a client, with an MQTT 5 reason code."""

    reason: int = reasons.NOT_AUTHORIZED
    counted_as: str = ""  # a narrower reason than the code, for the counters
    why: str = ""  # for the log; the client is not told


@dataclass(frozen=True, slots=True)
class Challenge:
    """The verdict that sends AUTH; `proceed` gets the client's reply."""

    data: bytes | None = field(repr=False)
    proceed: Callable[[bytes | None], Verdict]


class Later(enum.Enum):
    """The type of `PENDING`: the verdict comes later, through `request.reply`."""

    PENDING = enum.auto()


PENDING: Final = Later.PENDING
Verdict = Allow | Refuse | Challenge | Later


class Access(Protocol):
    """Decides who may connect and what they may do; implemented by you."""

    @property
    def guards_topics(self) -> bool:
        """Tell whether topics are restricted. If not, `may_publish` is never asked."""

    def connect(self, request: ConnectRequest) -> Verdict:
        """Decide a CONNECT, or the re-authentication of a connected client."""

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        """Tell whether a client without a guard may publish to a Topic Name."""

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        """Tell whether a client without a guard may subscribe to a Topic Filter."""


class AskingGuard:
    """Asks an `Access` that gave no guard, and for sessions from the store."""

    __slots__ = ("access", "client_id", "username")
    is_welcome = True

    def __init__(self, access: Access, client_id: str, username: str | None) -> None:
        self.access = access
        self.client_id = client_id
        self.username = username

    def may_publish(self, topic: str) -> bool:
        return self.access.may_publish(self.client_id, self.username, topic)

    def may_subscribe(self, text: str, qos: int) -> bool:
        return self.access.may_subscribe(self.client_id, self.username, text, qos)


class OpenAccess:
    """Lets everybody do everything; has no enhanced authentication methods."""

    guards_topics = False

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.auth_method is not None:
            return Refuse(reasons.BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
        return Allow(request.username)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return True

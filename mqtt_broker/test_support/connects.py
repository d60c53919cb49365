"""Decide on CONNECTs in a test: users with passwords, and refusals and delays that come once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hmac import compare_digest

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNACK
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Access,
    Allow,
    ConnectRequest,
    Later,
    OpenAccess,
    Refuse,
    Verdict,
)
from mqtt_broker.in_process import PEER
from mqtt_broker.server.server import Server


class UserAccess(OpenAccess):
    """Lets these users in, by their passwords, and nobody else."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {name: password.encode() for name, password in users.items()}

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.auth_method is not None:
            return Refuse(reasons.BAD_AUTHENTICATION_METHOD)
        if request.username is None:
            return Refuse(reasons.NOT_AUTHORIZED)
        password = self._users.get(request.username)
        if password is None or not compare_digest(request.password or b"", password):
            return Refuse(reasons.BAD_USER_NAME_OR_PASSWORD)
        return Allow(request.username)


class ConnectFaults:
    """Refuses or delays the next CONNECTs, then asks the server's own access."""

    def __init__(self) -> None:
        self._server: Server
        self._access: Access
        self._refusals: deque[int] = deque()
        self._delays: deque[float] = deque()

    def attach(self, server: Server) -> None:
        """Decide on the CONNECTs of this server from now on."""
        authorizer = server.broker.state.authorizer
        self._server, self._access = server, authorizer.access
        authorizer.replace_access(self)

    def refuse(self, reason: int, times: int) -> None:
        """Refuse so many CONNECTs with a reason code."""
        if not (reason >= reasons.UNSPECIFIED_ERROR and reasons.may_carry(CONNACK, reason)):
            raise ValueError(f"invalid reason 0x{reason:02X}: no CONNACK refuses a client with it")
        self._refusals.extend([reason] * _checked(times))

    def delay(self, seconds: float, times: int) -> None:
        """Answer so many CONNECTs later."""
        self._delays.extend([seconds] * _checked(times))

    @property
    def guards_topics(self) -> bool:
        return self._access.guards_topics

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.peer == PEER:
            return self._access.connect(request)
        if self._delays:
            self._server.loop.call_later(self._delays.popleft(), self._answer, request)
            return PENDING
        return self._decide(request)

    def _decide(self, request: ConnectRequest) -> Verdict:
        if self._refusals:
            return Refuse(self._refusals.popleft(), "in a test")
        return self._access.connect(request)

    def _answer(self, request: ConnectRequest) -> None:
        verdict = self._decide(request)
        if not isinstance(verdict, Later):
            request.reply(verdict, self._server.now())
            self._server.turn.end_now()

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return self._access.may_publish(client_id, username, topic)

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return self._access.may_subscribe(client_id, username, text, qos)


def _checked(times: int) -> int:
    if times < 1:
        raise ValueError(f"invalid times {times}: expected 1 or more")
    return times

"""Log a line for each client that connects, disconnects or is refused; so many a second of a kind.

A storm of 15,000 CONNECTs costs a comparison each beyond that. The next line of any kind says how
many were left out. Text that clients chose is shortened and escaped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mqtt_broker.server.process.log_limiter import shown

LINES_PER_S: Final = 50  # of each kind
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"
REFUSED: Final = "refused"
_BY_CLIENT: Final = "by the client"
KINDS: Final = (CONNECTED, DISCONNECTED, REFUSED)
_NAME_CHARS_MAX: Final = 256
_log = logging.getLogger("fleetmq")


class ClientLines:
    """The client log of a server."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        is_on: bool = True,
        lines_per_s: int = LINES_PER_S,
    ) -> None:
        """`is_on`: connects and disconnects are logged; refusals always are."""
        self.is_on = is_on
        self._clock = clock
        self._lines_per_s = lines_per_s
        self._second = 0
        self._written = dict.fromkeys(KINDS, 0)  # in this second
        self._left_out = dict.fromkeys(KINDS, 0)  # since the last line
        self.left_out = dict.fromkeys(KINDS, 0)  # since the start

    def turn(self, *, is_on: bool) -> None:
        """Log connects and disconnects from now on, or no more."""
        self.is_on = is_on

    def connected(
        self,
        client_id: str,
        username: str | None,
        peer: str,
        listener: str,
        version: int,
        keep_alive: int,
        *,
        is_resumed: bool,
    ) -> None:
        if not self.is_on or not self._is_due(CONNECTED):
            return
        session = "resumed" if is_resumed else "new"
        text = f"{_named(client_id, username, peer)}: connected, MQTT {_VERSIONS.get(version)}"
        text += f", {session} session, keep alive {keep_alive} s"
        if listener:
            text += f", listener {_short(listener)}"
        self._write(
            CONNECTED,
            text,
            client=client_id,
            user=username,
            address=peer,
            listener=listener,
            version=_VERSIONS.get(version),
            session=session,
            keep_alive_s=keep_alive,
        )

    def disconnected(
        self, client_id: str, username: str | None, peer: str, why: str, seconds: float
    ) -> None:
        if not self.is_on or not self._is_due(DISCONNECTED):
            return
        said = _BY_CLIENT if why == "disconnected" else why  # which is the core's word for it
        text = f"{_named(client_id, username, peer)}: disconnected after {_span(seconds)}, {said}"
        self._write(
            DISCONNECTED,
            text,
            client=client_id,
            user=username,
            address=peer,
            reason=said,
            duration_s=round(seconds, 3),
        )

    def refused(
        self, client_id: str, username: str | None, peer: str, listener: str, why: str
    ) -> None:
        if not self._is_due(REFUSED):
            return
        self._write(
            REFUSED,
            f"{_named(client_id, username, peer)}: refused, {why}",
            client=client_id,
            user=username,
            address=peer,
            listener=listener,
            reason=why,
        )

    def _is_due(self, kind: str) -> bool:
        """Tell whether a line of this kind may be written in this second; if not, count it."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._written = dict.fromkeys(KINDS, 0)
        if self._written[kind] >= self._lines_per_s:
            self._left_out[kind] += 1
            self.left_out[kind] += 1
            return False
        self._written[kind] += 1
        return True

    def _write(self, kind: str, text: str, **facts: object) -> None:
        missing = [f"{count} {kind}" for kind, count in self._left_out.items() if count]
        if missing:
            self._left_out = dict.fromkeys(KINDS, 0)
            _log.info("clients left out of the log since the last line: %s", ", ".join(missing))
        found = {name: _fact(value) for name, value in facts.items() if value not in (None, "")}
        _log.info("%s", shown(text), extra={"fields": {"event": kind, **found}})


_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}


def _named(client_id: str, username: str | None, peer: str) -> str:
    name = f"{_short(client_id)} ({peer})" if client_id else peer
    return name if username is None else f"{name}, user {_short(username)}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}..."


def _fact(value: object) -> object:
    return _short(value) if isinstance(value, str) else value


def _span(seconds: float) -> str:
    """Write a duration with two units at most."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"

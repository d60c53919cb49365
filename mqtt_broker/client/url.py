"""Broker URLs: the one parser for every command and every sink.

    mqtt://[user[:password]@]host[:port][rest]      mqtts:// is the same over TLS
    ws://[user[:password]@]host[:port][rest]        wss:// is the same over TLS
    unix:/path                                      or unix:///path

`rest` begins with `/` or `?` and is kept as written, because it means something else to each
caller: a topic, the path of a WebSocket, or options. This module imports nothing of FleetMQ.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
UNIX: Final = "unix"
_PASSWORD: Final = re.compile(r":[^/].*@")
_AUTHORITY: Final = re.compile(r"[^/?#]*")


class InvalidUrl(ValueError):
    """A text is not the URL of a broker; names the URL and what would be right."""


class BrokerUrl(NamedTuple):
    scheme: str
    host: str
    port: int
    username: str | None = None
    password: str | None = None
    rest: str = ""  # what follows host and port, as written
    unix_path: str | None = None

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        """Format the URL without user, password and rest."""
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_url(text: str, schemes: Collection[str] = tuple(PORTS), rest: str = "") -> BrokerUrl:
    """Parse a broker URL that has one of these schemes.

    `rest` shows in errors what may follow host and port, such as "/topic". Raises InvalidUrl.
    """
    scheme, separator, after = text.partition(":")
    scheme = scheme.lower()
    if not separator or scheme not in schemes:
        raise _invalid(text, f"its scheme is not {_listed(schemes)}", schemes, rest)
    if scheme == UNIX:
        path = after.removeprefix("//")
        if not path.startswith("/"):
            raise _invalid(text, "a Unix socket needs an absolute path", schemes, rest)
        return BrokerUrl(scheme, "", 0, unix_path=path)
    if not after.startswith("//"):
        raise _invalid(text, f"// is missing after {scheme}:", schemes, rest)
    # Not urlsplit for all of it: a topic may contain ? and #, which mean nothing there.
    found = _AUTHORITY.match(after, 2)
    authority = found[0] if found else ""
    try:
        parts = urlsplit(f"//{authority}")
        host = parts.hostname
    except ValueError:
        host = None
    if not host:
        raise _invalid(text, "the host is missing or malformed", schemes, rest)
    try:
        port = PORTS[scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        raise _invalid(text, "the port is not a number from 1 to 65535", schemes, rest)
    return BrokerUrl(
        scheme,
        host,
        port,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        after[2 + len(authority) :],
    )


def without_password(text: str) -> str:
    """Hide the password of a URL, even of an invalid one."""
    return _PASSWORD.sub(":***@", text)


def _invalid(text: str, why: str, schemes: Collection[str], rest: str) -> InvalidUrl:
    first = next(iter(schemes))
    form = f"expected {first}://[user[:password]@]host[:port]{rest}"
    others = [f"{scheme}:/path" if scheme == UNIX else f"{scheme}://" for scheme in schemes]
    more = f" (or {_listed(others[1:])})" if others[1:] else ""
    return InvalidUrl(f"{without_password(text)!r} is not a broker URL: {why}; {form}{more}")


def _listed(words: Collection[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last

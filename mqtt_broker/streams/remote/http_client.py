"""Connect to a broker's HTTP server, to read a log from another machine, and for tools.

This is the only module of `streams` that opens sockets, with http.client, and that reads the clock.
After a failure it connects again with growing delays for up to `patience_s`, so that readers
survive a restart of the broker. Errors of the remote log are raised as they are there, and three
more:

StreamError
+-- Unreachable    the server does not answer
+-- Rejected       the server refuses, or is not a FleetMQ broker
+-- NotAllowed     the token is missing or wrong

The token is sent in a header, and never appears in the text of an error.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

from mqtt_broker.streams.format.batch import Malformed
from mqtt_broker.streams.format.errors import Invalid, StreamError
from mqtt_broker.streams.remote import http_protocol

TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 60.0
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 2.0
_TEXT_BYTES_MAX: Final = 16 << 20
_BATCHES_BYTES_MAX: Final = (1 << 31) + http_protocol.BYTES_MAX
_GOOD: Final = frozenset({200, 201, 204})
_BUSY: Final = frozenset({429, 502, 503, 504})  # from a broker that is stopping, or from a proxy
NOT_A_BROKER: Final = "the server is not a FleetMQ broker"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Unreachable(StreamError):
    """The server does not answer."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.why = why


class Rejected(StreamError):
    """The server answered with an error."""

    def __init__(self, url: str, status: int, why: str) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.status = status
        self.why = why


class NotAllowed(StreamError):
    """The server refused the token."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: the token is missing or wrong")
        self.url = url


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def number(self, name: str) -> int:
        text = self.headers.get(name, "")
        if not text.isascii() or not text.isdigit():
            raise Malformed(f"invalid header {name}: {text[:40]!r}")
        return int(text)


class _Failed(Exception):
    """A request failed and may be repeated; one line."""


class HttpClient:
    """A connection to one server, kept open. One thread at a time may use it."""

    def __init__(
        self, url: str, token: str, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise Invalid("url", f"{_hidden(url)} has an invalid port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid(
                "url", f"{_hidden(url)} is invalid: expected http://host:port or https://host:port"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise Invalid("url", f"{_hidden(url)} has more than a host, a port and a path")
        if token and not _TOKEN.fullmatch(token):
            raise Invalid("token", "it has characters that are not allowed in an HTTP header")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self.http = kind(parts.hostname, port, timeout=timeout_s)
        self._has_answered = False  # whether a request has succeeded since it connected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()
        self._has_answered = False

    def get(self, path: str, query: Mapping[str, object] | None = None, wait_s: float = 0) -> Reply:
        """Return the answer; retry for `patience_s`. Raises the errors of the server."""
        text = urlencode({key: str(value) for key, value in (query or {}).items()})
        return self.ask("GET", f"{path}?{text}" if text else path, wait_s=wait_s)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wait_s: float = 0,
        tries_again: bool = True,
    ) -> Reply:
        """Send a request. `tries_again`: the request may be repeated safely."""
        give_up_at = time.monotonic() + self._patience_s
        pause_s = PAUSE_S_MIN
        while True:
            was_open = self._has_answered
            try:
                reply = self._once(method, path, body, wait_s)
            except _Failed as failed:
                self.close()
                if was_open and tries_again:
                    continue  # servers close idle connections: not a failure
                left_s = give_up_at - time.monotonic()
                if left_s <= 0 or not tries_again:
                    raise Unreachable(self.url, str(failed)) from None
                time.sleep(min(pause_s * (0.5 + random.random()), left_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                continue
            if reply.status not in _GOOD:
                raise self._error(reply)
            return reply

    def _once(self, method: str, path: str, body: object, wait_s: float) -> Reply:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        sent = None
        if body is not None:
            sent = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        http_ = self.http
        try:
            http_.timeout = self._timeout_s + wait_s
            if http_.sock is not None:
                http_.sock.settimeout(self._timeout_s + wait_s)
            http_.request(method, self._prefix + path, sent, headers)
            reply = http_.getresponse()
            most = _BATCHES_BYTES_MAX if http_protocol.BASE in reply.headers else _TEXT_BYTES_MAX
            if (reply.length or 0) > most:
                raise _Failed(f"an answer of {reply.length} bytes")
            # With a length, a truncated body raises an error; without one, read up to the limit.
            data = reply.read() if reply.length is not None else reply.read(most)
            if not reply.isclosed():
                raise _Failed(f"an answer of more than {most} bytes")
            found = Reply(reply.status, reply.headers, data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _Failed(" ".join(why.split())) from None
        if found.status in _BUSY:
            raise _Failed(_text_of(found))
        self._has_answered = True
        return found

    def _error(self, reply: Reply) -> StreamError:
        if reply.status == 401:
            return NotAllowed(self.url)
        found = _object_of(reply)
        return http_protocol.decode_error(found) or Rejected(
            self.url, reply.status, _text_of(reply)
        )

    def json(self, reply: Reply) -> Any:
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError):
            raise Rejected(self.url, reply.status, NOT_A_BROKER) from None


def _object_of(reply: Reply) -> dict[str, Any]:
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text_of(reply: Reply) -> str:
    text = _object_of(reply).get("text")
    return " ".join(text.split())[:500] if isinstance(text, str) else f"it answers {reply.status}"


def _hidden(url: str) -> str:
    """Return a URL without its password, for messages."""
    return repr(re.sub(r"//[^/@]*@", "//***@", url)[:200])

"""Ask a running broker by its HTTP API: find it, send the token, turn its errors into one line.

The broker is found by `--api`, `FLEETMQ_API`, or `http.json` in the data directory of a broker on
this machine; the token by `--token-file` or `FLEETMQ_HTTP_TOKEN`. A request is sent once: an action
that failed may have happened.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from mqtt_broker.cli.errors import Failure, UsageError
from mqtt_broker.http_api import address_file

ROOT: Final = "/api/v1"
TIMEOUT_S: Final = 30.0
PAGE_MAX: Final = 1_000  # items that the broker gives at once
_DATA_DIR: Final = "fleetmq-data"
_ANSWER_BYTES_MAX: Final = 256 << 20
_LINE_BYTES_MAX: Final = 1 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_DOTS: Final = re.compile(r"\.{1,2}~*")
_DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Refused(Failure):
    """The broker refused a request; `status` is that of its answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the broker and the form of the output."""
    group = parser.add_argument_group("the broker")
    group.add_argument("--api", metavar="URL", help="the broker's HTTP server (FLEETMQ_API)")
    group.add_argument(
        "--token-file", metavar="F", help="file with the token (or FLEETMQ_HTTP_TOKEN)"
    )
    group.add_argument(
        "--data-dir",
        metavar="DIR",
        help=f"without --api: data directory of a broker on this machine ({_DATA_DIR})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def connect(args: argparse.Namespace) -> Api:
    """Return the API of the broker that the options name."""
    url = args.api or os.environ.get("FLEETMQ_API", "")
    if not url:
        data_dir = args.data_dir or os.environ.get("FLEETMQ_DATA_DIR") or _DATA_DIR
        try:
            url = address_file.read(Path(data_dir))
        except address_file.NoAddress as error:
            raise Failure(f"{error}; give --api URL or --data-dir DIR") from None
    return Api(url, _token(args))


def _token(args: argparse.Namespace) -> str:
    token = os.environ.get("FLEETMQ_HTTP_TOKEN", "")
    source = "FLEETMQ_HTTP_TOKEN"
    if args.token_file:
        source = args.token_file
        try:
            token = Path(args.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            raise UsageError(f"--token-file {args.token_file}: {why}") from None
    if (token or args.token_file) and not _TOKEN.fullmatch(token):
        raise UsageError(f"{source}: a token is one word of ASCII characters")
    return token


class Api:
    """The HTTP API of one broker."""

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"invalid URL {_hidden(url)}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"invalid URL {_hidden(url)}: expected http://HOST:PORT")
        if parts.username is not None or parts.query or parts.fragment:
            raise UsageError(f"invalid URL {_hidden(url)}: it has more than a host, port and path")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._is_secure = parts.scheme == "https"
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the JSON at a path below `/api/v1`."""
        return self.send("GET", path, query=query)

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """Send a request and return the JSON of the answer; None when it is empty."""
        with self._answer(method, path, body, query, self._timeout_s) as reply:
            data = self._read(reply)
        return self._json(data) if data else None

    def pages(
        self, path: str, query: Mapping[str, object], limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the first items of a list, over as many pages as needed, and its length.

        A `limit` of 0 means all.
        """
        items: list[dict[str, Any]] = []
        cursor = None
        while True:
            left = limit - len(items) if limit else PAGE_MAX
            asked = {**query, "limit": min(left, PAGE_MAX)}
            found = self.get(path, asked if cursor is None else {**asked, "cursor": cursor})
            try:
                items += found["items"]
                cursor, total = found["next"], int(found["total"])
            except (KeyError, TypeError, ValueError):
                raise Failure(f"{self.url}{ROOT}{path} is not a list of items") from None
            if cursor is None or (limit and len(items) >= limit):
                return items, total

    def lines(
        self, path: str, query: Mapping[str, object] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream of JSON lines, until the broker ends it."""
        with self._answer("GET", path, None, query, None) as reply:
            while True:
                try:
                    line = reply.readline(_LINE_BYTES_MAX)
                except (OSError, http.client.HTTPException) as error:
                    raise Failure(f"{self.url}: {_why(error)}") from None
                if not line:
                    return
                if line.strip():
                    yield self._json(line)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, object] | None,
        timeout_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        target = f"{self._prefix}{ROOT}{path}"
        if query:
            given = {key: _value(one) for key, one in query.items() if one is not None}
            # A name from a command line may have bytes that are not UTF-8.
            target += f"?{urlencode(given, errors='surrogateescape')}"
        try:
            connection.request(method, target, data, headers)
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise Failure(f"{self.url}: {_why(error)}") from None
        try:
            if reply.status >= 400:
                self._refuse(reply, path)
            yield reply
        finally:
            connection.close()

    def _read(self, reply: http.client.HTTPResponse) -> bytes:
        try:
            data = reply.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Failure(f"{self.url}: {_why(error)}") from None
        if len(data) > _ANSWER_BYTES_MAX:
            raise Failure(f"{self.url}: the answer is larger than {_ANSWER_BYTES_MAX >> 20} MiB")
        return data

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Failure(f"{self.url} is not the HTTP server of a FleetMQ broker") from None

    def _refuse(self, reply: http.client.HTTPResponse, path: str) -> None:
        """Raise the error that an answer describes."""
        try:
            found = json.loads(self._read(reply))
            text = " ".join(str(found.get("detail") or found["text"]).split())[:500]
        except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
            raise Failure(
                f"{self.url} is not the HTTP server of a FleetMQ broker: {path} answers "
                f"{reply.status}"
            ) from None
        if reply.status == 401:
            text += "; give --token-file or FLEETMQ_HTTP_TOKEN"
        if reply.status == 400:
            raise UsageError(text)
        raise Refused(text, reply.status)


def escaped(name: str) -> str:
    """Return any name as one part of a path; `.` and `..` would be removed from it."""
    dotted = f"{name}~" if _DOTS.fullmatch(name) else name
    return quote(dotted, safe="", errors="surrogateescape")


def duration(option: str, text: str) -> float:
    """Return the seconds of `90s`, `15m`, `2h` or `7d`."""
    found = _DURATION.fullmatch(text)
    if found is None or not int(found[1]):
        raise UsageError(f"{option} is a duration such as 90s, 15m, 2h or 7d, not {text!r}")
    return int(found[1]) * float(_UNITS[found[2]])


def ago(option: str, text: str | None) -> float | None:
    """Return the Unix time so long ago; None without a text."""
    return None if text is None else time.time() - duration(option, text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"{error.strerror}; is a broker with an HTTP server listening there?"
    if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
        return "it does not answer in HTTP; is it the port for MQTT?"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(why).split())


def _hidden(url: str) -> str:
    """Return a URL for messages: without its password."""
    return repr(re.sub(r"//[^/@]*@", "//***@", url)[:200])

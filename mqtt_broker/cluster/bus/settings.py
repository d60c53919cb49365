"""Where NATS is, and who this node is to it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from mqtt_broker.cluster.bus.nkeys import Credentials, read_credentials
from mqtt_broker.cluster.bus.problems import BusConfigError

PORT: Final = 4222
SCHEMES: Final = ("nats", "tls")
# One token of a subject: NATS gives meaning to dots, blanks, `*` and `>`.
_CLUSTER: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class NatsServer:
    """A server, from `nats://[user:password@|token@]host[:port]`, or `tls://...`."""

    __slots__ = ("host", "needs_tls", "password", "port", "token", "user")

    def __init__(self, url: str) -> None:
        parts = _split(url)
        self.host = parts.hostname or ""
        self.port = parts.port or PORT
        self.needs_tls = parts.scheme == "tls"
        self.user = self.password = self.token = ""
        if parts.password is not None:
            self.user = unquote(parts.username or "")
            self.password = unquote(parts.password)
        elif parts.username:
            self.token = unquote(parts.username)

    def __str__(self) -> str:
        """Return the URL without its secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.needs_tls else 'nats'}://{host}:{self.port}"


def _split(url: str) -> SplitResult:
    """Take a URL apart. No message repeats what may be a password."""
    wrong = "expected nats://host:4222, or tls://user:password@host:4222"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError:
        raise BusConfigError(f"a URL of NATS cannot be read: {wrong}") from None
    if parts.scheme not in SCHEMES:
        shown = parts.scheme if "://" in url else "none"
        raise BusConfigError(f"a URL of NATS has the scheme {shown!r}: {wrong}")
    if not parts.hostname:
        raise BusConfigError(f"a URL of NATS has no host: {wrong}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BusConfigError(f"a URL of NATS goes on behind its port: {wrong}")
    return parts


class NatsSettings:
    """The settings of a bus, which are checked when they are made."""

    __slots__ = ("_tls", "cluster", "credentials", "name", "servers")

    def __init__(
        self,
        cluster: str,
        urls: Sequence[str],
        *,
        name: str = "",
        credentials: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
    ) -> None:
        if not _CLUSTER.fullmatch(cluster):
            raise BusConfigError(
                f"invalid name of a cluster {cluster!r}: expected 1 to 32 letters, digits, - or _"
            )
        if not urls:
            raise BusConfigError("no URL of NATS: expected one or more, such as nats://host:4222")
        self.cluster = cluster
        self.name = name
        self.servers = [NatsServer(url) for url in urls]
        self.credentials: Credentials | None = None
        if credentials:
            self.credentials = read_credentials(credentials)
        self._tls: ssl.SSLContext | None = None
        if ca or cert or any(server.needs_tls for server in self.servers):
            self._tls = _tls_context(ca, cert, key)

    @property
    def tls(self) -> ssl.SSLContext:
        """The rules of TLS. Authorities of the system take a tenth of a second to read."""
        if self._tls is None:
            self._tls = _tls_context("", "", "")
        return self._tls

    def subject(self, number: int) -> str:
        """Return the subject on which the host of this number listens."""
        return f"fleetmq.{self.cluster}.{number}"

    @property
    def subject_of_all(self) -> str:
        """The subject on which every node listens."""
        return f"fleetmq.{self.cluster}.all"

    @property
    def subjects(self) -> str:
        """The pattern of all subjects: a node needs the right to publish and subscribe to it."""
        return f"fleetmq.{self.cluster}.>"


def _tls_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the rules of TLS: the server's certificate is always verified."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise BusConfigError(f"cannot read certificates of NATS from {ca}: {error}") from None
    if cert:
        try:
            context.load_cert_chain(cert, key or None, lambda: "")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise BusConfigError(f"cannot use the certificate {cert} for NATS: {error}") from None
    return context

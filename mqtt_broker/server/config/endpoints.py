"""Addresses to listen on and the rules of each listener: plain data of the configuration.

`config.listeners` reads the `[[listeners]]` tables, `net.listener` opens the sockets.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from mqtt_broker.core.limits.client_limits import ClientLimits

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
WEBSOCKET_PATH: Final = "/mqtt"


@dataclass(frozen=True, slots=True)
class TlsRules:
    """The TLS settings of a listener: its certificate, and how clients are verified."""

    cert: str
    key: str
    ca: str = ""  # verifies the certificates of clients
    crl: str = ""  # certificates that are revoked
    verify: str = "none"  # or optional, or required
    min_version: str = "1.2"
    ciphers: str = ""  # of TLS 1.2, in OpenSSL's notation

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files, without duplicates."""
        found = dict.fromkeys((self.cert, self.key, self.ca, self.crl))
        return tuple(path for path in found if path)


@dataclass(frozen=True, slots=True)
class WebSocketRules:
    """A listener's WebSocket settings."""

    path: str = WEBSOCKET_PATH
    origins: tuple[str, ...] = ()  # none: any
    compression: bool = False
    message_bytes_max: int = 0  # 0: what the largest packet needs
    own_pages_only: bool = False  # without `origins`: only pages of this machine


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """A listener's PROXY protocol settings: the peers that may name the client's address."""

    trusted: tuple[Network, ...] = ()  # none: every peer


@dataclass(frozen=True, slots=True)
class ListenerRules:
    """The settings of a listener: layers, limits, timeouts."""

    name: str = ""
    tls: TlsRules | None = None
    websocket: WebSocketRules | None = None
    proxy: ProxyRules | None = None
    max_connections: int = 0  # 0: as many as the broker takes
    handshake_timeout_s: float = 10.0  # from accept until MQTT can begin
    connect_timeout_s: float = 0.0  # 0: the broker's
    allow_anonymous: bool | None = None  # None: the broker's
    connects_per_s: float = 0.0  # of all its clients together; 0: no limit
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    limits: ClientLimits | None = None  # of each client
    tcp_nodelay: bool = True  # False: small answers may wait for the peer's next packet

    @property
    def is_plain(self) -> bool:
        """Tell whether MQTT begins with the first byte, without TLS, WebSocket or PROXY."""
        return self.tls is None and self.websocket is None and self.proxy is None

    @property
    def scheme(self) -> str:
        """The scheme of a client's URL."""
        if self.websocket is not None:
            return "wss" if self.tls is not None else "ws"
        return "mqtts" if self.tls is not None else "mqtt"


PLAIN: Final = ListenerRules()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen on: `path` for a unix socket, else host and port."""

    host: str = "127.0.0.1"
    port: int = 1883
    path: str = ""
    rules: ListenerRules = field(default=PLAIN)
    # Where the configuration says it, as `fleet.toml:3: listeners 1`.
    place: str = field(default="", compare=False, repr=False)

    @property
    def name(self) -> str:
        """The listener's name, for rules and logs."""
        return self.rules.name or str(self)

    @property
    def url(self) -> str:
        """The URL for clients; the address alone for plain MQTT."""
        rules = self.rules
        if rules.tls is None and rules.websocket is None:
            return str(self)
        return f"{rules.scheme}://{self}{rules.websocket.path if rules.websocket else ''}"

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

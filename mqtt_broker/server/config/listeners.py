"""The `[[listeners]]` of a configuration file: addresses, transports, and rules for clients."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Sequence
from typing import Any, Final

from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.server.config.client_limits import KEYS as CLIENT_KEYS
from mqtt_broker.server.config.client_limits import RATES, read_limits
from mqtt_broker.server.config.endpoints import (
    WEBSOCKET_PATH,
    Endpoint,
    ListenerRules,
    Network,
    ProxyRules,
    TlsRules,
    WebSocketRules,
)
from mqtt_broker.server.config.tables import ConfigError, Table, tables

DEFAULT_PORT: Final = 1883
PORT_MAX: Final = 65_535
DEFAULT_PORTS: Final = {"mqtt": DEFAULT_PORT, "mqtts": 8883, "ws": 8083, "wss": 8084}
KEYS: Final = (
    "name host port path tls websocket proxy_protocol max_connections connects_per_s "
    "messages_per_s bytes_per_s limits handshake_timeout_s connect_timeout_s allow_anonymous "
    "tcp_nodelay"
).split()
TLS_KEYS: Final = "cert key ca crl verify min_version ciphers".split()
WEBSOCKET_KEYS: Final = "path origins compression message_bytes_max".split()
PROXY_KEYS: Final = ("trusted",)
_VERIFY: Final = ("none", "optional", "required")
_VERSIONS: Final = ("1.2", "1.3")
_TIMEOUT_S_MAX: Final = 3_600.0
_LOCALHOST: Final = {"localhost": "127.0.0.1"}


def read_listeners(found: Any, path: str) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    names: set[str] = set()
    for table in tables("listeners", found, path, KEYS):
        rules = _rules(table)
        if rules.name:
            if rules.name in names:
                raise table.error(f"name {rules.name} is used twice")
            names.add(rules.name)
        endpoints.append(_endpoint(table, rules))
    return endpoints


def _endpoint(table: Table, rules: ListenerRules) -> Endpoint:
    if "path" in table:
        for key in ("host", "port", "tcp_nodelay"):
            if key in table:
                raise table.error(f"it has path or {key}, not both")
        return Endpoint(path=table.text("path"), rules=rules, place=table.place("path"))
    return Endpoint(
        table.text("host", "127.0.0.1"),
        table.whole("port", DEFAULT_PORTS[rules.scheme], 0, PORT_MAX),
        rules=rules,
        place=table.place("port" if "port" in table else "host"),
    )


def check_addresses(endpoints: Sequence[Endpoint]) -> None:
    """Raise ConfigError if two listeners have the same address."""
    for at, one in enumerate(endpoints):
        for other in endpoints[:at]:
            if overlap(one, other):
                where = f"{one.place}: " if one.place else ""
                also = f" ({other.place})" if other.place else ""
                shared = str(one) if str(one) == str(other) else f"{one}, with {other},"
                raise ConfigError(
                    f"{where}two listeners on one address: {shared} is another listener's{also}; "
                    f"give one of them another {'path' if one.path else 'port'}"
                )


def overlap(one: Endpoint, other: Endpoint) -> bool:
    """Tell whether two listeners would have one address."""
    if one.path or other.path:
        return os.path.abspath(one.path) == os.path.abspath(other.path) and bool(one.path)
    if one.port != other.port or not one.port:
        return False
    hosts = {_LOCALHOST.get(one.host, one.host), _LOCALHOST.get(other.host, other.host)}
    if len(hosts) == 1 or "" in hosts:
        return True
    has_six = [":" in host for host in hosts]
    return bool(hosts & {"0.0.0.0", "::"}) and has_six[0] == has_six[1]


def _rules(table: Table) -> ListenerRules:
    name = table.text("name", "")
    if not name.isprintable():
        raise table.error(f"name has to be printable, not {name!r}")
    allow = table.flag("allow_anonymous", False)
    return ListenerRules(
        name=name,
        tls=_tls(table),
        websocket=_websocket(table),
        proxy=_proxy(table),
        max_connections=table.whole("max_connections", 0, 0),
        connects_per_s=table.number("connects_per_s", 0.0, 0.0, 1e6),
        messages_per_s=table.number("messages_per_s", 0.0, 0.0, RATES["messages_per_s"]),
        bytes_per_s=table.number("bytes_per_s", 0.0, 0.0, RATES["bytes_per_s"]),
        limits=_limits(table),
        handshake_timeout_s=table.number("handshake_timeout_s", 10.0, 0.01, _TIMEOUT_S_MAX),
        connect_timeout_s=table.number("connect_timeout_s", 0.0, 0.01, _TIMEOUT_S_MAX),
        allow_anonymous=allow if "allow_anonymous" in table else None,
        tcp_nodelay=table.flag("tcp_nodelay", True),
    )


def _tls(listener: Table) -> TlsRules | None:
    if "tls" not in listener:
        return None
    table = listener.table("tls", TLS_KEYS)
    texts = {key: table.text(key, "") for key in TLS_KEYS}
    for key in ("cert", "key"):
        if not texts[key]:
            raise table.error(f"it needs {key}, a file in PEM")
    verify = table.choice("verify", _VERIFY, "required" if texts["ca"] else "none")
    version = table.choice("min_version", _VERSIONS, "1.2")
    if verify != "none" and not texts["ca"]:
        raise table.error(
            f"verify = {verify!r} needs ca, the file of the CA that signs the clients"
        )
    if verify == "none":
        for key in ("ca", "crl"):
            if texts[key]:
                raise table.error(f"{key} needs verify = 'optional' or 'required'")
    return TlsRules(**{**texts, "verify": verify, "min_version": version})


def _websocket(listener: Table) -> WebSocketRules | None:
    table = _table_or_flag(listener, "websocket", WEBSOCKET_KEYS)
    if table is None:
        return None
    path = table.text("path", WEBSOCKET_PATH)
    if not path.startswith("/") or "?" in path or not path.isprintable():
        raise table.error(f"path begins with / and has no ?, not {path!r}")
    return WebSocketRules(
        path=path,
        origins=table.texts("origins"),
        compression=table.flag("compression", False),
        message_bytes_max=table.whole("message_bytes_max", 0, 0),
    )


def _proxy(listener: Table) -> ProxyRules | None:
    table = _table_or_flag(listener, "proxy_protocol", PROXY_KEYS)
    if table is None:
        return None
    trusted: list[Network] = []
    for text in table.texts("trusted"):
        try:
            trusted.append(ipaddress.ip_network(text))
        except ValueError:
            raise table.error(f"trusted has addresses and networks, not {text!r}") from None
    return ProxyRules(tuple(trusted))


def _limits(listener: Table) -> ClientLimits | None:
    return read_limits(listener.table("limits", CLIENT_KEYS))


def _table_or_flag(listener: Table, key: str, keys: Collection[str]) -> Table | None:
    """Return a table in the listener's; `true` is an empty one, `false` none."""
    value = listener.data.get(key, False)
    if isinstance(value, bool):
        return Table({}, f"{listener.where}: {key}", keys) if value else None
    if not isinstance(value, dict):
        raise listener.error(f"{key} is true, or a table {{ ... }}, not {value!r}")
    return listener.table(key, keys)

"""The `[[listeners]]` of a configuration file: where, what is spoken there, and for whom."""

from __future__ import annotations

import difflib
import ipaddress
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
from mqtt_broker.server.config.tables import ConfigError, number, rows, typed

DEFAULT_PORT: Final = 1883
DEFAULT_PORTS: Final = {"mqtt": DEFAULT_PORT, "mqtts": 8883, "ws": 8083, "wss": 8084}
_KEYS: Final = (
    "name host port path tls websocket proxy_protocol max_connections connects_per_s "
    "messages_per_s bytes_per_s limits handshake_timeout_s connect_timeout_s allow_anonymous "
    "tcp_nodelay"
).split()
_TLS_KEYS: Final = "cert key ca crl verify min_version ciphers".split()
_WEBSOCKET_KEYS: Final = "path origins compression message_bytes_max".split()
_PROXY_KEYS: Final = ["trusted"]
_VERIFY: Final = ("none", "optional", "required")
_VERSIONS: Final = ("1.2", "1.3")
_TIMEOUT_S_MAX: Final = 3_600.0


def read_listeners(found: Any, path: str) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    names: set[str] = set()
    for where, row in rows("listeners", found, path):
        _check_keys(row, _KEYS, where)
        rules = _rules(row, where)
        if rules.name:
            if rules.name in names:
                raise ConfigError(f"{where}: name {rules.name} is another listener's")
            names.add(rules.name)
        endpoints.append(_endpoint(row, rules, where))
    return endpoints


def check_port(port: int, where: str) -> None:
    if not 0 <= port <= 65_535:
        raise ConfigError(f"{where}: port is 0 to 65535, not {port}")


def _endpoint(row: dict[str, Any], rules: ListenerRules, where: str) -> Endpoint:
    if "path" in row:
        if not typed(row, "path", str, "", where):
            raise ConfigError(f"{where}: path is empty")
        for key in ("host", "port", "tcp_nodelay"):
            if key in row:
                raise ConfigError(f"{where}: it has path or {key}, not both")
        return Endpoint(path=row["path"], rules=rules)
    host = typed(row, "host", str, "127.0.0.1", where)
    port = typed(row, "port", int, DEFAULT_PORTS[rules.scheme], where)
    check_port(port, where)
    return Endpoint(host, port, rules=rules)


def _rules(row: dict[str, Any], where: str) -> ListenerRules:
    name = typed(row, "name", str, "", where)
    if not name.isprintable():
        raise ConfigError(f"{where}: name has to be printable, not {name!r}")
    allow = typed(row, "allow_anonymous", bool, False, where)
    return ListenerRules(
        name=name,
        tls=_tls(row, where),
        websocket=_websocket(row, where),
        proxy=_proxy(row, where),
        max_connections=_number(row, "max_connections", 0, where, 0),
        connects_per_s=number(row, "connects_per_s", 0.0, where, 0.0, 1e6),
        messages_per_s=number(row, "messages_per_s", 0.0, where, 0.0, RATES["messages_per_s"]),
        bytes_per_s=number(row, "bytes_per_s", 0.0, where, 0.0, RATES["bytes_per_s"]),
        limits=_limits(row, where),
        handshake_timeout_s=_seconds(row, "handshake_timeout_s", 10.0, where),
        connect_timeout_s=_seconds(row, "connect_timeout_s", 0.0, where),
        allow_anonymous=allow if "allow_anonymous" in row else None,
        tcp_nodelay=typed(row, "tcp_nodelay", bool, True, where),
    )


def _tls(row: dict[str, Any], where: str) -> TlsRules | None:
    table = _table(row, "tls", _TLS_KEYS, where)
    if table is None:
        return None
    where = f"{where}: tls"
    texts = {key: typed(table, key, str, "", where) for key in _TLS_KEYS}
    for key in ("cert", "key"):
        if not texts[key]:
            raise ConfigError(f"{where}: it needs {key}, a file in PEM")
    verify = texts["verify"] or ("required" if texts["ca"] else "none")
    version = texts["min_version"] or "1.2"
    if verify not in _VERIFY:
        raise ConfigError(f"{where}: verify is one of {', '.join(_VERIFY)}, not {verify!r}")
    if version not in _VERSIONS:
        raise ConfigError(f"{where}: min_version is {' or '.join(_VERSIONS)}, not {version!r}")
    if verify != "none" and not texts["ca"]:
        raise ConfigError(f"{where}: verify = {verify!r} needs ca, who signs the clients")
    if verify == "none":
        for key in ("ca", "crl"):
            if texts[key]:
                raise ConfigError(f"{where}: {key} needs verify = 'optional' or 'required'")
    return TlsRules(**{**texts, "verify": verify, "min_version": version})


def _websocket(row: dict[str, Any], where: str) -> WebSocketRules | None:
    table = _table(row, "websocket", _WEBSOCKET_KEYS, where)
    if table is None:
        return None
    where = f"{where}: websocket"
    path = typed(table, "path", str, WEBSOCKET_PATH, where)
    if not path.startswith("/") or "?" in path or not path.isprintable():
        raise ConfigError(f"{where}: path begins with / and has no ?, not {path!r}")
    return WebSocketRules(
        path=path,
        origins=_texts(table, "origins", where),
        compression=typed(table, "compression", bool, False, where),
        message_bytes_max=_number(table, "message_bytes_max", 0, where, 0),
    )


def _proxy(row: dict[str, Any], where: str) -> ProxyRules | None:
    table = _table(row, "proxy_protocol", _PROXY_KEYS, where)
    if table is None:
        return None
    trusted: list[Network] = []
    for text in _texts(table, "trusted", f"{where}: proxy_protocol"):
        try:
            trusted.append(ipaddress.ip_network(text))
        except ValueError:
            raise ConfigError(
                f"{where}: proxy_protocol: trusted has addresses and networks, not {text!r}"
            ) from None
    return ProxyRules(tuple(trusted))


def _limits(row: dict[str, Any], where: str) -> ClientLimits | None:
    value = row.get("limits", {})
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: limits is a table {{ ... }}, not {value!r}")
    _check_keys(value, list(CLIENT_KEYS), f"{where}: limits")
    return read_limits(value, f"{where}: limits")


def _table(row: dict[str, Any], key: str, keys: list[str], where: str) -> dict[str, Any] | None:
    """A table in the row; `true` is one with nothing in it, `false` none."""
    value = row.get(key, False)
    if value is True and key != "tls":
        return {}
    if value is False and (key != "tls" or key not in row):
        return None
    if not isinstance(value, dict):
        other = "" if key == "tls" else "true, or "
        raise ConfigError(f"{where}: {key} is {other}a table {{ ... }}, not {value!r}")
    _check_keys(value, keys, f"{where}: {key}")
    return value


def _check_keys(row: dict[str, Any], keys: list[str], where: str) -> None:
    if unknown := set(row) - set(keys):
        key = min(unknown)
        near = difflib.get_close_matches(key, keys, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(keys)}"
        shown = key if key.isprintable() else repr(key)
        raise ConfigError(f"{where}: unknown key {shown}; {hint}")


def _texts(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not (isinstance(value, list) and all(isinstance(one, str) and one for one in value)):
        raise ConfigError(f"{where}: {key} is a list of texts, not {value!r}")
    return tuple(value)


def _number(row: dict[str, Any], key: str, default: int, where: str, low: int) -> int:
    value: int = typed(row, key, int, default, where)
    if value < low:
        raise ConfigError(f"{where}: {key} is {low} or more, not {value}")
    return value


def _seconds(row: dict[str, Any], key: str, default: float, where: str) -> float:
    if type(row.get(key)) is int:
        row = {**row, key: float(row[key])}
    value: float = typed(row, key, float, default, where)
    if key in row and not 0.01 <= value <= _TIMEOUT_S_MAX:
        raise ConfigError(f"{where}: {key} is 0.01 to {_TIMEOUT_S_MAX:.0f}, not {value}")
    return value

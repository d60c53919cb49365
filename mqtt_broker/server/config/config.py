"""Read the configuration: a TOML file, `FLEETMQ_*` variables and the command line.

Later sources override earlier ones. Every field of the core's `Settings` is a key, and so are the
entries of `OWN_KEYS`. A mistake raises one `ConfigError` that names the key, its source, its value,
and what would be right.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.routing.dead_letters import REASONS as DEAD_LETTER_REASONS
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.http_access import TABLES as HTTP_TABLES
from mqtt_broker.server.config.http_access import HttpAccess, read_http_access
from mqtt_broker.server.config.listeners import (
    DEFAULT_PORT,
    PORT_MAX,
    check_addresses,
    read_listeners,
)
from mqtt_broker.server.config.located import place_of
from mqtt_broker.server.config.schemas import Schema, read_schemas, with_columns
from mqtt_broker.server.config.security import TABLES as SECURITY_TABLES
from mqtt_broker.server.config.security import SecurityConfig, check_listeners, read_security
from mqtt_broker.server.config.streams import read_streams
from mqtt_broker.server.config.tables import ConfigError, Table, read_toml, tables, unknown_key
from mqtt_broker.streams.format.partitioning import names_function
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.topics.names import filter_problem
from mqtt_broker.topics.shared import STRATEGIES
from sessions.journal.journal import MODES
from sessions.messages.backlog import QueueFull

DEFAULT_HTTP: Final = Endpoint("127.0.0.1", 8080)
OWN_KEYS: Final[dict[str, type[Any]]] = {
    "host": str,
    "port": int,
    "unix_socket": str,
    "data_dir": str,
    "database_url": str,
    "durability": str,
    "recover": bool,
    "allow_anonymous": bool,
    "log_level": str,
    "log_format": str,
    "log_connections": bool,
    "sys_log": str,
    "otel_endpoint": str,
    "otel_sample": float,
    "http": str,
    "http_token": str,
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "queue_full": tuple(policy.value for policy in QueueFull),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "sys_log": ("off", "debug", "info", "warning", "error"),
    "durability": tuple(MODES),
}
_FIELDS: Final = {found.name: found for found in dataclasses.fields(Settings)}
_TABLES: Final = ("listeners", "topics", "streams", "schemas", *HTTP_TABLES, *SECURITY_TABLES)
_OF_COMMANDS: Final = ("FLEETMQ_API", "FLEETMQ_SIM_SCENARIO")  # variables of other commands
DEAD_LETTERS_S: Final = 7 * 86_400  # retention of dead letters without a stream of their own
DATA_DIR: Final = "fleetmq-data"  # in the working directory


class StartError(Exception):
    """The broker cannot start, although its configuration is valid; the text is one line."""


class DatabaseUnreachable(StartError):
    """A database that the configuration names does not answer."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The sources of a configuration, to read them again."""

    path: str  # empty: no file
    environment: Mapping[str, str] = field(repr=False)
    overrides: Mapping[str, Any]  # of the command line
    tables: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the file

    def read(self) -> Config:
        """Read all sources again; ConfigError."""
        return load(self.path or None, self.environment, self.overrides)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a server, read and checked."""

    settings: Settings = field(default_factory=Settings)
    endpoints: tuple[Endpoint, ...] = (Endpoint(),)
    durability: str = "commit"
    data_dir: str = DATA_DIR
    database_url: str = field(default="", repr=False)
    durabilities: tuple[tuple[str, str], ...] = ()  # Topic Filter, mode; the first match counts
    recover: bool = False
    allow_anonymous: bool = False
    log_level: str = "info"
    log_format: str = "text"
    log_connections: bool = True
    sys_log: str = "off"  # or the lowest level that is published under $SYS/broker/log/
    http: Endpoint | None = DEFAULT_HTTP  # None: no HTTP
    http_is_default: bool = True  # the port is not configured: another one may be used
    http_token: str = field(default="", repr=False)
    http_access: HttpAccess = field(default_factory=HttpAccess)
    streams: tuple[StreamSettings, ...] = ()
    partition_functions: tuple[str, ...] = ()  # dotted names; beside those of `streams`
    schemas: tuple[Schema, ...] = ()
    security: SecurityConfig = field(default_factory=SecurityConfig)
    secrets_file: str = ""  # the configuration file, if it holds a token or a password
    # Where each key that is given comes from: `fleet.toml:3`, `FLEETMQ_PORT`, `--port`.
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    otel_endpoint: str = ""  # of an OTLP collector; empty: messages are not traced
    otel_sample: float = 0.0  # share of messages that are traced without a sampled parent
    source: ConfigSource | None = field(default=None, compare=False, repr=False)

    def error(self, key: str, text: str) -> ConfigError:
        """Return an error about the value of a key; it names the source of the value."""
        origin = self.origins.get(key, "")
        return ConfigError(f"{origin}: {key}: {text}" if origin else f"{key}: {text}")

    @property
    def store_name(self) -> str:
        """The place of the state for messages, without the password and parameters of a URL."""
        if not self.database_url:
            return self.data_dir
        return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", self.database_url.partition("?")[0])

    @property
    def functions(self) -> tuple[str, ...]:
        """The dotted names of all partition functions that the configuration names."""
        said = [one.partition_by for one in self.streams if names_function(one.partition_by)]
        return tuple(dict.fromkeys((*self.partition_functions, *said)))

    @property
    def needs_store(self) -> bool:
        """Tell whether messages or streams are kept on disk."""
        modes = (self.durability, *dict(self.durabilities).values())
        return bool(self.streams) or any(mode != "memory" for mode in modes)


def load(path: str | None, environment: Mapping[str, str], overrides: Mapping[str, Any]) -> Config:
    """Return the configuration from all sources; `overrides` are the command line's."""
    table = read_toml(path) if path is not None else {}
    own = {key: value for key, value in environment.items() if key.startswith("FLEETMQ_")}
    tables = dict(table)  # `_load` takes what it reads out of the other one
    source = ConfigSource(path or "", own, dict(overrides), tables)
    return dataclasses.replace(_load(table, path or "", environment, overrides), source=source)


def load_values(values: Mapping[str, Any]) -> Config:
    """Return the configuration of a program: keys and tables as in the file, in one mapping."""
    return _load(dict(values), "", {}, {})


class _Given:
    """The values given for top-level keys, and the source of each."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add(self, key: str, value: Any, where: str) -> None:
        self.values[key] = _checked(key, value, where)
        self.origins[key] = where


def _load(
    table: dict[str, Any],
    path: str,
    environment: Mapping[str, str],
    overrides: Mapping[str, Any],
) -> Config:
    given = _Given()
    secrets_file = path if _holds_secret(table) else ""
    rows = {key: table.pop(key, []) for key in ("listeners", "topics", "streams", "schemas")}
    functions = _functions(table, path)
    security = read_security(table, path)
    http_access = read_http_access(table, path)
    for key in (*SECURITY_TABLES, *HTTP_TABLES):
        table.pop(key, None)
    for key, value in table.items():
        given.add(key, value, place_of(table, key, path))
    for name, text in environment.items():
        if name.startswith("FLEETMQ_") and name not in _OF_COMMANDS:
            key = name[len("FLEETMQ_") :].lower()
            given.add(key, _parsed(key, text, name), name)
    for key, value in overrides.items():
        if value is not None:
            given.add(key, value, f"--{key.replace('_', '-')}")
    config = _build(
        given, rows["listeners"], _durabilities(rows["topics"], path), path, security, http_access
    )
    found = read_schemas(rows["schemas"], path)
    return dataclasses.replace(
        config,
        streams=with_columns(_streams(config, rows["streams"], path), found),
        partition_functions=functions,
        schemas=found,
        secrets_file=secrets_file,
    )


def _holds_secret(found: Any) -> bool:
    """Tell whether the tables hold a token, or the URL of a database with its password."""
    if isinstance(found, list):
        return any(_holds_secret(one) for one in found)
    if not isinstance(found, dict):
        return False
    url = found.get("database_url")
    has_password = isinstance(url, str) and re.search(r"://[^/@]*:[^/@]*@", url) is not None
    return has_password or bool(found.get("http_token")) or _holds_secret(list(found.values()))


def read_security_of(path: str) -> SecurityConfig:
    """Read only the security tables of a file, for a reload."""
    return read_security(read_toml(path), path)


def _functions(table: dict[str, Any], path: str) -> tuple[str, ...]:
    """Remove `partition_functions` from the file's table and return it.

    Only the file may name code to run, not the environment or the command line.
    """
    key = "partition_functions"
    found = Table({key: table.pop(key, [])}, path, (key,))
    for name in found.texts(key):
        if not names_function(name):
            raise found.error(
                f"{key}: {name!r} is not the dotted name of a function, as package.module.function"
            )
    return found.texts(key)


def _streams(config: Config, found: Any, path: str) -> tuple[StreamSettings, ...]:
    """Return the streams of the file, and one for dead letters if none of them stores these."""
    streams = read_streams(found, path)
    if config.settings.dead_letters and not any(s.filter.startswith("$dlq/") for s in streams):
        return (*streams, StreamSettings("dlq", "$dlq/#", retain_s=DEAD_LETTERS_S))
    return streams


def _kind(key: str, where: str) -> type[Any]:
    prefix = f"{where}: " if where else ""
    if key in OWN_KEYS:
        return OWN_KEYS[key]
    if key in _FIELDS:
        return type(_FIELDS[key].default)
    if key == "partition_functions":
        raise ConfigError(f"{prefix}set {key} in the configuration file, as a list")
    if key in _TABLES:
        raise ConfigError(f"{prefix}set {key} in the configuration file, as [[{key}]]")
    raise ConfigError(f"{prefix}{unknown_key(key, (*OWN_KEYS, *_FIELDS, *_TABLES))}")


def _parsed(key: str, text: str, where: str) -> Any:
    """Convert the value of an environment variable to the type of its key."""
    kind = _kind(key, where)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{where}: {key} is true or false, not {text!r}")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{where}: {key} is {what}, not {text!r}") from None
    return text


def _checked(key: str, value: Any, where: str) -> Any:
    """Check the value of a top-level key, an environment variable or an option."""
    kind = _kind(key, where)
    table = Table({key: value}, where, (key,))
    if kind is bool:
        return table.flag(key, False)
    if kind is str:
        return _checked_text(key, table)
    if key == "otel_sample":
        return table.number(key, 0.0, 0.0, 1.0)
    if key == "port":
        return table.whole(key, 0, 0, PORT_MAX)
    meta = _FIELDS[key].metadata
    read = table.whole if kind is int else table.number
    return read(key, None, meta["low"], meta["high"])


def _checked_text(key: str, table: Table) -> str:
    if key in _CHOICES:
        return table.choice(key, _CHOICES[key], "")
    value = table.text(key, "")
    if key == "otel_endpoint" and value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        raise table.error(
            "otel_endpoint is a URL such as http://127.0.0.1:4318, without /v1/traces, not "
            f"{value!r}"
        )
    if key == "dead_letters":
        for reason in value.split(",") if value else ():
            if reason != "all" and reason not in DEAD_LETTER_REASONS:
                raise table.error(
                    f"dead_letters is all, or some of {', '.join(DEAD_LETTER_REASONS)} with "
                    f"commas between, not {value!r}"
                )
    if key == "shared_strategy" and value not in STRATEGIES and ":" not in value:
        raise table.error(
            f"shared_strategy is one of {', '.join(STRATEGIES)} or package.module:Class, "
            f"not {value!r}"
        )
    return value


def _durabilities(topics: Any, path: str) -> tuple[tuple[str, str], ...]:
    """Read `[[topics]]`: Topic Filters, and the durability mode of their messages."""
    found: list[tuple[str, str]] = []
    for table in tables("topics", topics, path, ("filter", "durability")):
        text = table.text("filter")
        if problem := filter_problem(text):
            raise table.error(f"filter {text!r}: {problem}")
        found.append((text, table.choice("durability", MODES)))
    return tuple(found)


def _build(
    given: _Given,
    listeners: Any,
    durabilities: tuple[tuple[str, str], ...],
    path: str,
    security: SecurityConfig,
    http_access: HttpAccess,
) -> Config:
    values = given.values
    settings = Settings(**{key: value for key, value in values.items() if key in _FIELDS})
    own = {key: value for key, value in values.items() if key not in _FIELDS}
    endpoints = _endpoints(own, given.origins, listeners, path)
    check_listeners(security, (endpoint.name for endpoint in endpoints))
    allow_anonymous = own.get("allow_anonymous", False)
    for endpoint in endpoints:
        needs_login = security.has_auth or is_guarded(endpoint)
        if not (allow_anonymous or is_local(endpoint) or needs_login):
            raise _error(
                endpoint.place,
                f"{endpoint} can be reached from other machines and clients need not log in: "
                "set --allow-anonymous (allow_anonymous = true), or listen on 127.0.0.1",
            )
    http = _http(own, given.origins.get("http", ""), http_access)
    check_addresses([*endpoints, *([http] if http is not None and "http" in own else [])])
    return Config(
        settings,
        tuple(endpoints),
        own.get("durability", "commit"),
        own.get("data_dir", DATA_DIR),
        own.get("database_url", ""),
        durabilities,
        own.get("recover", False),
        allow_anonymous,
        own.get("log_level", "info"),
        own.get("log_format", "text"),
        own.get("log_connections", True),
        own.get("sys_log", "off"),
        http,
        "http" not in own,
        own.get("http_token", ""),
        http_access,
        security=security,
        origins=given.origins,
        otel_endpoint=own.get("otel_endpoint", ""),
        otel_sample=own.get("otel_sample", 0.0),
    )


def _error(where: str, text: str) -> ConfigError:
    return ConfigError(f"{where}: {text}" if where else text)


def _http(own: dict[str, Any], where: str, access: HttpAccess) -> Endpoint | None:
    """Return the address of the HTTP server; None for `off`."""
    text: str = own.get("http", str(DEFAULT_HTTP))
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise _error(where, f"http is HOST:PORT or off, not {text!r}")
    place = f"{where}: http" if where else "http"
    endpoint = Endpoint(host.removeprefix("[").removesuffix("]"), int(port), place=place)
    if not (is_local(endpoint) or own.get("http_token") or access.is_on):
        raise _error(
            where,
            f"http: {endpoint} can be reached from other machines: set http_token "
            "(FLEETMQ_HTTP_TOKEN) for them to send, [[http_tokens]] or [[http_users]], or listen "
            "on 127.0.0.1",
        )
    return endpoint


def _endpoints(
    own: dict[str, Any], origins: Mapping[str, str], listeners: Any, path: str
) -> list[Endpoint]:
    found = read_listeners(listeners, path)
    if own.get("unix_socket"):
        place = origins.get("unix_socket", "")
        found.append(Endpoint(path=own["unix_socket"], place=place))
    if not found or "host" in own or "port" in own:
        place = origins.get("host", origins.get("port", ""))
        port = own.get("port", DEFAULT_PORT)
        found.insert(0, Endpoint(own.get("host", "127.0.0.1"), port, place=place))
    return found


def is_guarded(endpoint: Endpoint) -> bool:
    """Tell whether clients need a certificate, or the listener allows anonymous ones by name."""
    rules = endpoint.rules
    needs_certificate = rules.tls is not None and rules.tls.verify == "required"
    return needs_certificate or bool(rules.allow_anonymous)


def is_local(endpoint: Endpoint) -> bool:
    """Tell whether only this machine can reach the address."""
    if endpoint.path or endpoint.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(endpoint.host).is_loopback
    except ValueError:
        return False

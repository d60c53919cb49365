"""Configuration: a TOML file, `FLEETMQ_*` in the environment, the command line; in that order.

Every field of `Settings` is a key; beside them stand the few that the core does not know.
A mistake ends in one `ConfigError` that names the key, where it stands, and what would do.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import pathlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqtt_broker.core.settings import UNLIMITED, Settings
from mqtt_broker.server.listeners import Endpoint
from mqtt_broker.topics.names import filter_problem
from mqtt_broker.topics.shared import STRATEGIES
from sessions.budget import QueueFull
from sessions.journal import MODES

DEFAULT_PORT: Final = 1883
_OWN_KEYS: Final[dict[str, type[Any]]] = {
    "host": str,
    "port": int,
    "unix_socket": str,
    "data_dir": str,
    "database_url": str,
    "durability": str,
    "recover": bool,
    "allow_anonymous": bool,
    "log_level": str,
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "queue_full": tuple(policy.value for policy in QueueFull),
    "log_level": ("debug", "info", "warning", "error"),
    "durability": tuple(MODES),
}
DATA_DIR: Final = "fleetmq-data"  # in the working directory, when nothing is said


class ConfigError(Exception):
    """One line for the operator."""


class StartError(Exception):
    """The configuration is right and the broker cannot start all the same; one line."""


@dataclass(frozen=True, slots=True)
class Config:
    settings: Settings = field(default_factory=Settings)
    endpoints: tuple[Endpoint, ...] = (Endpoint(),)
    durability: str = "commit"
    data_dir: str = DATA_DIR
    database_url: str = ""
    durabilities: tuple[tuple[str, str], ...] = ()  # Topic Filter, mode; the first match counts
    recover: bool = False
    allow_anonymous: bool = False
    log_level: str = "info"

    @property
    def store_name(self) -> str:
        """Where state is kept, for people: without a password."""
        if not self.database_url:
            return self.data_dir
        return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", self.database_url)

    @property
    def needs_store(self) -> bool:
        return any(
            mode != "memory" for mode in (self.durability, *dict(self.durabilities).values())
        )


def load(path: str | None, environment: Mapping[str, str], overrides: Mapping[str, Any]) -> Config:
    """The configuration from all its sources; `overrides` are the command line's."""
    values: dict[str, Any] = {}
    listeners: Any = []
    topics: Any = []
    if path is not None:
        table = _read(path)
        listeners = table.pop("listeners", [])
        topics = table.pop("topics", [])
        for key, value in table.items():
            values[key] = _checked(key, value, path)
    for name, text in environment.items():
        if name.startswith("FLEETMQ_"):
            key = name[len("FLEETMQ_") :].lower()
            values[key] = _checked(key, _parsed(key, text, name), name)
    for key, value in overrides.items():
        if value is not None:
            values[key] = _checked(key, value, f"--{key.replace('_', '-')}")
    return _build(values, listeners, _durabilities(topics, path or ""), path or "")


def _read(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _fields() -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(Settings)}


def _kind(key: str, where: str) -> type[Any]:
    if key in _OWN_KEYS:
        return _OWN_KEYS[key]
    if key in _fields():
        return type(_fields()[key].default)
    if key in ("listeners", "topics"):
        raise ConfigError(f"{where}: {key} are written in the file, as [[{key}]]")
    near = difflib.get_close_matches(key, [*_OWN_KEYS, *_fields(), "listeners", "topics"], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    shown = key if key.isprintable() else repr(key)
    raise ConfigError(f"{where}: unknown key {shown}{hint}")


def _parsed(key: str, text: str, where: str) -> Any:
    """A value of the environment as the type its key wants."""
    kind = _kind(key, where)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{where}: true or false, not {text!r}")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{where}: a number, not {text!r}") from None
    return text


def _checked(key: str, value: Any, where: str) -> Any:
    kind = _kind(key, where)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {key} is {_A[kind]}, not {value!r}")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigError(f"{where}: {key} is one of {', '.join(_CHOICES[key])}, not {value!r}")
    if key == "port":
        _check_port(value, where)
    if key == "shared_strategy" and value not in STRATEGIES and ":" not in value:
        raise ConfigError(
            f"{where}: shared_strategy is one of {', '.join(STRATEGIES)} or package.module:Class"
        )
    if key in _fields() and kind in (int, float):
        meta = _fields()[key].metadata
        low, high = meta["low"], meta["high"]
        if not low <= value <= high:
            limits = f"{low} or more" if high == UNLIMITED and value < low else f"{low} to {high}"
            raise ConfigError(f"{where}: {key} is {limits}, not {value}")
    return value


_A: Final = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _durabilities(topics: Any, path: str) -> tuple[tuple[str, str], ...]:
    """The [[topics]] of the file: a Topic Filter, and what an acknowledgement promises there."""
    if not (isinstance(topics, list) and all(isinstance(row, dict) for row in topics)):
        raise ConfigError(f"{path}: topics is written [[topics]], once for each")
    found: list[tuple[str, str]] = []
    for number, row in enumerate(topics, 1):
        where = f"{path}: topics {number}"
        if unknown := set(row) - {"filter", "durability"}:
            raise ConfigError(f"{where}: unknown key {min(unknown)}; it has filter and durability")
        text = _typed(row, "filter", str, "", where)
        if problem := filter_problem(text):
            raise ConfigError(f"{where}: filter: {problem}")
        mode = _typed(row, "durability", str, "", where)
        if mode not in MODES:
            raise ConfigError(f"{where}: durability is one of {', '.join(MODES)}, not {mode!r}")
        found.append((text, mode))
    return tuple(found)


def _build(
    values: dict[str, Any],
    listeners: Any,
    durabilities: tuple[tuple[str, str], ...],
    path: str,
) -> Config:
    names = _fields()
    settings = Settings(**{key: value for key, value in values.items() if key in names})
    own = {key: value for key, value in values.items() if key not in names}
    endpoints = _endpoints(own, listeners, path)
    allow_anonymous = own.get("allow_anonymous", False)
    for endpoint in endpoints:
        if not (allow_anonymous or is_local(endpoint)):
            raise ConfigError(
                f"{endpoint} can be reached from other machines and nobody has to log in: "
                "say --allow-anonymous (allow_anonymous = true), or listen on 127.0.0.1"
            )
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
    )


def _endpoints(own: dict[str, Any], listeners: Any, path: str) -> list[Endpoint]:
    found: list[Endpoint] = []
    if not (isinstance(listeners, list) and all(isinstance(row, dict) for row in listeners)):
        raise ConfigError(f"{path}: listeners is written [[listeners]], once for each")
    for number, row in enumerate(listeners, 1):
        where = f"{path}: listener {number}"
        if unknown := set(row) - {"host", "port", "path"}:
            raise ConfigError(f"{where}: unknown key {min(unknown)}; it has host, port or path")
        if "path" in row:
            if not _typed(row, "path", str, "", where):
                raise ConfigError(f"{where}: path is empty")
            found.append(Endpoint(path=row["path"]))
        else:
            host = _typed(row, "host", str, "127.0.0.1", where)
            port = _typed(row, "port", int, DEFAULT_PORT, where)
            _check_port(port, where)
            found.append(Endpoint(host, port))
    if own.get("unix_socket"):
        found.append(Endpoint(path=own["unix_socket"]))
    if not found or "host" in own or "port" in own:
        found.insert(0, Endpoint(own.get("host", "127.0.0.1"), own.get("port", DEFAULT_PORT)))
    return found


def _check_port(port: int, where: str) -> None:
    if not 0 <= port <= 65_535:
        raise ConfigError(f"{where}: port is 0 to 65535, not {port}")


def _typed(row: dict[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = row.get(key, default)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {key} is {_A[kind]}, not {value!r}")
    return value


def is_local(endpoint: Endpoint) -> bool:
    """Whether only this machine can reach the address."""
    if endpoint.path or endpoint.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(endpoint.host).is_loopback
    except ValueError:
        return False

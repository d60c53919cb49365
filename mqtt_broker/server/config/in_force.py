"""The configuration in force: each key with its value and its source, and the file's tables.

Passwords and tokens are left out. `fleetmq config --show` and `GET /api/v1/config` show it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.live_keys import LIVE
from mqtt_broker.server.config.located import LocatedTable
from mqtt_broker.server.config.tables import SECRETS
from mqtt_broker.server.config.template import OWN

DEFAULT: Final = "default"
_PASSWORD: Final = re.compile(r"(://[^:/@]*):[^@]*@")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A key at the top of the configuration."""

    key: str
    value: Any  # without a password or a token
    origin: str  # `fleet.toml:3`, `FLEETMQ_PORT`, `--port` or `default`
    default: Any

    @property
    def is_live(self) -> bool:
        """Tell whether a reload takes a change up; else it needs a restart."""
        return self.key in LIVE


def values_in_force(config: Config) -> Iterator[ConfigValue]:
    """Yield all keys at the top."""
    has_listeners = not {"host", "port"} & config.origins.keys() and any(
        one.place for one in config.endpoints
    )
    for key, (default, _) in OWN.items():
        origin = config.origins.get(key, DEFAULT)
        if key in ("host", "port") and has_listeners:
            origin += ", not used: there are other listeners"
        yield ConfigValue(key, without_secret(key, value_of(config, key)), origin, default)
    for field in dataclasses.fields(config.settings):
        value = getattr(config.settings, field.name)
        origin = config.origins.get(field.name, DEFAULT)
        yield ConfigValue(field.name, value, origin, field.default)


def value_of(config: Config, key: str) -> Any:
    """Return the value of a key at the top."""
    if key not in OWN:
        return getattr(config.settings, key)
    first = config.endpoints[0]
    match key:
        case "host" | "port":
            return getattr(first, key) if key in config.origins else OWN[key][0]
        case "unix_socket":
            return config.endpoints[-1].path if key in config.origins else OWN[key][0]
        case "http":
            return str(config.http) if config.http is not None else "off"
    return getattr(config, key)


def without_secret(key: str, value: Any) -> Any:
    """Return a value as it may be shown: without a password or a token."""
    if key in SECRETS and isinstance(value, str) and value:
        return _PASSWORD.sub(r"\1:***@", value.partition("?")[0]) if "://" in value else "***"
    if isinstance(value, dict):
        return {name: without_secret(name, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secret(key, one) for one in value]
    return value


@dataclass(frozen=True, slots=True)
class TableInForce:
    """A table of the file, such as one `[[listeners]]`."""

    header: str
    place: str  # `fleet.toml:12`
    values: Mapping[str, tuple[Any, str]]  # by key: value, place


def tables_in_force(tables: Mapping[str, Any]) -> Iterator[TableInForce]:
    """Yield the tables of a file that `read_toml` has read."""
    for key, found in tables.items():
        if isinstance(found, LocatedTable):
            yield _table(f"[{key}]", found)
        elif isinstance(found, list):
            for row in found:
                if isinstance(row, LocatedTable):
                    yield _table(f"[[{key}]]", row)


def _table(header: str, table: LocatedTable) -> TableInForce:
    place = f"{table.file}:{table.line}"
    values = {
        key: (without_secret(key, value), f"{table.file}:{table.lines.get(key, table.line)}")
        for key, value in table.items()
    }
    return TableInForce(header, place, values)

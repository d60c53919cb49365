"""Compare a configuration that was read again with the one in force, key by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.http_access import TABLES as HTTP_TABLES
from mqtt_broker.server.config.in_force import DEFAULT, value_of, without_secret
from mqtt_broker.server.config.live_keys import LIVE, SECURITY_RESTARTS, TABLE_RESTARTS
from mqtt_broker.server.config.security import TABLES as SECURITY_TABLES
from mqtt_broker.server.config.template import OWN

_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Settings))
_ADDRESSES: Final = frozenset({"host", "port", "unix_socket"})


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigChange:
    """A key whose value has changed since the start or the last reload."""

    key: str
    value: Any  # as it is now in the file; without a password or a token
    before: Any  # as it is in force, or was until this reload
    origin: str
    holds: str = ""  # from when on; empty: after a restart

    def describe(self) -> str:
        """Return the change in words, for the log."""
        if self.value is None:  # a table, or a secret
            return f"{self.key} needs a restart"
        if self.holds:
            return f"{self.key} = {self.value} (was {self.before}) holds {self.holds}"
        return f"{self.key} = {self.value} (in force: {self.before}) needs a restart"


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerOutcome:
    """The listeners of a configuration that was read again: what changed, and what could not."""

    changes: tuple[ConfigChange, ...] = ()
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by `listener NAME`: why
    in_force: tuple[Endpoint, ...] = ()  # as configured, of those that are open


def changes_between(in_force: Config, read: Config) -> list[ConfigChange]:
    """Return what has changed, live keys and others."""
    found = [*_keys(in_force, read), *_tables(in_force, read)]
    for key in SECURITY_RESTARTS:
        if getattr(in_force.security, key) != getattr(read.security, key):
            found.append(ConfigChange(f"[security] {key}", None, None, read.security.path))
    return found


def _keys(in_force: Config, read: Config) -> Iterable[ConfigChange]:
    for key in (*OWN, *_FIELDS):
        if key in TABLE_RESTARTS or not (key in in_force.origins or key in read.origins):
            continue
        before, value = value_of(in_force, key), value_of(read, key)
        if before != value:
            shown, was = without_secret(key, value), without_secret(key, before)
            if shown == was:  # both are hidden
                shown = was = None
            origin = read.origins.get(key, DEFAULT)
            yield ConfigChange(key, shown, was, origin, LIVE.get(key, ""))


def _tables(in_force: Config, read: Config) -> Iterable[ConfigChange]:
    where = read.source.path if read.source is not None else ""
    for name, field in TABLE_RESTARTS.items():
        if getattr(in_force, field) != getattr(read, field):
            yield ConfigChange(name, None, None, where)
    if "listeners" in _names(in_force) | _names(read) and _listeners_wait(in_force, read):
        yield ConfigChange("[[listeners]]", None, None, where)


def _names(config: Config) -> set[str]:
    return set(config.source.tables) if config.source is not None else set()


def _listeners_wait(in_force: Config, read: Config) -> bool:
    """Tell whether the addresses wait for a restart: keys at the top of the file say some."""
    return in_force.endpoints != read.endpoints and not are_listeners_live(in_force, read)


def are_listeners_live(in_force: Config, read: Config) -> bool:
    """Tell whether a reload takes up the listeners.

    Not if an address at the top of the file has changed, nor if the last table is gone: a file that
    was cut off would disconnect everybody.
    """
    is_cut = "listeners" in _names(in_force) and "listeners" not in _names(read)
    return not is_cut and all(value_of(in_force, key) == value_of(read, key) for key in _ADDRESSES)


def have_listeners_changed(in_force: Config, read: Config) -> bool:
    """Tell whether the tables of listeners differ from those that were taken up.

    The endpoints in force may be others: of a program that runs a broker on addresses of its own.
    """
    return _listener_tables(in_force) != _listener_tables(read)


def _listener_tables(config: Config) -> object:
    return config.source.tables.get("listeners") if config.source is not None else None


def with_listeners(in_force: Config, read: Config, outcome: ListenerOutcome) -> Config:
    """Return the configuration in force with the listeners that were taken up."""
    found = dataclasses.replace(in_force, endpoints=outcome.in_force or in_force.endpoints)
    before, after = in_force.source, read.source
    if before is None or after is None or outcome.failed:
        return found
    tables = {key: rows for key, rows in before.tables.items() if key != "listeners"}
    tables |= {key: rows for key, rows in after.tables.items() if key == "listeners"}
    return dataclasses.replace(found, source=dataclasses.replace(before, tables=tables))


def with_live_keys(in_force: Config, read: Config) -> Config:
    """Return the configuration in force with the live keys of the one that was read."""
    live = [key for key in _FIELDS if key in LIVE]
    settings = dataclasses.replace(
        in_force.settings, **{key: getattr(read.settings, key) for key in live}
    )
    own = {key: getattr(read, key) for key in OWN if key in LIVE}
    origins = {key: where for key, where in in_force.origins.items() if key not in LIVE}
    origins |= {key: where for key, where in read.origins.items() if key in LIVE}
    return dataclasses.replace(in_force, settings=settings, origins=origins, **own)


def with_live_tables(in_force: Config, read: Config) -> Config:
    """Return the configuration in force with the security tables of the file as it was read."""
    before, after = in_force.source, read.source
    if before is None or after is None:
        return in_force
    live = (*SECURITY_TABLES, *HTTP_TABLES)
    tables = {key: rows for key, rows in before.tables.items() if key not in live}
    tables |= {key: rows for key, rows in after.tables.items() if key in live}
    return dataclasses.replace(in_force, source=dataclasses.replace(before, tables=tables))

"""The part of the broker interface by which operators see and change how a broker runs.

Every method may be called from any thread. What goes wrong with a value is an `InvalidChange`, what
is not there an `UnknownName`; NotSupported says that this broker does not offer it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mqtt_broker.http_api.request.broker_interface import Part


class InvalidChange(Exception):
    """A change that this broker cannot make; the text says why in one line."""


class UnknownName(Exception):
    """The thing that a change names does not exist; one line."""


@dataclass(frozen=True, slots=True)
class ValueInForce:
    """A key of the configuration in force."""

    key: str
    value: Any
    origin: str  # `fleet.toml:3`, `FLEETMQ_PORT`, `--port` or `default`
    default: Any
    holds: str  # from when on a reload takes a change up; empty: it needs a restart


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value of a table in the configuration file."""

    value: Any
    place: str


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table of the configuration file."""

    header: str
    place: str
    values: dict[str, PlacedValue]


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A key that has changed since it was read."""

    key: str
    value: Any
    before: Any
    origin: str
    holds: str


@dataclass(frozen=True, slots=True)
class ConfigFigures:
    """The configuration in force, and the changes of the file that wait for a restart."""

    file: str
    values: list[ValueInForce]
    tables: list[TableFigures]
    needs_restart: list[ChangedKey]


@dataclass(frozen=True, slots=True)
class ReloadFigures:
    """The outcome of a reload."""

    taken_up: list[ChangedKey]
    needs_restart: list[ChangedKey]
    reloaded: list[str]
    failed: dict[str, str]  # by part: why its old content stays in force
    pending: list[str]  # parts that are still being read


@dataclass(frozen=True, slots=True)
class LogLineFigures:
    """A line of the log."""

    number: int
    at: float
    level: str
    text: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HealthPart:
    """The health of one part of the broker."""

    name: str
    status: str  # ok, degraded or failing
    why: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListenerFigures:
    """A listener: its address, rules and connections."""

    name: str
    address: str
    url: str
    host: str
    port: int
    path: str  # of a unix socket
    scheme: str
    connections: int
    max_connections: int
    settings: dict[str, Any]  # the keys of its `[[listeners]]` table that are not the default
    is_from_file: bool  # else it was added over HTTP
    after_restart: str  # same, changed (back to the configuration) or gone


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """A certificate file of a listener as it was when it was read."""

    listener: str
    key: str  # cert or ca
    file: str
    pem: bytes


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision of the access rules, and what it was made from."""

    is_allowed: bool
    rule: str  # where the rule stands; empty: no rule applies
    text: str  # the rule in words
    why: str
    roles: list[str]


class Operating(Protocol):
    """Shows and changes how the broker runs."""

    def config(self) -> ConfigFigures:
        """Return the configuration in force."""
        ...

    def reload(self) -> Future[ReloadFigures]:
        """Read every file again; the answer comes when all are read, or after some seconds."""
        ...

    def log_level(self) -> str: ...

    def set_log_level(self, level: str) -> None: ...

    def log_lines(self, level: str, text: str, after: int) -> list[LogLineFigures]:
        """Return the last lines of the log, oldest first."""
        ...

    def health(self) -> Future[list[HealthPart]]: ...

    def listeners(self) -> Future[list[ListenerFigures]]: ...

    def listener_add(self, settings: Mapping[str, Any]) -> Future[ListenerFigures]:
        """Listen on another address; `settings` are the keys of `[[listeners]]`."""
        ...

    def listener_change(self, name: str, changes: Mapping[str, Any]) -> Future[ListenerFigures]:
        """Change keys of a listener (None: the default again); connections stay."""
        ...

    def listener_close(self, name: str, *, disconnect: bool) -> Future[int]:
        """Close a listener, with its connections if asked for; return how many it had."""
        ...

    def certificates(self) -> Future[list[CertificateFile]]: ...

    def explain(
        self,
        client_id: str,
        username: str | None,
        address: str,
        action: str,
        topic: str,
        roles: Sequence[str],
    ) -> Explanation:
        """Decide as the running broker would. May wait for a database."""
        ...


OPERATING: Final[Part[Operating]] = Part("operating interface")

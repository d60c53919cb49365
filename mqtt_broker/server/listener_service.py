"""The listeners of a running server: open, added, changed and closed while it serves.

A change keeps the listening socket if its address stays, so that no client in the kernel's queue is
lost. Connections that are open keep the rules that they came in by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mqtt_broker.server.config.config import is_guarded, is_local
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules
from mqtt_broker.server.config.listeners import check_addresses, read_listeners
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.context import NetContext
from mqtt_broker.server.net.listener import Listener

_ADDRESS: Final = ("host", "port", "path")


class UnknownListener(Exception):
    """No listener has this name."""


class ListenerService:
    """The listeners of a server."""

    def __init__(
        self,
        context: NetContext,
        prepare: Callable[[Endpoint], Endpoint],
        on_changed: Callable[[tuple[Endpoint, ...]], None],
    ) -> None:
        """`prepare` gives an endpoint its last rules; `on_changed` learns of all endpoints."""
        self._context = context
        self._prepare = prepare
        self._on_changed = on_changed
        self.open: list[Listener] = []
        self._added: dict[str, Mapping[str, Any]] = {}  # by name: settings of those added later
        self.is_open_to_all = False  # anonymous clients are meant on every address
        self.has_access = False  # clients log in

    def meant(self, *, is_open_to_all: bool, has_access: bool) -> None:
        """Say who may come in on an address that other machines can reach."""
        self.is_open_to_all = is_open_to_all
        self.has_access = has_access

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(one.endpoint for one in self.open)

    def is_added(self, name: str) -> bool:
        """Tell whether a listener is not of the configuration."""
        return name in self._added

    def listen(self, endpoint: Endpoint) -> Listener:
        """Bind an address of the configuration; `Listener.start` accepts."""
        listener = Listener(self._context, self._prepare(endpoint))
        self.open.append(listener)
        return listener

    def find(self, name: str) -> Listener:
        """Return the listener of this name or address."""
        for listener in self.open:
            if listener.endpoint.name == name:
                return listener
        raise UnknownListener(f"no listener is named {name!r}")

    def add(self, settings: Mapping[str, Any]) -> Listener:
        """Listen on another address from now on. ConfigError."""
        endpoint = _endpoint_of(settings)
        self._check(endpoint, self.endpoints)
        listener = self._open(endpoint)
        self.open.append(listener)
        self._added[listener.endpoint.name] = dict(settings)
        self._on_changed(self.endpoints)
        return listener

    def change(self, name: str, changes: Mapping[str, Any]) -> Listener:
        """Change keys of a listener; None: the default again. ConfigError changes nothing."""
        before = self.find(name)
        settings = {**settings_of(before.endpoint), **changes}
        endpoint = _endpoint_of({key: v for key, v in settings.items() if v is not None})
        self._check(endpoint, [one for one in self.endpoints if one != before.endpoint])
        is_moved = any(key in changes for key in _ADDRESS) and str(endpoint) != str(before.endpoint)
        listener = self._open(endpoint) if is_moved else self._replace(before, endpoint)
        at = self.open.index(before)
        self.open[at] = listener
        before.close()
        if name in self._added:
            del self._added[name]
            self._added[listener.endpoint.name] = settings
        self._on_changed(self.endpoints)
        return listener

    def _replace(self, before: Listener, endpoint: Endpoint) -> Listener:
        """Put other rules in place of a listener's, on its socket."""
        listener = Listener(self._context, self._prepare(endpoint), take_over=before)
        listener.start()
        return listener

    def close(self, name: str, *, disconnect: bool) -> int:
        """Close a listener; return the number of its connections."""
        listener = self.find(name)
        listener.close()
        self.open.remove(listener)
        self._added.pop(name, None)
        count = listener.state.connections
        if disconnect:
            self._context.disconnect(listener.state.name)
        self._on_changed(self.endpoints)
        return count

    def close_all(self) -> None:
        """Listen no more."""
        for listener in self.open:
            listener.close()
        self.open.clear()

    def _open(self, endpoint: Endpoint) -> Listener:
        try:
            listener = Listener(self._context, self._prepare(endpoint))
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        listener.start()
        return listener

    def _check(self, endpoint: Endpoint, others: Sequence[Endpoint]) -> None:
        check_addresses([*others, endpoint])
        if any(endpoint.name == one.name for one in others):
            raise ConfigError(f"a listener is named {endpoint.name!r} already")
        is_meant = self.is_open_to_all or self.has_access or is_guarded(endpoint)
        if not (is_meant or is_local(endpoint)):
            raise ConfigError(
                f"{endpoint} can be reached from other machines and clients need not log in: "
                "set allow_anonymous = true, or listen on 127.0.0.1"
            )


def _endpoint_of(settings: Mapping[str, Any]) -> Endpoint:
    found = read_listeners([dict(settings)], "")
    return dataclasses.replace(found[0], place="")


_TABLES: Final = {"tls": "tls", "websocket": "websocket", "proxy": "proxy_protocol"}
_PLAIN: Final = ListenerRules()


def settings_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the keys of a `[[listeners]]` table that are not the default; the address always."""
    found: dict[str, Any] = (
        {"path": endpoint.path} if endpoint.path else {"host": endpoint.host, "port": endpoint.port}
    )
    rules = endpoint.rules
    for field in dataclasses.fields(ListenerRules):
        value = getattr(rules, field.name)
        if value == getattr(_PLAIN, field.name):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = _table_of(value)
        found[_TABLES.get(field.name, field.name)] = value
    return found


def _table_of(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        is_required = field.default is dataclasses.MISSING
        if field.name == "own_pages_only" or (not is_required and one == field.default):
            continue
        found[field.name] = [str(part) for part in one] if isinstance(one, tuple) else one
    return found

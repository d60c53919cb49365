"""The listeners of a running server: open, added, changed and closed while it serves.

A change keeps the listening socket if its address stays, so that no client in the kernel's queue is
lost. Connections that are open keep the rules that they came in by.

`add`, `change` and `close` are for an operator, whose changes hold until the broker stops.
`take_up` is for a configuration that was read again: what changed in the file is put in force, and
what an operator did to the other listeners stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtt_broker.server.config.changes import ConfigChange, ListenerOutcome
from mqtt_broker.server.config.config import is_guarded, is_local
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules
from mqtt_broker.server.config.listeners import check_addresses, overlap, read_listeners
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.context import NetContext
from mqtt_broker.server.net.listener import Listener

_ADDRESS: Final = ("host", "port", "path")
_AT_ONCE: Final = "at once"
CLOSED: Final = "closed"


class UnknownListener(Exception):
    """No listener has this name."""


class _Configured(NamedTuple):
    """A listener of the configuration."""

    endpoint: Endpoint  # as it is configured, perhaps with port 0
    listener: Listener | None  # None: an operator closed it


class _Notes:
    """The changes of listeners that were made, and those that failed."""

    def __init__(self) -> None:
        self.changes: list[ConfigChange] = []
        self.failed: dict[str, str] = {}

    def on_change(self, name: str, now: str, replaced: Listener | None, place: str = "") -> None:
        """Note that a listener was opened, changed or closed; `place`: its table in the file."""
        before = CLOSED if replaced is None else replaced.endpoint.url
        if now == before:
            now, before = f"{now} with other keys", "with those of before"
        change = ConfigChange(f"listener {name}", now, before, place, _AT_ONCE)
        self.changes.append(change)


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
        self._configured: dict[str, _Configured] = {}  # by `_keyed`
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
        key = _free_key(endpoint, self._configured)
        self._configured[key] = _Configured(endpoint, listener)
        return listener

    def after_restart(self, listener: Listener) -> str:
        """Tell what a restart makes of a listener: it is the `same`, `changed` or `gone`."""
        endpoint = listener.endpoint
        for one in self._configured.values():
            if one.listener is listener:
                is_port_free = not one.endpoint.port and not one.endpoint.path
                port = endpoint.port if is_port_free else one.endpoint.port
                meant = self._prepare(dataclasses.replace(one.endpoint, port=port))
                return "same" if meant == endpoint else "changed"
        return "gone"

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
        listener = self._move(before, endpoint) if is_moved else self._replace(before, endpoint)
        if name in self._added:
            del self._added[name]
            self._added[listener.endpoint.name] = settings
        self._swap(before, listener)
        self._on_changed(self.endpoints)
        return listener

    def _replace(
        self, before: Listener, endpoint: Endpoint, own: Listener | None = None
    ) -> Listener:
        """Put other rules in place of a listener's, on its socket.

        `own`: the listener of another address whose connections count for the new one.
        """
        prepared = self._prepare(endpoint)
        listener = Listener(self._context, prepared, take_over=before, before=own)
        listener.start()
        self.open[self.open.index(before)] = listener
        return listener

    def _move(self, before: Listener, endpoint: Endpoint) -> Listener:
        """Listen on another address instead. ConfigError: the listener stays as it is."""
        try:
            listener = self._open(endpoint, before)
        except ConfigError:
            if not overlap(before.endpoint, endpoint):
                raise
            listener = self._move_within(before, endpoint)
        at = self.open.index(before)
        before.close()
        listener.watch_files()
        self.open[at] = listener
        return listener

    def _move_within(self, before: Listener, endpoint: Endpoint) -> Listener:
        """Listen on an address that the listener's own is part of, or that is part of it."""
        before.close()
        try:
            return self._open(endpoint, before)
        except ConfigError:
            self._reopen(before)
            raise

    def _reopen(self, closed: Listener) -> None:
        """Listen again where a listener has been closed; without one if that fails."""
        at = self.open.index(closed)
        try:
            again = self._open(closed.endpoint, closed)
        except ConfigError:
            del self.open[at]
            self._swap(closed, None)
        else:
            self.open[at] = again
            self._swap(closed, again)

    def _swap(self, before: Listener, now: Listener | None) -> None:
        """Note that another listener is in the place of one of the configuration, or none."""
        for key, one in self._configured.items():
            if one.listener is before:
                self._configured[key] = one._replace(listener=now)

    def close(self, name: str, *, disconnect: bool) -> int:
        """Close a listener; return the number of its connections."""
        listener = self.find(name)
        self._swap(listener, None)
        count = listener.state.connections
        self._close(listener, disconnect=disconnect)
        self._on_changed(self.endpoints)
        return count

    def _close(self, listener: Listener, *, disconnect: bool) -> None:
        listener.close()
        self.open.remove(listener)
        self._added.pop(listener.endpoint.name, None)
        if disconnect:
            self._context.disconnect(listener.state.count)

    def take_up(self, endpoints: Sequence[Endpoint]) -> ListenerOutcome:
        """Put in force what has changed in the configuration.

        Listeners that it has no more are closed, with their connections. One that cannot be opened
        is reported, and tried again at the next reload; the others are taken up.
        """
        wanted = _keyed(endpoints)
        before = self._configured
        fresh = {key: one for key, one in wanted.items() if not self._is_taken_up(key, one)}
        leaving = {key: one for key, one in before.items() if key not in wanted}
        self._configured = {key: one for key, one in before.items() if key in wanted}
        old = [before[key].listener for key in (*leaving, *fresh) if key in before]
        free = [one for one in self.open if one in old or self.is_added(one.endpoint.name)]
        notes = _Notes()
        origins = {key: one.listener for key, one in before.items()}
        holders = {key: self._holder(key, endpoint, free) for key, endpoint in fresh.items()}
        for key, holder in holders.items():  # first, so that each socket finds its new listener
            if holder is not None:
                self._attempt(key, fresh[key], holder, notes, origins.get(key))
        for one in leaving.values():  # before others open, which may need their addresses
            if one.listener in self.open:
                assert one.listener is not None
                notes.on_change(one.listener.endpoint.name, CLOSED, one.listener)
                self._close(one.listener, disconnect=True)
        in_use = [one.listener for one in self._configured.values()]
        for listener in [one for one in self.open if one in old and one not in in_use]:
            self._close(listener, disconnect=False)  # its place is taken, on another socket
        for key, holder in holders.items():
            if holder is None:
                self._attempt(key, fresh[key], None, notes, None)
        self._configured = {key: self._configured[key] for key in wanted if key in self._configured}
        if notes.changes:
            self._on_changed(self.endpoints)
        in_force = tuple(one.endpoint for one in self._configured.values())
        return ListenerOutcome(tuple(notes.changes), notes.failed, in_force)

    def _is_taken_up(self, key: str, endpoint: Endpoint) -> bool:
        return key in self._configured and self._configured[key].endpoint == endpoint

    def _holder(self, key: str, endpoint: Endpoint, free: Sequence[Listener]) -> Listener | None:
        """Return the listener that has this address and may give its socket away."""
        own = self._configured.get(key)
        if own is not None and own.listener is not None and str(own.endpoint) == str(endpoint):
            return own.listener
        return next((one for one in free if str(one.endpoint) == str(endpoint)), None)

    def _attempt(
        self,
        key: str,
        endpoint: Endpoint,
        holder: Listener | None,
        notes: _Notes,
        origin: Listener | None,
    ) -> None:
        """Open or change a listener, on the socket of `holder` if it has one; note the outcome.

        `origin`: the listener before this reload, whose socket another one may have by now.
        """
        own = self._configured[key].listener if key in self._configured else None
        try:
            self._check_meant(endpoint)
            listener = self._set_up(endpoint, holder, own if holder is None else origin)
        except ConfigError as error:
            left = "it is not open" if own is None else f"{own.endpoint.url} stays as it was"
            notes.failed[f"listener {endpoint.name}"] = f"{error}; {left}"
            if own is None:
                self._configured.pop(key, None)
            return
        replaced = origin or own or holder
        if holder is not None:
            self._added.pop(holder.endpoint.name, None)
            self._swap(holder, None)
        self._configured[key] = _Configured(endpoint, listener)
        notes.on_change(listener.endpoint.name, listener.endpoint.url, replaced, endpoint.place)

    def _set_up(
        self, endpoint: Endpoint, holder: Listener | None, own: Listener | None
    ) -> Listener:
        if holder is not None:
            if not endpoint.path:
                endpoint = dataclasses.replace(endpoint, port=holder.endpoint.port)
            return self._replace(holder, endpoint, own)
        if own is not None:
            return self._move(own, endpoint)
        listener = self._open(endpoint)
        self.open.append(listener)
        return listener

    def close_all(self) -> None:
        """Listen no more."""
        for listener in self.open:
            listener.close()
        self.open.clear()

    def _open(self, endpoint: Endpoint, before: Listener | None = None) -> Listener:
        try:
            listener = Listener(self._context, self._prepare(endpoint), before=before)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        listener.start()
        return listener

    def _check(self, endpoint: Endpoint, others: Sequence[Endpoint]) -> None:
        check_addresses([*others, endpoint])
        if any(endpoint.name == one.name for one in others):
            raise ConfigError(f"a listener is named {endpoint.name!r} already")
        self._check_meant(endpoint)

    def _check_meant(self, endpoint: Endpoint) -> None:
        is_meant = self.is_open_to_all or self.has_access or is_guarded(endpoint)
        if not (is_meant or is_local(endpoint)):
            raise ConfigError(
                f"{endpoint} can be reached from other machines and clients need not log in: "
                "set allow_anonymous = true, or listen on 127.0.0.1"
            )


def _endpoint_of(settings: Mapping[str, Any]) -> Endpoint:
    found = read_listeners([dict(settings)], "")
    return dataclasses.replace(found[0], place="")


def _free_key(endpoint: Endpoint, taken: Collection[str]) -> str:
    """Return the name of a listener, or its address; several may have port 0."""
    key, number = endpoint.name, 1
    while key in taken:
        number += 1
        key = f"{endpoint.name} {number}"
    return key


def _keyed(endpoints: Sequence[Endpoint]) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        found[_free_key(endpoint, found)] = endpoint
    return found


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

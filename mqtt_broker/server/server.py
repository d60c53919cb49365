"""The server: sockets, services and the core on one event loop, from start to stop."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.runtime.runtime import FailedClient
from mqtt_broker.server.config.config import Config, is_local
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.context import NetContext
from mqtt_broker.server.net.event_loop import attach
from mqtt_broker.server.net.listener import Listener
from mqtt_broker.server.process.log_limiter import ErrorLog, LogLimiter, shown
from mqtt_broker.server.process.reload import Reload
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.payload_schemas import SchemaChecks
from mqtt_broker.topics.shared import STRATEGIES, StrategyFactory
from sessions.journal.journal import MODES

if TYPE_CHECKING:
    from mqtt_broker.server.process.watchdog import Watchdog
    from mqtt_broker.server.services.security import SecurityService
    from mqtt_broker.server.services.storage import StorageService
    from mqtt_broker.server.services.streams import StreamService

_STOP_S: Final = 1.0  # how long clients have to read their last packet
_SETTLE_S: Final = 5.0  # how long the store has to take what its acknowledgements wait for
_STORE_STOP_S: Final = 5.0  # and then to close
_log = logging.getLogger("fleetmq")


class Server:
    """A broker on one event loop, from `start` to `stop`."""

    def __init__(
        self,
        config: Config,
        access: Access | None = None,
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        errors = ErrorLog(_log)
        self.turn = Turn(self.loop, errors.write)
        poller, self._detach = attach(self.loop, self.turn.end)
        poller.on_error = errors.write
        self._report = errors.write
        self._lines = LogLimiter(lambda line: _log.info("%s", line), self.turn.now)
        self.reload = Reload(self.loop)
        self.storage: StorageService | None = None  # None: everything is kept in memory
        self.streams: StreamService | None = None
        self.security: SecurityService | None = None  # None: `access` is the embedder's, or open
        self.watchdog: Watchdog | None = None  # of the command; embedders need have none
        self._listeners: list[Listener] = []
        try:
            if config.needs_store:
                # Not above: a broker in memory starts without SQL, in a third of the time.
                from mqtt_broker.server.services.storage import StorageService

                self.storage = StorageService(config, self.loop, self.turn)
                self.streams = self.storage.streams
            if access is None and config.security.is_on:
                # Not above, for the same reason: hashing, keys and SQL.
                from mqtt_broker.server.services.security import open_security_service

                self.security = open_security_service(config, self.loop, self.turn, self.reload)
                access = self.security.authenticator
            strategy = load_strategy(config.settings.shared_strategy)
        except Exception:
            self._abandon()
            raise
        checks = payload_checks
        if checks is None and config.schemas:
            checks = SchemaChecks(config.schemas)
        self.broker = Broker(
            config.settings,
            now=self.now(),
            rng=random.Random(),
            access=access,
            log=self.log,
            on_bug=self._on_bug,
            heap_bytes=_resident_bytes,
            strategy=strategy,
            journal=self.storage.journal if self.storage is not None else None,
            durabilities=[(text, MODES[mode]) for text, mode in config.durabilities],
            checks=checks,
        )
        self.turn.serve(self.broker, self.storage.after_turn if self.storage is not None else None)
        self.net = NetContext(
            self.loop,
            poller,
            self.turn,
            self.broker,
            connection_filter=self.security.authenticator if self.security is not None else None,
            reload=self.reload,
            log=self.log,
        )

    def now(self) -> float:
        """Return the broker's time in seconds."""
        return self.turn.now()

    def log(self, line: str) -> None:
        """Log a line that a client caused; the rate of such lines is limited."""
        self._lines.write(line)

    def start(self) -> list[Endpoint]:
        """Listen on every endpoint and return them with the ports they got; ConfigError when one
        cannot be opened, and then nothing listens.
        """
        try:
            for endpoint in self.config.endpoints:
                self._listeners.append(Listener(self.net, endpoint))
        except ConfigError:
            self._abandon()
            raise
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            self._abandon()
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        if self.storage is not None:
            self.storage.start(self.broker)
        if self.security is not None:
            self.security.start(self.broker)
        for listener in self._listeners:
            listener.start()
            _warn_of_open_proxy(listener.endpoint)
        self.turn.start()
        return [listener.endpoint for listener in self._listeners]

    def _abandon(self) -> None:
        """Release everything: the server does not start."""
        self._close_listeners()
        self.reload.close()
        self._detach()
        if self.security is not None:
            self.security.stop()
        if self.storage is not None:
            self.storage.abandon()

    async def stop(self) -> bool:
        """Tell every client, give them a moment to read it, and release everything.

        False when the store could not take all changes; none of those was acknowledged.
        """
        self._close_listeners()
        self.reload.close()
        links = self.net.links
        for link in list(links):
            if link.connection is None:  # its layers are still opening
                link.abort()
        if self.storage is not None:  # acknowledgements that wait for it still leave
            for link in links:
                link.pause_reading()
            await self.storage.settle(_SETTLE_S)
        self.broker.stop(self.now())
        self.broker.flush(self.now())
        try:
            await asyncio.wait_for(self.net.idle.wait(), _STOP_S)
        except TimeoutError:
            for link in list(links):
                link.abort()
        is_stored = self.storage is None or await self.storage.stop(_STORE_STOP_S)
        if self.security is not None:
            self.security.stop()
        self.turn.stop()
        self._detach()
        return is_stored

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _on_bug(self, connection: FailedClient | None, data: bytes, error: Exception) -> None:
        """Log an internal error with the bytes that caused it, so that it can be reproduced.

        The bytes of the read that held a CONNECT are left out: a password may be among them.
        """
        if connection is None:
            self._report(error)
            return
        is_in = connection.has_session and connection.connected_at < self.turn.at
        _log.error(
            "%s: internal error, connection closed; its last bytes: %s",
            shown(connection.name),
            data[:4096].hex() if is_in else "of its CONNECT, which may hold a password",
            exc_info=error,
        )


def _warn_of_open_proxy(endpoint: Endpoint) -> None:
    proxy = endpoint.rules.proxy
    if proxy is not None and not proxy.trusted and not is_local(endpoint):
        _log.warning(
            "%s: every peer may claim any client address; list your balancers in proxy_protocol's "
            "trusted",
            endpoint.name,
        )


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def load_strategy(name: str) -> StrategyFactory:
    """Return the strategy of this name, or the user's own class by `package.module:Class`."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    module_name, _, class_name = name.partition(":")
    try:
        found: StrategyFactory = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a user's module may fail in any way when it is imported
        raise ConfigError(f"shared_strategy {name}: {error}") from error
    if not callable(found):
        raise ConfigError(f"shared_strategy {name}: not a class")
    return found

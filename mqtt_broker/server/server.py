"""The broker core wired to an event loop: sockets in, time in, bytes out.

In a turn every socket that is ready is read and its packets are acted upon; then `_end_turn`
writes once to each peer that got something. All timers of the core are one timer of the loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.server.config.config import Config, ConfigError, is_local
from mqtt_broker.server.config.schemas import SchemaChecks
from mqtt_broker.server.net.event_loop import attach
from mqtt_broker.server.net.handshake_queue import HandshakeQueue
from mqtt_broker.server.net.link import READ_BYTES, SocketLink
from mqtt_broker.server.net.listener import Endpoint, Listener
from mqtt_broker.server.process.log_limiter import LogLimiter, shown
from mqtt_broker.server.process.reload import Reload
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
_SLEEP_S_MAX: Final = 3600.0
_TURN_AGAIN_S: Final = 0.2  # until the end of a turn that failed is tried again
_ERROR_AGAIN_S: Final = 10.0  # until an error of ours that comes again is shown again
_log = logging.getLogger("fleetmq")


class Server:
    """One broker on one event loop, from `start` to `stop`."""

    def __init__(self, config: Config, access: Access | None = None) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.turns, self._detach = attach(self.loop, self._end_turn)
        self.turns.on_error = self._on_error
        # Deadlines count in wall-clock seconds, so that they mean something after a restart,
        # and never jump: the clock is read once and monotonic time is added.
        self._epoch = time.time() - time.monotonic()
        self.turn_at = self.now()  # when the last socket was read
        self._lines = LogLimiter(lambda line: _log.info("%s", line), self.now)
        self.reload = Reload(self.loop)
        self.durable: StorageService | None = None
        self.telemetry: StreamService | None = None
        self.guardian: SecurityService | None = (
            None  # who asks clients who they are; None: nobody does
        )
        self.watchdog: Watchdog | None = None  # of the command; embedders need have none
        try:
            if config.needs_store:
                # Not above: what keeps nothing starts without SQL, in a third of the time.
                from mqtt_broker.server.services.storage import StorageService

                self.durable = StorageService(self, config)
                self.telemetry = self.durable.telemetry
            if access is None and config.security.is_on:
                # Not above, for the same reason: hashing, keys and SQL.
                from mqtt_broker.server.services.security import open_security_service

                self.guardian = open_security_service(self, config.security)
                access = self.guardian.door
            strategy = load_strategy(config.settings.shared_strategy)
        except Exception:
            if self.guardian is not None:
                self.guardian.stop()
            if self.durable is not None:
                self.durable.abandon()
            self._detach()
            raise
        self.broker = Broker(
            config.settings,
            now=self.now(),
            rng=random.Random(),
            access=access,
            log=self.log,
            on_bug=self._on_bug,
            heap_bytes=_resident_bytes,
            strategy=strategy,
            journal=self.durable.journal if self.durable is not None else None,
            durabilities=[(text, MODES[mode]) for text, mode in config.durabilities],
        )
        if config.schemas:
            self.broker.checks = SchemaChecks(config.schemas)
        self.read_buffer = bytearray(READ_BYTES)
        self.read_view = memoryview(self.read_buffer)
        self.openings = HandshakeQueue(self)
        self._listeners: list[Listener] = []
        self._links: set[SocketLink] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._again: asyncio.TimerHandle | None = None  # the end of a turn that failed
        self._error_said = ""
        self._error_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    def now(self) -> float:
        return time.monotonic() + self._epoch

    def log(self, line: str) -> None:
        """What clients bring about."""
        self._lines.write(line)

    def start(self) -> list[Endpoint]:
        """Listen everywhere, or nowhere and raise; the addresses with the ports they got."""
        try:
            for endpoint in self.config.endpoints:
                self._listeners.append(Listener(self, endpoint))
        except ConfigError:
            self._abandon()
            raise
        except (OSError, ValueError) as error:  # ValueError: a name that is none
            self._abandon()
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        if self.durable is not None:
            self.durable.start()
        if self.guardian is not None:
            self.guardian.start()
        for listener in self._listeners:
            listener.start()
            rules = listener.rules
            if rules.proxy is not None and not rules.proxy.trusted:
                if not is_local(listener.endpoint):
                    _log.warning(
                        "%s: whoever reaches it may say where it comes from: see proxy_protocol's "
                        "trusted",
                        listener.endpoint.name,
                    )
        self._arm()
        return [listener.endpoint for listener in self._listeners]

    def _abandon(self) -> None:
        """It did not start: let go of everything."""
        self._close_listeners()
        self.reload.close()
        self._detach()
        if self.guardian is not None:
            self.guardian.stop()
        if self.durable is not None:
            self.durable.abandon()

    async def stop(self) -> bool:
        """Tell every client, give them a moment to read it, and let go of everything.

        False when the store could not take all there was; nobody was promised any of that.
        """
        self._close_listeners()
        self.reload.close()
        for link in list(self._links):
            if link.connection is None:  # on the way in
                link.abort()
        if self.durable is not None:  # what is promised to clients now still reaches them
            for link in self._links:
                link.pause_reading()
            await self.durable.settle(_SETTLE_S)
        self.broker.stop(self.now())
        self.broker.flush(self.now())
        try:
            await asyncio.wait_for(self._idle.wait(), _STOP_S)
        except TimeoutError:
            for link in list(self._links):
                link.abort()
        is_stored = self.durable is None or await self.durable.stop(_STORE_STOP_S)
        if self.guardian is not None:
            self.guardian.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._detach()
        return is_stored

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    # Links.

    def track(self, link: SocketLink) -> None:
        self._links.add(link)
        self._idle.clear()

    def adopt(self, link: SocketLink) -> None:
        """MQTT begins on it."""
        self.track(link)
        now = self.now()
        connection = self.broker.accept(link, now)
        seconds = link.rules.connect_timeout_s
        if seconds:
            connection.expect_connect(seconds, now)
        link.start(connection)

    def admits(self, link: SocketLink) -> bool:
        """Whether the link may go on, now that it is known who is there. Nothing is said if not."""
        guardian = self.guardian
        if guardian is None:
            return True
        why = guardian.door.turns_away(link.peer)
        link.is_admitted = not why
        if why:
            self.refuse(link.listener, why, link.peer, "")
        return link.is_admitted

    def refuse(self, listener: str, reason: str, peer: str, detail: str) -> None:
        """A connection that does not come in, or whose layers broke: counted and logged."""
        self.broker.stats.refuse("connection", reason)
        who = f"{listener}: {peer}" if peer else listener
        self.log(f"{who}: refused, {reason}: {detail}" if detail else f"{who}: refused, {reason}")

    def on_released(self, link: SocketLink) -> None:
        self._links.discard(link)
        if link.is_admitted and self.guardian is not None:
            self.guardian.door.left(link.peer)
        if not self._links:
            self._idle.set()

    # Turns and time.

    def end_turn(self) -> None:
        """Something happened outside the sockets' turns."""
        self.turn_at = self.now()
        self._end_turn()

    def _end_turn(self) -> None:
        """Nothing that fails here may keep the rest from happening, or end the process."""
        broker = self.broker
        try:
            if broker.dirty or (broker.dead_letters is not None and len(broker.dead_letters)):
                broker.flush(self.turn_at)
        except Exception as error:
            self._try_again(error)
        try:
            journal = broker.journal
            if journal is not None and journal.is_waiting and self.durable is not None:
                self.durable.after_turn()
        except Exception as error:
            self._try_again(error)
        if broker.timers.earliest < self._timer_at:
            self._arm()

    def _try_again(self, error: Exception) -> None:
        """A turn is not over: it ends a little later, whether anything else happens or not."""
        self._on_error(error)
        if self._again is None:  # one is enough, however many turns fail
            self._again = self.loop.call_later(_TURN_AGAIN_S, self._end_turn_again)

    def _end_turn_again(self) -> None:
        self._again = None
        self.end_turn()

    def guard(self, act: Callable[[], None]) -> None:
        """Do something; an error of ours is logged, and what follows happens all the same."""
        try:
            act()
        except Exception as error:
            self._on_error(error)

    def _arm(self) -> None:
        """See to it that the loop wakes us for the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.broker.timers.next()
        delay = min(max(0.0, self._timer_at - self.now()), _SLEEP_S_MAX)
        self._timer = self.loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self.now()
        try:
            self.broker.tick(now)
        except Exception as error:
            self._on_error(error)
        self.end_turn()
        self._arm()

    def _on_bug(self, connection: Connection | None, data: bytes, error: Exception) -> None:
        """Our mistake. The bytes that brought it out are logged, so that it can be replayed.

        Not those that came with its CONNECT: there a password is among them.
        """
        if connection is None:
            self._on_error(error)
            return
        is_in = connection.has_session and connection.connected_at < self.turn_at
        _log.error(
            "%s: internal error, connection closed; its last bytes: %s",
            shown(connection.name),
            data[:4096].hex() if is_in else "of its CONNECT, which may hold a password",
            exc_info=error,
        )

    def _on_error(self, error: Exception) -> None:
        """Log an error of ours; one that comes in every turn, once in a while."""
        said = repr(error)
        now = self.now()
        if said != self._error_said or now - self._error_at > _ERROR_AGAIN_S:
            self._error_said, self._error_at = said, now
            _log.error("internal error", exc_info=error)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def load_strategy(name: str) -> StrategyFactory:
    """A ready strategy, or the user's own class by `package.module:Class`."""
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

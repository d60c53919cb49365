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
from typing import Final

from mqtt_broker.core.access import Access
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.connection import Connection
from mqtt_broker.server.config import Config, ConfigError
from mqtt_broker.server.links import READ_BYTES, SocketLink
from mqtt_broker.server.listeners import Endpoint, Listener
from mqtt_broker.server.loop import attach
from mqtt_broker.topics.shared import STRATEGIES, StrategyFactory

_STOP_S: Final = 1.0  # how long clients have to read their last packet
_SLEEP_S_MAX: Final = 3600.0
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
        self.broker = Broker(
            config.settings,
            now=self.now(),
            rng=random.Random(),
            access=access,
            log=self.log,
            on_bug=self._on_bug,
            heap_bytes=_resident_bytes,
            strategy=load_strategy(config.settings.shared_strategy),
        )
        self.read_buffer = bytearray(READ_BYTES)
        self.read_view = memoryview(self.read_buffer)
        self._listeners: list[Listener] = []
        self._links: set[SocketLink] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._idle = asyncio.Event()
        self._idle.set()

    def now(self) -> float:
        return time.monotonic() + self._epoch

    def log(self, line: str) -> None:
        _log.info("%s", line)

    def start(self) -> list[Endpoint]:
        """Listen everywhere, or nowhere and raise; the addresses with the ports they got."""
        try:
            for endpoint in self.config.endpoints:
                self._listeners.append(Listener(self, endpoint))
        except (OSError, ValueError) as error:  # ValueError: a name that is none
            self._close_listeners()
            self._detach()
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        for listener in self._listeners:
            listener.start()
        self._arm()
        return [listener.endpoint for listener in self._listeners]

    async def stop(self) -> None:
        """Tell every client, give them a moment to read it, and let go of everything."""
        self._close_listeners()
        self.broker.stop(self.now())
        self.broker.flush(self.now())
        try:
            await asyncio.wait_for(self._idle.wait(), _STOP_S)
        except TimeoutError:
            for link in list(self._links):
                link.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._detach()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    # Links.

    def adopt(self, link: SocketLink) -> None:
        self._links.add(link)
        self._idle.clear()
        link.start(self.broker.accept(link, self.now()))

    def on_released(self, link: SocketLink) -> None:
        self._links.discard(link)
        if not self._links:
            self._idle.set()

    # Turns and time.

    def _end_turn(self) -> None:
        broker = self.broker
        if broker.dirty:
            broker.flush(self.turn_at)
        if broker.timers.earliest < self._timer_at:
            self._arm()

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
            self.broker.flush(now)
        finally:
            self._arm()

    def _on_bug(self, connection: Connection | None, data: bytes, error: Exception) -> None:
        """Our mistake. The bytes that brought it out are logged, so that it can be replayed."""
        if connection is None:
            self._on_error(error)
            return
        _log.error(
            "%s: internal error, connection closed; its last bytes: %s",
            connection.name,
            data[:4096].hex(),
            exc_info=error,
        )

    def _on_error(self, error: Exception) -> None:
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

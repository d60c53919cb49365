"""The server: sockets, services and the core on one event loop, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtt_broker.core import sys_topics
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.runtime.runtime import FailedClient
from mqtt_broker.server.config.changes import ListenerOutcome
from mqtt_broker.server.config.config import Config, StartError, is_local
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.listener_service import ListenerService
from mqtt_broker.server.net.context import NetContext
from mqtt_broker.server.net.event_loop import attach
from mqtt_broker.server.process import log_output
from mqtt_broker.server.process.client_lines import ClientLines
from mqtt_broker.server.process.descriptors import Descriptors
from mqtt_broker.server.process.log_limiter import ErrorLog, LogLimiter, shown
from mqtt_broker.server.process.reload import Reload
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.config_reload import ConfigReload
from mqtt_broker.server.services.extensions import load_strategy
from mqtt_broker.server.services.payload_schemas import SchemaChecks
from mqtt_broker.server.services.secret_files import warn_of_open_secrets
from sessions.journal.journal import MODES

if TYPE_CHECKING:
    from mqtt_broker.server.net.listener import Listener
    from mqtt_broker.server.process.watchdog import Watchdog
    from mqtt_broker.server.services.backups import BackupService
    from mqtt_broker.server.services.flight_recorder import FlightRecorder
    from mqtt_broker.server.services.security import SecurityService
    from mqtt_broker.server.services.storage import StorageService
    from mqtt_broker.server.services.streams import StreamService
    from mqtt_broker.server.services.telemetry import Telemetry

STOP_S: Final = 1.0  # how long clients have to read their last packet
_WORK_S: Final = 5.0  # how long the work that clients caused before may take
_SETTLE_S: Final = 5.0  # how long the store has for changes that acknowledgements wait for
_STORE_STOP_S: Final = 5.0  # how long it then has to close
FILES_OF_PARTITION: Final = 2  # a segment and its index
_log = logging.getLogger("fleetmq")

_HINTS: Final = {
    errno.EADDRINUSE: "end the program that listens there, or choose another port",
    errno.EADDRNOTAVAIL: "name an address of this machine",
    errno.EACCES: "choose a port from 1024, or a path that may be written",
}


class Server:
    """A broker on one event loop, from `start` to `stop`."""

    def __init__(
        self,
        config: Config,
        access: Access | None = None,
        payload_checks: PayloadChecks | None = None,
        *,
        ahead_s: float = 0.0,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`ahead_s`: the clock's lead, for tests; `on_progress` learns what the start is at."""
        self.config = config
        self.is_stopping = False  # any thread may read it
        self._has_access = access is not None or config.security.has_auth  # clients log in
        self.loop = asyncio.get_running_loop()
        errors = ErrorLog(_log)
        self.turn = Turn(self.loop, errors.write, ahead_s)
        poller, self._detach = attach(self.loop, self.turn.end)
        poller.on_error = errors.write
        self._errors = errors
        self._lines = LogLimiter(lambda line: _log.info("%s", line), self.turn.now)
        self.client_lines = ClientLines(self.turn.now, is_on=config.log_connections)
        self.log_ring: log_output.LogRing | None = None  # of the command; see `keep_log`
        self._sys_log = log_output.SysLog(self._publish_line)
        self.reload = Reload(self.loop)
        self.config_reload = ConfigReload(config, self._apply, self._take_up_listeners)
        self.storage: StorageService | None = None  # None: everything is kept in memory
        self.streams: StreamService | None = None
        self.backups: BackupService | None = None  # None: there is nothing to back up
        self.security: SecurityService | None = None  # None: `access` is the embedder's, or open
        self.watchdog: Watchdog | None = None  # of the command; embedders need have none
        try:
            if config.needs_store:
                _check_locks()
                # Not above: a broker in memory starts without SQL, in a third of the time.
                from mqtt_broker.server.services.backups import BackupService
                from mqtt_broker.server.services.storage import StorageService

                self.storage = StorageService(config, self.loop, self.turn, on_progress)
                self.streams = self.storage.streams
                self.backups = BackupService(
                    self.storage.store, self.streams.log, Path(config.data_dir)
                )
            if access is None and config.security.is_on:
                # Not above, for the same reason: hashing, keys and SQL.
                from mqtt_broker.server.services.security import open_security_service

                self.security = open_security_service(config, self.loop, self.turn, self.reload)
                access = self.security.authenticator
            strategy = load_strategy(config.settings.shared_strategy)
        except Exception:
            self._release()
            raise
        self.telemetry = _telemetry(config)
        checks = payload_checks
        if checks is None and config.schemas:
            checks = SchemaChecks(config.schemas)
        self.broker = Broker(
            config.settings,
            now=self.now(),
            rng=random.Random(),
            # The output of the other one tells its state, and with it every name to come.
            id_rng=random.SystemRandom(),
            access=access,
            log=self.log,
            client_log=self.client_lines,
            message_tracer=self.telemetry,
            on_bug=self._on_bug,
            heap_bytes=_resident_bytes,
            strategy=strategy,
            journal=self.storage.journal if self.storage is not None else None,
            durabilities=[(text, MODES[mode]) for text, mode in config.durabilities],
            checks=checks,
        )
        self._flight_recorder: FlightRecorder | None = None  # until somebody asks
        poller.measure(self.broker.on_turn)
        self.turn.serve(self.broker, self.storage.after_turn if self.storage is not None else None)
        self.descriptors = Descriptors(lambda line: _log.warning("%s", line), self._open_files)
        self.broker.runtime.metrics.add("accept", self._accept_figures, "accept/")
        self.net = NetContext(
            self.loop,
            poller,
            self.turn,
            self.broker,
            connection_filter=self.security.authenticator if self.security is not None else None,
            reload=self.reload,
            log=self.log,
            descriptors=self.descriptors,
        )
        self.listener_service = ListenerService(
            self.net, self._against_foreign_pages, self._on_listeners
        )
        self.listener_service.meant(
            is_open_to_all=config.allow_anonymous, has_access=self._has_access
        )

    @property
    def flight_recorder(self) -> FlightRecorder | None:
        """The answers of the recorder; None: nothing is recorded."""
        recorder = self.broker.recorder
        if self._flight_recorder is None and recorder is not None:
            # Not above: a broker in memory without HTTP is asked nothing.
            from mqtt_broker.server.services.flight_recorder import FlightRecorder

            data_dir = Path(self.config.data_dir) if self.storage is not None else None
            self._flight_recorder = FlightRecorder(
                self.broker, recorder, self.loop, self.turn, data_dir
            )
        return self._flight_recorder

    @property
    def listeners(self) -> list[Listener]:
        """The listeners that are open."""
        return self.listener_service.open

    def certificate_ends(self) -> dict[str, float]:
        """Return when the first certificate of each TLS listener ends, as Unix time."""
        found: dict[str, float] = {}
        for listener in self.listeners:
            tls = listener.layers.tls if listener.layers is not None else None
            if tls is not None and "cert" in tls.pem:
                # Not above: a library that only brokers with TLS need.
                from mqtt_broker.server.net.certificate_ends import ends_of

                ends = list(ends_of(tls.pem["cert"]))
                if ends:
                    found[listener.endpoint.name] = min(ends)
        return found

    def _on_listeners(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Note that listeners were added, changed or closed while the broker runs."""
        if self.security is not None:
            self.security.use_endpoints(endpoints)

    def now(self) -> float:
        """Return the broker's time in seconds."""
        return self.turn.now()

    def log(self, line: str) -> None:
        """Log a line that a client caused; the rate of such lines is limited."""
        self._lines.write(line)

    def start(self) -> list[Endpoint]:
        """Listen on every endpoint and return them with the ports they got.

        Raises ConfigError when one cannot be opened; then nothing listens.
        """
        try:
            for endpoint in self.config.endpoints:
                self.listener_service.listen(endpoint)
        except ConfigError:
            self._abandon()
            raise
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            self._abandon()
            where = f"{endpoint.place}: " if endpoint.place else ""
            reason = _why_not_listening(error)
            raise ConfigError(f"{where}cannot listen on {endpoint}: {reason}") from None
        if self.storage is not None:
            self.storage.start(self.broker)
        if self.security is not None:
            self.security.start(self.broker)
        self.config_reload.watch(self.reload)
        for listener in self.listeners:
            listener.start()
            _warn_of_open_proxy(listener.endpoint)
        warn_of_open_secrets(self.config)
        self._warn_of_slow_frames()
        self._set_sys_log(self.config.sys_log)
        if self.storage is not None and self.flight_recorder is not None:
            self.flight_recorder.start()  # events go to the disk
        self.turn.start()
        return [listener.endpoint for listener in self.listeners]

    def _take_up_listeners(self, endpoints: Sequence[Endpoint]) -> ListenerOutcome:
        return self.listener_service.take_up(endpoints)

    def _apply(self, config: Config) -> None:
        """Put the live keys of a configuration that was read again in force."""
        before, self.config = self.config, config
        if config.log_level != before.log_level:  # else what an operator chose stays
            log_output.set_level(config.log_level)
        if config.log_format != before.log_format:
            log_output.set_format(config.log_format)
        self.client_lines.turn(is_on=config.log_connections)
        self._set_sys_log(config.sys_log)
        self.broker.change_settings(config.settings, self.now())
        self.turn.end_now()

    def keep_log(self) -> None:
        """Keep the last lines of the log for the API; for the command, whose process is its own."""
        self.log_ring = log_output.LogRing()
        _log.addHandler(self.log_ring)

    def _set_sys_log(self, level: str) -> None:
        """Publish log lines from this level on, or none with `off`."""
        _log.removeHandler(self._sys_log)
        if level != "off":
            self._sys_log.setLevel(level.upper())
            _log.addHandler(self._sys_log)

    def _publish_line(self, letter: str, text: str) -> None:
        """Publish a log line of any thread under `$SYS/broker/log/`."""

        def publish() -> None:
            sys_topics.publish_log_line(self.broker.state, letter, text, self.now())
            self.turn.end_now()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(publish)

    def _warn_of_slow_frames(self) -> None:
        """Log a warning if there are WebSocket listeners and their frames are parsed slowly."""
        if not any(one.endpoint.rules.websocket for one in self.listeners):
            return
        from mqtt_broker.server.net.websocket_library import slow_because  # two libraries

        if slow_because:
            _log.warning(
                "WebSocket frames are parsed by the package websockets, twenty times slower: %s; "
                "install aiohttp 3.11 or later",
                slow_because,
            )

    def _against_foreign_pages(self, endpoint: Endpoint) -> Endpoint:
        """Admit only pages of this machine to a WebSocket listener that loopback alone protects.

        A browser on this machine connects wherever a page asks it to, whatever site it is from.
        """
        rules, config = endpoint.rules, self.config
        is_meant = config.allow_anonymous or rules.allow_anonymous or self._has_access
        if rules.websocket is None or is_meant or endpoint.path or not is_local(endpoint):
            return endpoint
        websocket = replace(rules.websocket, own_pages_only=True)
        return replace(endpoint, rules=replace(rules, websocket=websocket))

    def _abandon(self) -> None:
        """Release everything: the server does not start."""
        self.listener_service.close_all()
        self._release()

    def _release(self) -> None:
        self._stop_logging()
        self.reload.close()
        self._detach()
        if self.security is not None:
            self.security.stop()
        if self.backups is not None:
            self.backups.stop()
        if self.storage is not None:
            self.storage.abandon()

    async def stop(self) -> bool:
        """Disconnect every client, give them a moment to read it, and release everything.

        Return False when the store could not take all changes; none of those was acknowledged.
        """
        self.is_stopping = True
        self.listener_service.close_all()
        self.reload.close()
        links = self.net.links
        for link in list(links):
            if link.connection is None:  # its layers are still opening
                link.abort()
        self.broker.stop_reading()
        await self._finish_work()
        if self.storage is not None:  # acknowledgements that wait for it still leave
            await self.storage.settle(_SETTLE_S)
        self.broker.stop(self.now())
        self.broker.flush(self.now())
        try:
            await asyncio.wait_for(self.net.idle.wait(), STOP_S)
        except TimeoutError:
            for link in list(links):
                link.abort()
        if self.backups is not None:
            await self.loop.run_in_executor(None, self.backups.stop)
        if self._flight_recorder is not None:
            await self._flight_recorder.stop()
        is_stored = self.storage is None or await self.storage.stop(_STORE_STOP_S)
        if self.security is not None:
            self.security.stop()
        self.turn.stop()
        self._detach()
        self._stop_logging()
        if self.telemetry is not None:
            await self.loop.run_in_executor(None, self.telemetry.stop)
        return is_stored

    def kill(self) -> None:
        """Stop as `kill -9` would, for tests.

        Connections break without a DISCONNECT, and changes that the store does not have are lost.
        """
        for link in list(self.net.links):
            link.abort()
        for connection in list(self.broker.links):  # those without a socket as well
            connection.link.abort()
        self.turn.stop()
        self._abandon()

    async def _finish_work(self) -> None:
        """Finish the work that clients caused before the stop, for `_WORK_S` at most."""
        until = self.loop.time() + _WORK_S
        while self.broker.has_more and self.loop.time() < until:
            await asyncio.sleep(0)  # each time round the loop is a turn

    def _stop_logging(self) -> None:
        self._set_sys_log("off")
        if self.log_ring is not None:
            _log.removeHandler(self.log_ring)

    def _open_files(self) -> int:
        """Return how many files the streams may have open."""
        streams = self.streams.log.streams.values() if self.streams is not None else ()
        return FILES_OF_PARTITION * sum(stream.settings.partitions for stream in list(streams))

    def _accept_figures(self) -> dict[str, int]:
        return {"pauses": self.descriptors.pauses}

    def _on_bug(self, connection: FailedClient | None, data: bytes, error: Exception) -> None:
        """Log an internal error with the bytes that caused it, so that it can be reproduced.

        Bytes that were read together with a CONNECT are left out: they may contain a password.
        """
        if connection is None:
            self._errors.write(error)
            return
        is_in = connection.has_session and connection.connected_at < self.turn.at
        last = data[:4096].hex() if is_in else "of its CONNECT, which may contain a password"
        self._errors.write(
            error,
            f"{shown(connection.name)}: internal error, connection closed; its last bytes: {last}",
        )


def _why_not_listening(error: OSError | ValueError) -> str:
    """Return the reason that the system gives, and what can be done about it."""
    if not isinstance(error, OSError):
        return str(error)
    hint = _HINTS.get(error.errno or 0)
    reason = error.strerror or str(error)
    return f"{reason}; {hint}" if hint else reason


def check_telemetry(config: Config) -> None:
    """Check that the libraries for traces are installed, if they are needed; ConfigError."""
    if not config.otel_endpoint:
        return
    try:
        # Not above: the libraries of an extra.
        import mqtt_broker.server.services.telemetry  # noqa: F401
    except ImportError as error:
        raise config.error(
            "otel_endpoint", f"needs the package {error.name}: pip install 'fleetmq[otel]'"
        ) from None


def _telemetry(config: Config) -> Telemetry | None:
    check_telemetry(config)
    if not config.otel_endpoint:
        return None
    from mqtt_broker.server.services.telemetry import Telemetry

    return Telemetry(config.otel_endpoint, config.otel_sample)


def _check_locks() -> None:
    """Raise StartError where files cannot be locked, before any is made."""
    try:
        import fcntl  # noqa: F401  (Windows has none)
    except ImportError:
        raise StartError(
            "data_dir cannot be used here: this system has no fcntl, which locks its files; keep "
            "the state in memory (durability memory, and no streams)"
        ) from None


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

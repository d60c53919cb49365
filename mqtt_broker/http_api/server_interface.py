"""`BrokerInterface` of a running server: calls are answered on its loop or in the log's thread."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from mqtt_broker.http_api.access_admin import ServerAccessAdmin
from mqtt_broker.http_api.directory import ServerDirectory
from mqtt_broker.http_api.operating import ServerOperating
from mqtt_broker.http_api.overview import ServerOverview
from mqtt_broker.http_api.request.access_admin import ACCESS_ADMIN
from mqtt_broker.http_api.request.backups_part import BACKUPS
from mqtt_broker.http_api.request.broker_interface import (
    BanFigures,
    NotSupported,
    Part,
    Snapshot,
    WatchFigures,
)
from mqtt_broker.http_api.request.directory_interface import DIRECTORY
from mqtt_broker.http_api.request.operating import OPERATING
from mqtt_broker.http_api.request.overview_interface import OVERVIEW
from mqtt_broker.http_api.request.recorder_part import RECORDS
from mqtt_broker.http_api.snapshot import ban_figures, seconds_of, snapshot_of, stream_figures
from mqtt_broker.security.protection.audit_log import Audit, to_logger
from mqtt_broker.security.protection.bans import Ban
from mqtt_broker.server.process.watchdog import LOOP
from mqtt_broker.server.server import Server
from mqtt_broker.server.services.streams import StreamService
from mqtt_broker.streams.format.figures import GroupFigures
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings

_T = TypeVar("_T")
NO_STREAMS = "this broker has no streams: it keeps everything in memory; set durability to commit"
NO_BANS = "this broker keeps no bans: set bans_file in [security] of its configuration"
STOPS = "the broker is stopping"


class ServerInterface:
    """Gives the HTTP server access to a running broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parts: dict[object, object] = {
            DIRECTORY: ServerDirectory(server),
            OPERATING: ServerOperating(server, self._ask),
        }
        overview = ServerOverview(server, self._ask)
        overview.start()
        self._parts[OVERVIEW] = overview
        if server.security is not None:
            self._parts[ACCESS_ADMIN] = ServerAccessAdmin(server, server.security, self._ask)
        if server.backups is not None:
            self._parts[BACKUPS] = server.backups
        if server.flight_recorder is not None:
            self._parts[RECORDS] = server.flight_recorder
        self._audit = Audit(to_logger, server.now)  # of a broker without access control

    def part(self, key: Part[_T]) -> _T:
        found = self._parts.get(key)
        if found is None:
            raise NotSupported(f"this broker has no {key.name}")
        return cast(_T, found)

    def watch(self) -> WatchFigures | None:
        watchdog = self._server.watchdog
        if watchdog is None:
            return None
        found = watchdog.look()
        return WatchFigures(
            found.unanswered_s,
            found.loop_late_s,
            tuple(found.why.values()),
            LOOP in found.why,
            watchdog.needs_restart,
        )

    def is_stopping(self) -> bool:
        return self._server.is_stopping

    def audit(self, event: str, **facts: object) -> None:
        security = self._server.security
        audit = self._audit if security is None else security.audit
        audit.note(event, "", **facts)

    def snapshot(self) -> Future[Snapshot]:
        return self._ask(self._snapshot)

    def stream_create(self, settings: StreamSettings) -> Future[None]:
        return self._ask_streams(lambda streams: streams.create(settings))

    def stream_change(self, name: str, changes: Mapping[str, Any]) -> Future[None]:
        return self._ask_streams(lambda streams: streams.change(name, changes))

    def stream_delete(self, name: str) -> Future[None]:
        return self._ask_streams(lambda streams: streams.delete(name))

    def stream_truncate(self, name: str, before: Offsets | None) -> Future[int]:
        return self._ask_streams(lambda streams: streams.trim(name, before))

    def groups(self, stream: str) -> Future[list[GroupFigures]]:
        def find() -> list[GroupFigures]:
            streams = self._streams()
            streams.log.stream(stream)
            return streams.replay.groups(stream)

        return self._ask(find)

    def group_reset(self, name: str, stream: str, offsets: Offsets) -> Future[None]:
        return self._ask(lambda: self._streams().replay.group_reset(name, stream, offsets))

    def group_delete(self, name: str, stream: str) -> Future[None]:
        return self._ask(lambda: self._streams().replay.group_delete(name, stream))

    def bans(self) -> Future[list[BanFigures]]:
        """Return the bans in the calling thread.

        There may be many, and the lists are replaced as a whole, so the loop is not needed.
        """
        security = self._server.security
        found = (
            [] if security is None else ban_figures(security.authenticator.bans, self._server.now())
        )
        done: Future[list[BanFigures]] = Future()
        done.set_result(found)
        return done

    def ban_add(self, ban: Ban) -> Future[None]:
        security = self._server.security
        if security is None or not security.keeps_bans:
            return _failed(NotSupported(NO_BANS))
        return security.add_ban(ban)

    def ban_lift(self, kind: str, value: str) -> Future[bool]:
        security = self._server.security
        if security is None:
            return _failed(NotSupported(NO_BANS))
        return security.lift_ban(kind, value)

    def _streams(self) -> StreamService:
        if self._server.streams is None:
            raise NotSupported(NO_STREAMS)
        return self._server.streams

    def _ask_streams(self, act: Callable[[StreamService], Future[_T]]) -> Future[_T]:
        """Call a method of the stream service in the service's own thread."""
        try:
            return act(self._streams())
        except NotSupported as error:
            return _failed(error)
        except RuntimeError:  # its threads have ended
            return _failed(NotSupported(STOPS))

    def _ask(self, act: Callable[[], _T]) -> Future[_T]:
        """Call `act` on the broker's loop."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # for the caller
                done.set_exception(error)
            self._server.turn.end_now()

        try:
            self._server.loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed
            return _failed(NotSupported(STOPS))
        return done

    def _snapshot(self) -> Snapshot:
        """Return the snapshot of the core, with the figures of the server around it."""
        server = self._server
        found = self._core_snapshot()
        storage = server.storage
        histograms = dict(found.histograms)
        recorder = server.flight_recorder
        files = None if recorder is None else recorder.event_files
        free = size = -1
        if storage is not None:
            histograms["journal_sync"] = seconds_of(storage.store.writer.journal_sync)
            histograms["journal_write"] = seconds_of(storage.store.writer.journal_write)
            if server.streams is not None:
                histograms["log_sync"] = seconds_of(server.streams.log.sync_times)
                histograms["log_write"] = seconds_of(storage.store.writer.log_write)
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(server.config.data_dir)
                free, size = usage.free, usage.total
        return dataclasses.replace(
            found,
            histograms=histograms,
            disk_free_bytes=free,
            disk_size_bytes=size,
            oldest_unfolded_s=0.0 if storage is None else storage.oldest_unfolded_s(),
            certificate_ends=server.certificate_ends(),
            log_lines_left_out=dict(server.client_lines.left_out),
            events_lost=0 if files is None else files.lost,
        )

    def _core_snapshot(self) -> Snapshot:
        server = self._server
        service = server.streams
        if service is None:
            return snapshot_of(server.broker)
        return snapshot_of(
            server.broker,
            [
                stream_figures(
                    stream,
                    appended=stream.appended,
                    refused=stream.refused,
                    groups=service.replay.groups(stream.name),
                )
                for stream in service.log.streams.values()
            ],
            service.replay.figures(),
        )


def _failed(error: Exception) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(error)
    return failed

"""`Operating` of a running server: configuration, log, listeners, health, access decisions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from mqtt_broker.http_api.request.broker_interface import NotSupported
from mqtt_broker.http_api.request.operating import (
    CertificateFile,
    ChangedKey,
    ConfigFigures,
    Explanation,
    HealthPart,
    InvalidChange,
    ListenerFigures,
    LogLineFigures,
    PlacedValue,
    ReloadFigures,
    TableFigures,
    UnknownName,
    ValueInForce,
)
from mqtt_broker.server.config.in_force import tables_in_force, values_in_force
from mqtt_broker.server.config.live_keys import LIVE
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.listener_service import UnknownListener, settings_of
from mqtt_broker.server.net.listener import Listener
from mqtt_broker.server.process import log_output
from mqtt_broker.server.process.reload import Change, ReloadReport
from mqtt_broker.server.server import Server

_RELOAD_S: Final = 8.0  # until an answer says what is still being read
_FREE_SHARE_MIN: Final = 0.1  # of a disk: less is degraded,
_FREE_BYTES_MIN: Final = 100 << 20  # and less than this failing
_LATE_S: Final = 0.5  # a loop that is later than this is degraded
OK: Final = "ok"
DEGRADED: Final = "degraded"
FAILING: Final = "failing"
T = TypeVar("T")


class Ask(Protocol):
    """Calls a function on the broker's loop."""

    def __call__(self, act: Callable[[], T]) -> Future[T]: ...


class ServerOperating:
    """Shows and changes how a server runs."""

    def __init__(self, server: Server, ask: Ask) -> None:
        self._server = server
        self._ask = ask

    # Configuration.

    def config(self) -> ConfigFigures:
        reload = self._server.config_reload
        config = reload.config
        tables = config.source.tables if config.source is not None else {}
        return ConfigFigures(
            config.source.path if config.source is not None else "",
            [
                ValueInForce(one.key, one.value, one.origin, one.default, LIVE.get(one.key, ""))
                for one in values_in_force(config)
            ],
            [
                TableFigures(
                    one.header,
                    one.place,
                    {key: PlacedValue(value, place) for key, (value, place) in one.values.items()},
                )
                for one in tables_in_force(tables)
            ],
            _changed(reload.waiting),
        )

    def reload(self) -> Future[ReloadFigures]:
        done: Future[ReloadFigures] = Future()

        def tell(report: ReloadReport) -> None:
            if not done.done():
                done.set_result(_reload_figures(report))

        def act() -> None:
            report = self._server.reload.report(tell)
            self._server.loop.call_later(_RELOAD_S, tell, report)

        started = self._ask(act)
        started.add_done_callback(lambda found: _pass_error(found, done))
        return done

    # The log.

    def log_level(self) -> str:
        return log_output.level_in_force()

    def set_log_level(self, level: str) -> None:
        log_output.set_level(level)

    def log_lines(self, level: str, text: str, after: int) -> list[LogLineFigures]:
        ring = self._server.log_ring
        if ring is None:
            raise NotSupported("this broker is part of a program, which has the log")
        return [
            LogLineFigures(line.number, line.at, line.level, line.text, line.fields)
            for line in ring.lines(level, text, after)
        ]

    # Health.

    def health(self) -> Future[list[HealthPart]]:
        return self._ask(self._health)

    def _health(self) -> list[HealthPart]:
        return [
            self._store(),
            self._log(),
            self._loop(),
            self._disk(),
            self._certificate_part(),
            self._events(),
        ]

    def _store(self) -> HealthPart:
        server = self._server
        if server.storage is None:
            return HealthPart("store", OK, "everything is kept in memory")
        state = server.broker.backpressure.store_state
        dead = server.storage.dead_threads()
        figures = {"lag_groups": float(server.storage.store.lag)}
        if dead:
            why = f"thread {', '.join(dead)} has ended; restart the broker"
            return HealthPart("store", FAILING, why, figures)
        return HealthPart("store", FAILING if state else OK, state, figures)

    def _log(self) -> HealthPart:
        server = self._server
        if server.streams is None:
            return HealthPart("log", OK, "this broker has no streams")
        is_behind = server.broker.backpressure.is_log_behind
        figures = {"streams": float(len(server.streams.log.streams))}
        why = "publishers wait for the telemetry log" if is_behind else ""
        return HealthPart("log", DEGRADED if is_behind else OK, why, figures)

    def _loop(self) -> HealthPart:
        watchdog = self._server.watchdog
        if watchdog is None:
            return HealthPart("loop", OK)
        found = watchdog.look()
        why = "; ".join(found.why.values())
        figures = {"late_s": found.loop_late_s, "oldest_unanswered_s": found.unanswered_s}
        if why:
            return HealthPart("loop", FAILING, why, figures)
        if found.loop_late_s > _LATE_S:
            late = f"the event loop is {found.loop_late_s:.1f} s late"
            return HealthPart("loop", DEGRADED, late, figures)
        return HealthPart("loop", OK, "", figures)

    def _disk(self) -> HealthPart:
        config = self._server.config
        if self._server.storage is None:
            return HealthPart("disk", OK, "nothing is kept on disk")
        try:
            found = shutil.disk_usage(config.data_dir)
        except OSError as error:
            return HealthPart("disk", FAILING, f"{config.data_dir}: {error.strerror}")
        figures = {"free_bytes": float(found.free), "total_bytes": float(found.total)}
        if found.free < _FREE_BYTES_MIN:
            status = FAILING
        else:
            status = DEGRADED if found.free < found.total * _FREE_SHARE_MIN else OK
        share = 100 * found.free / found.total if found.total else 0.0
        why = "" if status == OK else f"{config.data_dir}: {share:.0f} % of the disk is free"
        return HealthPart("disk", status, why, figures)

    def _certificate_part(self) -> HealthPart:
        ends = self._server.certificate_ends()
        if not ends:
            return HealthPart("certificates", OK, "no listener has TLS")
        name, ends_at = min(ends.items(), key=lambda pair: pair[1])
        left_s = ends_at - self._server.now()
        figures = {"first_ends_in_s": left_s}
        if left_s <= 0:
            why = f"{name}: the certificate has ended"
            return HealthPart("certificates", FAILING, why, figures)
        if left_s < 14 * 86_400:
            why = f"{name}: the certificate ends in {left_s / 86_400:.1f} days"
            return HealthPart("certificates", DEGRADED, why, figures)
        return HealthPart("certificates", OK, "", figures)

    def _events(self) -> HealthPart:
        recorder = self._server.flight_recorder
        if recorder is None:
            return HealthPart("events", OK, "recorder_bytes_max is 0: nothing is recorded")
        files = recorder.event_files
        if files is None:
            return HealthPart("events", OK, "they are kept in memory")
        figures = {"lost": float(files.lost)}
        if not files.failed:
            return HealthPart("events", OK, "", figures)
        why = f"{files.failed}; events of clients are lost until it can be written"
        return HealthPart("events", DEGRADED, why, figures)

    # Listeners.

    def listeners(self) -> Future[list[ListenerFigures]]:
        return self._ask(lambda: [self._figures(one) for one in self._server.listeners])

    def listener_add(self, settings: Mapping[str, Any]) -> Future[ListenerFigures]:
        service = self._server.listener_service
        return self._ask(lambda: self._figures(_checked(lambda: service.add(settings))))

    def listener_change(self, name: str, changes: Mapping[str, Any]) -> Future[ListenerFigures]:
        service = self._server.listener_service
        return self._ask(lambda: self._figures(_checked(lambda: service.change(name, changes))))

    def listener_close(self, name: str, *, disconnect: bool) -> Future[int]:
        service = self._server.listener_service
        return self._ask(lambda: _checked(lambda: service.close(name, disconnect=disconnect)))

    def _figures(self, listener: Listener) -> ListenerFigures:
        endpoint = listener.endpoint
        return ListenerFigures(
            endpoint.name,
            str(endpoint),
            endpoint.url,
            "" if endpoint.path else endpoint.host,
            0 if endpoint.path else endpoint.port,
            endpoint.path,
            endpoint.rules.scheme,
            listener.state.connections,
            endpoint.rules.max_connections,
            settings_of(endpoint),
            not self._server.listener_service.is_added(endpoint.name),
            self._server.listener_service.after_restart(listener),
        )

    def certificates(self) -> Future[list[CertificateFile]]:
        return self._ask(lambda: list(_certificates(self._server.listeners)))

    # Access.

    def explain(
        self,
        client_id: str,
        username: str | None,
        address: str,
        action: str,
        topic: str,
        roles: Sequence[str],
    ) -> Explanation:
        security = self._server.security
        if security is None:
            return Explanation(True, "", "", "this broker has no access control", [])
        decision, found = security.explain(
            client_id, username, address, action, topic, frozenset(roles)
        )
        rule = decision.rule
        return Explanation(
            decision.is_allowed,
            rule.where if rule is not None else "",
            rule.describe() if rule is not None else "",
            decision.why,
            sorted(found),
        )


def _certificates(listeners: Iterable[Listener]) -> Iterable[CertificateFile]:
    for listener in listeners:
        tls = listener.layers.tls if listener.layers is not None else None
        if tls is not None:
            paths = {"cert": tls.rules.cert, "ca": tls.rules.ca}
            for key, pem in tls.pem.items():
                yield CertificateFile(listener.endpoint.name, key, paths[key], pem)


def _checked(act: Callable[[], T]) -> T:
    """Call `act`; raise its errors as those of the interface."""
    try:
        return act()
    except ConfigError as error:
        raise InvalidChange(str(error)) from None
    except UnknownListener as error:
        raise UnknownName(str(error)) from None


def _changed(changes: Iterable[Change]) -> list[ChangedKey]:
    return [ChangedKey(one.key, one.value, one.before, one.origin, one.holds) for one in changes]


def _reload_figures(report: ReloadReport) -> ReloadFigures:
    return ReloadFigures(
        _changed(one for one in report.changes if one.holds),
        _changed(one for one in report.changes if not one.holds),
        list(report.reloaded),
        dict(report.failed),
        sorted(report.pending),
    )


def _pass_error(found: Future[Any], done: Future[Any]) -> None:
    """Let a call that failed fail the other one."""
    error = found.exception()
    if error is not None and not done.done():
        done.set_exception(error)

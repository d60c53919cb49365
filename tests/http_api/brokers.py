"""The broker that these tests put behind the HTTP server: a real log, changed by one thread, and
consumer groups that are no more than their offsets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from mqtt_broker.http_api.http_server import HttpServer
from mqtt_broker.http_api.request.access import Credentials
from mqtt_broker.http_api.request.broker_interface import (
    BanFigures,
    BrokerInterface,
    NotSupported,
    Part,
    Snapshot,
    StoreFigures,
    StreamFigures,
    WatchFigures,
)
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.snapshot import stream_figures
from mqtt_broker.security.protection.bans import Ban
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.figures import GroupFigures, ReplayFigures
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings
from tests.streams.logs import NAME, Sent, Writing

T = TypeVar("T")
PATIENCE_S: Final = 120.0
BASE: Final = Snapshot(
    version="0.1.0", build="compiled", started_at=1_700_000_000.0, store=StoreFigures()
)


class LogBroker(BrokerInterface):
    """Does what it is asked in one thread, as a broker's loop does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writing = Writing(root)
        self.base = BASE
        self.watched: WatchFigures | None = WatchFigures()
        self.members: dict[str, dict[str, Sequence[int]]] = {}
        self.committed: dict[tuple[str, str], Offsets] = {}  # group, stream
        self.banned: dict[tuple[str, str], Ban] = {}
        self.ban_error: Exception | None = None
        self.audited: list[tuple[str, dict[str, object]]] = []
        self._thread = ThreadPoolExecutor(1)

    def do(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result(PATIENCE_S)

    def close(self) -> None:
        self.do(self.writing.log.close)
        self._thread.shutdown()

    def create(self, partitions: int = 1, name: str = NAME, **settings: Any) -> None:
        made = StreamSettings(name, partitions=partitions, **settings)
        self.do(lambda: self.writing.log.create(made))

    def put(self, *payloads: bytes, client_id: str = "c", topic: str = "t") -> None:
        """One batch."""
        self.do(lambda: self.writing.put(*payloads, client_id=client_id, topic=topic))

    def put_all(self, messages: Sequence[Sent], name: str = NAME) -> None:
        def work() -> None:
            self.writing.append(messages, name)
            self.writing.commit()

        self.do(work)

    # `BrokerInterface`.

    def part(self, key: Part[T]) -> T:
        raise NotSupported(f"this broker has no {key.name}")

    def audit(self, event: str, **facts: object) -> None:
        self.audited.append((event, facts))

    def watch(self) -> WatchFigures | None:
        return self.watched

    def is_stopping(self) -> bool:
        return self.base.is_stopping

    def snapshot(self) -> Future[Snapshot]:
        return self._thread.submit(self._snapshot)

    def _snapshot(self) -> Snapshot:
        streams = [self._figures(name) for name in sorted(self.writing.log.streams)]
        return replace(self.base, streams=streams, replay=ReplayFigures(readers=2))

    def _figures(self, name: str) -> StreamFigures:
        stream = self.writing.log.stream(name)
        return stream_figures(
            stream,
            appended=self.writing.writer.messages,
            refused=self.writing.writer.messages_refused,
            groups=self._groups(name),
        )

    def stream_create(self, settings: StreamSettings) -> Future[None]:
        def work() -> None:
            self.writing.log.create(settings)

        return self._thread.submit(work)

    def stream_change(self, name: str, changes: Mapping[str, Any]) -> Future[None]:
        return self._thread.submit(lambda: self.writing.log.change(name, **changes))

    def stream_delete(self, name: str) -> Future[None]:
        return self._thread.submit(lambda: self.writing.log.delete(name))

    def stream_truncate(self, name: str, before: Offsets | None) -> Future[int]:
        return self._thread.submit(lambda: self.writing.log.trim(name, before))

    def groups(self, stream: str) -> Future[list[GroupFigures]]:
        return self._thread.submit(lambda: self._groups(stream))

    def _groups(self, stream: str) -> list[GroupFigures]:
        ends = self.writing.log.stream(stream).committed().ends
        return [
            GroupFigures(
                group,
                self.members.get(group, {}),
                offsets.ends,
                [end - offset for end, offset in zip(ends, offsets.ends, strict=True)],
            )
            for (group, name), offsets in self.committed.items()
            if name == stream
        ]

    def group_reset(self, name: str, stream: str, offsets: Offsets) -> Future[None]:
        def work() -> None:
            if self.members.get(name):
                raise Invalid("group", f"{name!r} has members; they go first")
            self.committed[name, stream] = offsets

        return self._thread.submit(work)

    def group_delete(self, name: str, stream: str) -> Future[None]:
        def work() -> None:
            if self.committed.pop((name, stream), None) is None:
                raise Invalid("group", f"there is no group {name!r}")

        return self._thread.submit(work)

    def bans(self) -> Future[list[BanFigures]]:
        def work() -> list[BanFigures]:
            found = [BanFigures(b.kind, b.value, b.until, b.why) for b in self.banned.values()]
            return [*found, BanFigures("client", "flaps", 2e9, "flapping", "flapping", "ann")]

        return self._thread.submit(work)

    def ban_add(self, ban: Ban) -> Future[None]:
        def work() -> None:
            if self.ban_error is not None:
                raise self.ban_error
            self.banned[ban.kind, ban.value] = ban

        return self._thread.submit(work)

    def ban_lift(self, kind: str, value: str) -> Future[bool]:
        return self._thread.submit(lambda: self.banned.pop((kind, value), None) is not None)


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def number(self, name: str) -> int:
        value = self.headers[name]
        assert value is not None, name
        return int(value)


class Serving:
    """`with Serving(commands, root) as http:` answers until the block ends."""

    def __init__(
        self,
        commands: BrokerInterface,
        root: Path | None,
        token: str = "",
        port: int = 0,
        host: str = "127.0.0.1",
        credentials: Callable[[], Credentials] | None = None,
        **limits: Any,
    ) -> None:
        self.lines: list[str] = []
        limits = {"requests_per_s": 1e6, "requests_burst": 1e6, **limits}
        self.server = HttpServer(
            host, port, commands, token, root, self.lines.append, HttpLimits(**limits),
            credentials=credentials,
        )  # fmt: skip
        self.token = token

    def __enter__(self) -> Self:
        self.host, self.port = self.server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.server.stop(PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        over: http.client.HTTPConnection | None = None,
    ) -> Reply:
        connection = over or self.connect()
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, sent | dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            if over is None:
                connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.ask("GET", path, **more)

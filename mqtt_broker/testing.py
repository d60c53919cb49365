"""A broker inside a program, and inside tests.

    async with Broker() as broker:            # in async code, on the running event loop
        await broker.publish("pump/1", "on", qos=1)

    with ThreadedBroker() as broker:          # in a thread of its own, for code that is not async
        client.connect(broker.host, broker.port)

    def test_it(fleetmq_broker):              # the same as a pytest fixture
        client.connect(fleetmq_broker.host, fleetmq_broker.port)

It listens on a free port of 127.0.0.1, keeps everything in memory, and is gone afterwards;
with `data_dir` it keeps its state there, and a second broker may carry on from it. Keyword
arguments are the keys and tables of the configuration file, and `access` for an `Access` of your
own.

A test can ask what was published and who is connected, break connections, refuse clients,
restart the broker and move its clock. The parts of that are in `mqtt_broker.test_support`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mqtt_broker.codec.reasons import ADMINISTRATIVE_ACTION, SERVER_UNAVAILABLE
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.message_log import MessageLog
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.in_process import (
    Disconnected,
    InProcessAccess,
    Publisher,
    Subscription,
    check_filters,
    check_qos,
    check_topic,
    message_properties,
)
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.embedded import embedded_config
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.event_loop import TurnLoop
from mqtt_broker.server.server import Server
from mqtt_broker.test_support import clients
from mqtt_broker.test_support.clients import ConnectedClient
from mqtt_broker.test_support.connects import ConnectFaults, UserAccess
from mqtt_broker.test_support.listeners import further_endpoints, urls_of
from mqtt_broker.test_support.recorder import PublishedMessage, Recorder

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from mqtt_broker.http_api.service import HttpService

RECORDED_MAX: Final = 10_000  # messages that a `ThreadedBroker` remembers
PATIENCE_S: Final = 5.0  # that a test waits for messages and clients, unless it says otherwise
_LOOK_S: Final = 0.005  # between two looks at who is connected
_T = TypeVar("_T")


class Broker:
    """A broker on the running event loop.

    It runs inside `async with`. `host` and `port` say where it listens (port 0: a free one),
    `access` who may connect and what they may do, `payload_checks` which payloads are taken,
    `message_log` what gets every accepted message of some topics beside their subscribers,
    `data_dir` where its state is kept (empty: in memory), and every other keyword is a key of the
    configuration file: `receive_maximum=100`, `listeners=[{"port": 8083, "websocket": True}]`. HTTP
    is served if `http` says where; `http_url` is its URL then. Raises ConfigError for a mistake.

    `tls` and `websocket` listen on further ports (`urls`, and `ca_file` for clients to trust),
    `users` are names with their passwords, `streams` names with their Topic Filters (or tables, as
    in the file), and
    `record` is how many published messages `published` and `wait_for_messages` know.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        access: Access | None = None,
        payload_checks: PayloadChecks | None = None,
        message_log: MessageLog | None = None,
        data_dir: str | Path = "",
        tls: bool = False,
        websocket: bool = False,
        users: Mapping[str, str] | None = None,
        streams: Mapping[str, str] | Sequence[Mapping[str, Any]] = (),
        record: int = 0,
        **settings: Any,
    ) -> None:
        self.host = host
        self.port = port
        self.urls: dict[str, str] = {}  # by scheme: mqtt, mqtts, ws, wss
        self.ca_file = ""  # the authority of the certificate, for `tls`
        if message_log is not None and (data_dir or streams):
            raise ValueError(
                "message_log cannot be used with data_dir or streams: there the telemetry log "
                "takes its place"
            )
        if users is not None and access is not None:
            raise ValueError("users cannot be used with access, which decides about them")
        if users is not None:
            access = UserAccess(users)
        self._data_dir = str(data_dir)
        self._has_tls = tls
        self._has_websocket = websocket
        self._access = None if access is None else InProcessAccess(access)
        self._payload_checks = payload_checks
        self._message_log = message_log
        self._recorder = Recorder(record) if record else None
        self._connect_faults: ConnectFaults | None = None
        if isinstance(streams, Mapping):
            streams = [{"name": name, "filter": text} for name, text in streams.items()]
        values = {"host": host, "port": port, "data_dir": self._data_dir, **settings}
        if streams:
            values["streams"] = list(streams)
        self._config = embedded_config(values, is_guarded=access is not None)
        self._http: HttpService | None = None
        self.http_url = ""
        self._folder: TemporaryDirectory[str] | None = None
        self._server: Server | None = None
        self._publisher: Publisher | None = None
        self._is_stopping = False

    @property
    def server(self) -> Server:
        """The server beneath, with the core as `server.broker`. Not part of the public API."""
        assert self._server is not None, "the broker is not running"
        return self._server

    @property
    def url(self) -> str:
        """The URL of the broker for clients, `mqtt://host:port`."""
        return f"mqtt://{self.host}:{self.port}"

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        user_properties: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Publish a message inside this process, without a socket.

        Returns when QoS 0 was handed to the core, and when QoS 1 and 2 were acknowledged: then
        the message is as safe as the broker's durability promises. Raises ValueError for what
        is no message, `PublishRefused` with the reason code if the broker refuses it, and
        `Disconnected` if the broker stops before it was acknowledged.
        """
        check_qos(qos)
        check_topic(topic)
        properties = message_properties(
            expiry_s, content_type, response_topic, correlation_data, user_properties
        )
        server = self._running()
        if self._publisher is None or not self._publisher.is_open():
            self._publisher = Publisher(server, self._secret)
        publisher = self._publisher
        await publisher.connected()
        data = payload.encode() if isinstance(payload, str) else payload
        await publisher.publish(topic, data, qos, retain, properties)

    def subscribe(self, *filters: str, qos: int = 0) -> Subscription:
        """Subscribe inside this process, without a socket; see `Subscription`.

            async with broker.subscribe("pump/+", "tank/#", qos=1) as messages:
                async for message in messages:
                    print(message.topic, message.payload)

        The Topic Filters may be those of shared subscriptions and of streams. Raises ValueError
        for what is no filter; entering the block raises `SubscribeRefused` if the broker refuses
        one.
        """
        check_qos(qos)
        check_filters(filters)
        return Subscription(self._running(), self._secret, filters, qos)

    @property
    def _secret(self) -> bytes | None:
        return None if self._access is None else self._access.secret

    def _running(self) -> Server:
        if self._server is None or self._is_stopping:
            raise Disconnected("the broker is not running: use it inside its `async with` block")
        return self._server

    async def __aenter__(self) -> Self:
        try:
            self._config = self._configure()
            if "log_level" in self._config.origins:
                logging.getLogger("fleetmq").setLevel(self._config.log_level.upper())
            self._start(0.0)
            await self._serve_http()
        except BaseException:
            self._remove_folder()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        try:
            if self._server is not None:  # else a restart has failed
                await self._server.stop()
        finally:
            self._stop_http()
            self._remove_folder()

    def _configure(self) -> Config:
        config = self._config
        first, *others = config.endpoints
        more, self.ca_file = further_endpoints(
            self.host,
            has_tls=self._has_tls,
            has_websocket=self._has_websocket,
            folder=self._own_folder,
        )
        data_dir = config.data_dir
        if config.streams and not (data_dir or config.database_url):
            data_dir = str(self._own_folder() / "data")
        return replace(config, endpoints=(first, *more, *others), data_dir=data_dir)

    def _own_folder(self) -> Path:
        if self._folder is None:
            from tempfile import TemporaryDirectory  # few need it

            self._folder = TemporaryDirectory(prefix="fleetmq-")
        return Path(self._folder.name)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self, ahead_s: float) -> None:
        server = Server(self._config, self._access, self._payload_checks, ahead_s=ahead_s)
        endpoints = tuple(server.start())
        log = self._message_log or server.streams
        if self._recorder is not None:
            self._recorder.write_behind(log)
            server.broker.attach_log(self._recorder)
        elif self._message_log is not None:
            server.broker.attach_log(self._message_log)
        if self._connect_faults is not None:
            self._connect_faults.attach(server)
        # A restart listens where it listened before.
        self._config = replace(self._config, endpoints=endpoints)
        self.port = endpoints[0].port
        self.urls = urls_of(endpoints)
        self._server = server
        self._is_stopping = False

    async def _serve_http(self) -> None:
        config, server = self._config, self._server
        if config.http_is_default or config.http is None or server is None:
            return
        # Not above: it loads HTTP, which few programs serve.
        from mqtt_broker.http_api.http_server import HttpServerError
        from mqtt_broker.http_api.service import HttpService

        service = HttpService(config)
        try:
            service.start()
        except HttpServerError as error:
            await server.stop()
            raise ConfigError(str(error)) from None
        self.http_url = service.serve(server)
        self._http = service
        port = int(self.http_url.rpartition(":")[2])
        self._config = replace(config, http=replace(config.http, port=port))

    def _stop_http(self) -> None:
        if self._http is not None:
            self._http.stop()
            self._http = None

    # In tests.

    @property
    def now(self) -> float:
        """The broker's time in seconds since 1970, which `advance` moves."""
        return self._running().now()

    @property
    def clients(self) -> list[ConnectedClient]:
        """The clients that are connected, without those of this process."""
        return clients.connected(self._running())

    def published(self, topic_filter: str = "#") -> list[PublishedMessage]:
        """Return the recorded messages to topics that match, the oldest first."""
        return self._recording().published(topic_filter)

    def clear(self) -> None:
        """Forget the recorded messages."""
        self._recording().clear()

    async def wait_for_messages(
        self, count: int = 1, topic_filter: str = "#", *, timeout_s: float = PATIENCE_S
    ) -> list[PublishedMessage]:
        """Return the recorded messages that match as soon as there are `count` of them.

        Raises NotPublished, an AssertionError with what was published instead, when time runs out.
        """
        return await self._recording().wait(count, topic_filter, timeout_s)

    async def wait_for_clients(self, *client_ids: str, timeout_s: float = PATIENCE_S) -> None:
        """Return as soon as all of these are connected; NotConnected when time runs out."""

        def are_there() -> bool:
            return set(client_ids) <= self._running().broker.connections.keys()

        if not await _comes_true(are_there, timeout_s):
            raise clients.shortfall(self._running(), client_ids, timeout_s)

    async def wait_for_subscription(
        self, topic_filter: str, client_id: str = "", *, timeout_s: float = PATIENCE_S
    ) -> None:
        """Return as soon as a connected client, or this one, has subscribed to the Topic Filter.

        Raises NotSubscribed with the subscriptions that there are when time runs out.
        """

        def is_there() -> bool:
            return clients.has_subscription(self._running(), topic_filter, client_id)

        if not await _comes_true(is_there, timeout_s):
            raise clients.not_subscribed(self._running(), topic_filter, client_id, timeout_s)

    def kick(self, client_id: str, reason: int = ADMINISTRATIVE_ACTION) -> None:
        """Disconnect a client, with a reason code; NotConnected if it is not connected."""
        clients.kick(self._running(), client_id, reason)

    def drop(self, client_id: str) -> None:
        """Break a client's connection, as a network does: without a DISCONNECT."""
        clients.drop(self._running(), client_id)

    def delay(self, client_id: str, seconds: float) -> None:
        """Read nothing from a client for so long: the broker acts upon what it sends afterwards."""
        clients.delay(self._running(), client_id, seconds)

    def refuse_connects(self, reason: int = SERVER_UNAVAILABLE, *, times: int = 1) -> None:
        """Refuse the next CONNECTs with a reason code."""
        self._faults().refuse(reason, times)

    def delay_connects(self, seconds: float, *, times: int = 1) -> None:
        """Answer the next CONNECTs so much later."""
        self._faults().delay(seconds, times)

    def advance(self, seconds: float, *, silent: Iterable[str] = ()) -> None:
        """Move the broker's clock ahead: what falls due on the way happens now.

        Messages and sessions expire, and delayed wills are sent. The keep alive of clients whose
        ids are `silent` runs out; the others count as heard from.
        """
        clients.advance(self._running(), seconds, frozenset(silent))

    async def restart(self, *, kill: bool = False) -> None:
        """Stop the broker and start it again, on the same ports.

        With `data_dir` it goes on with its state; in memory it has lost everything. `kill`: clients
        are told nothing, and what was not stored is lost.
        """
        server = self._running()
        self._is_stopping = True
        self._server = None
        if kill:
            server.kill()
        else:
            await server.stop()
        self._stop_http()
        self._start(server.turn.ahead_s)
        await self._serve_http()

    def _recording(self) -> Recorder:
        if self._recorder is None:
            raise ValueError("published messages are not recorded: use Broker(record=1000)")
        return self._recorder

    def _faults(self) -> ConnectFaults:
        if self._connect_faults is None:
            faults = ConnectFaults()
            faults.attach(self._running())
            self._connect_faults = faults
        return self._connect_faults


async def _comes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Look until it is true; False when time runs out."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return False
    return True


class ThreadedBroker:
    """A broker in a thread, for tests that are not async. It takes what `Broker` takes."""

    def __init__(self, *, record: int = RECORDED_MAX, **options: Any) -> None:
        self._made = Broker(record=record, **options)  # raises where a mistake is written
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetmq", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._broker: Broker | None = None
        self._error: BaseException | None = None
        self.host = str(options.get("host", "127.0.0.1"))
        self.port = 0
        self.urls: dict[str, str] = {}  # by scheme: mqtt, mqtts, ws, wss
        self.ca_file = ""  # the authority of the certificate, for `tls`
        self.http_url = ""  # of the HTTP server, if `http` says where

    @property
    def url(self) -> str:
        """The URL of the broker for clients, `mqtt://host:port`."""
        return f"mqtt://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        """Stop it; a second time does nothing."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def publish(
        self, topic: str, payload: bytes | str = b"", *, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish a message, as `Broker.publish` does, and wait for it in the calling thread."""
        self._wait(lambda broker: broker.publish(topic, payload, qos=qos, retain=retain))

    # The same as those of `Broker`, from any thread but the broker's.

    @property
    def now(self) -> float:
        """The broker's time in seconds since 1970, which `advance` moves."""
        return self._call(lambda broker: broker.now)

    @property
    def clients(self) -> list[ConnectedClient]:
        """The clients that are connected."""
        return self._call(lambda broker: broker.clients)

    def published(self, topic_filter: str = "#") -> list[PublishedMessage]:
        """Return the messages published to topics that match, the oldest first."""
        return self._call(lambda broker: broker.published(topic_filter))

    def clear(self) -> None:
        """Forget the messages published so far."""
        self._call(Broker.clear)

    def wait_for_messages(
        self, count: int = 1, topic_filter: str = "#", *, timeout_s: float = PATIENCE_S
    ) -> list[PublishedMessage]:
        """Return the messages that match as soon as there are `count`; else NotPublished."""
        return self._wait(
            lambda broker: broker.wait_for_messages(count, topic_filter, timeout_s=timeout_s)
        )

    def wait_for_clients(self, *client_ids: str, timeout_s: float = PATIENCE_S) -> None:
        """Return as soon as all of these are connected; NotConnected when time runs out."""
        self._wait(lambda broker: broker.wait_for_clients(*client_ids, timeout_s=timeout_s))

    def wait_for_subscription(
        self, topic_filter: str, client_id: str = "", *, timeout_s: float = PATIENCE_S
    ) -> None:
        """Return as soon as a client, or this one, has subscribed; else NotSubscribed."""
        self._wait(
            lambda broker: broker.wait_for_subscription(
                topic_filter, client_id, timeout_s=timeout_s
            )
        )

    def kick(self, client_id: str, reason: int = ADMINISTRATIVE_ACTION) -> None:
        """Disconnect a client, with a reason code."""
        self._call(lambda broker: broker.kick(client_id, reason))

    def drop(self, client_id: str) -> None:
        """Break a client's connection, as a network does: without a DISCONNECT."""
        self._call(lambda broker: broker.drop(client_id))

    def delay(self, client_id: str, seconds: float) -> None:
        """Read nothing from a client for so long."""
        self._call(lambda broker: broker.delay(client_id, seconds))

    def refuse_connects(self, reason: int = SERVER_UNAVAILABLE, *, times: int = 1) -> None:
        """Refuse the next CONNECTs with a reason code."""
        self._call(lambda broker: broker.refuse_connects(reason, times=times))

    def delay_connects(self, seconds: float, *, times: int = 1) -> None:
        """Answer the next CONNECTs so much later."""
        self._call(lambda broker: broker.delay_connects(seconds, times=times))

    def advance(self, seconds: float, *, silent: Iterable[str] = ()) -> None:
        """Move the broker's clock ahead; see `Broker.advance`."""
        self._call(lambda broker: broker.advance(seconds, silent=silent))

    def restart(self, *, kill: bool = False) -> None:
        """Stop the broker and start it again, on the same ports; see `Broker.restart`."""
        self._wait(lambda broker: broker.restart(kill=kill))

    def _wait(self, begin: Callable[[Broker], Coroutine[Any, Any, _T]]) -> _T:
        """Return what a coroutine on the broker's loop returns."""
        if self._loop is None or self._broker is None or not self._thread.is_alive():
            raise Disconnected("the broker is not running: start it first")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a method of ThreadedBroker was called in the broker's own thread")
        future = asyncio.run_coroutine_threadsafe(begin(self._broker), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Disconnected("the broker was stopped in the meantime") from None

    def _call(self, act: Callable[[Broker], _T]) -> _T:
        """Call a function on the broker's loop, and return its result."""

        async def call(broker: Broker) -> _T:
            return act(broker)

        return self._wait(call)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=TurnLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._made as broker:
            self.port = broker.port
            self.urls = broker.urls
            self.ca_file = broker.ca_file
            self.http_url = broker.http_url
            self._broker = broker
            self._ready.set()
            await self._stop.wait()

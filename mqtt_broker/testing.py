"""A broker inside a program, and inside tests.

    async with Broker() as broker:            # in async code, on the running event loop
        await broker.publish("pump/1", "on", qos=1)

    with ThreadedBroker() as broker:          # in a thread of its own, for code that is not async
        client.connect(broker.host, broker.port)

    def test_it(fleetmq_broker):              # the same as a pytest fixture
        client.connect(fleetmq_broker.host, fleetmq_broker.port)

It listens on a free port of 127.0.0.1, keeps everything in memory, and is gone afterwards;
with `data_dir` it keeps its state there, and a second broker may carry on from it. Keyword
arguments are the fields of `Settings`, and `access` for an `Access` of your own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.message_log import MessageLog
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.limits.settings import Settings
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
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.server import Server


class Broker:
    """A broker on the running event loop.

    It runs inside `async with`. `host` and `port` say where it listens (port 0: a free one),
    `access` who may connect and what they may do, `payload_checks` which payloads are taken,
    `message_log` what gets every accepted message of some topics beside their subscribers,
    `data_dir` where its state is kept (empty: in memory), and every other keyword is a field of
    `Settings`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        access: Access | None = None,
        payload_checks: PayloadChecks | None = None,
        message_log: MessageLog | None = None,
        data_dir: str = "",
        **settings: Any,
    ) -> None:
        self.host = host
        self.port = port
        self._data_dir = data_dir
        self._access = None if access is None else InProcessAccess(access)
        if message_log is not None and data_dir:
            raise ValueError(
                "message_log cannot be used with data_dir: there the telemetry log takes its place"
            )
        self._payload_checks = payload_checks
        self._message_log = message_log
        self._settings = Settings(**settings)
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
        config = Config(
            self._settings,
            (Endpoint(self.host, self.port),),
            durability="commit" if self._data_dir else "memory",
            data_dir=self._data_dir,
        )
        self._server = Server(config, self._access, self._payload_checks)
        if self._message_log is not None:
            self._server.broker.attach_log(self._message_log)
        self.port = self._server.start()[0].port
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        await self.server.stop()


class ThreadedBroker:
    """A broker in a thread, for tests that are not async."""

    def __init__(
        self, *, access: Access | None = None, data_dir: str = "", **settings: Any
    ) -> None:
        self._access = access
        self._data_dir = data_dir
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetmq", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._broker: Broker | None = None
        self._error: BaseException | None = None
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def url(self) -> str:
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
        if self._loop is None or self._broker is None or not self._thread.is_alive():
            raise Disconnected("the broker is not running: start it first")
        publishing = self._broker.publish(topic, payload, qos=qos, retain=retain)
        asyncio.run_coroutine_threadsafe(publishing, self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Broker(access=self._access, data_dir=self._data_dir, **self._settings) as broker:
            self.port = broker.port
            self._broker = broker
            self._ready.set()
            await self._stop.wait()

"""A broker for other people's tests.

    async with Broker() as broker:            # in async code, on the running loop
        await connect(broker.host, broker.port)

    with ThreadedBroker() as broker:          # in a thread of its own, for code that is not
        client.connect(broker.host, broker.port)

    def test_it(fleetmq_broker):              # the same as a pytest fixture
        client.connect(fleetmq_broker.host, fleetmq_broker.port)

It listens on a free port of 127.0.0.1, keeps everything in memory, and is gone afterwards;
with `data_dir` it keeps its state there, and a second broker may carry on from it. Keyword
arguments are the settings of `mqtt_broker.core.limits.settings.Settings`, and `access` for a door
of your own (`mqtt_broker.core.interfaces.access.Access`).
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.net.listener import Endpoint
from mqtt_broker.server.server import Server


class Broker:
    """A broker on the running event loop."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        access: Access | None = None,
        data_dir: str = "",
        **settings: Any,
    ) -> None:
        self.host = host
        self.port = port
        self._data_dir = data_dir
        self._access = access
        self._settings = Settings(**settings)
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        assert self._server is not None, "the broker is not running"
        return self._server

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        config = Config(
            self._settings,
            (Endpoint(self.host, self.port),),
            durability="commit" if self._data_dir else "memory",
            data_dir=self._data_dir,
        )
        self._server = Server(config, self._access)
        self.port = self._server.start()[0].port
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            self._ready.set()
            await self._stop.wait()

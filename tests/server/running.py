"""A real server on a loop of its choice, in a thread, and raw sockets to speak with it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop

from mqtt_broker.codec.constants import V5
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.net.event_loop import TurnLoop
from mqtt_broker.server.server import Server
from tests.core.peers import connect

Result = TypeVar("Result")
LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "turns": TurnLoop,
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
PATIENCE_S: Final = 120.0  # nothing here takes so long, unless it fails


class Running:
    """`with Running(...) as broker:` serves until the block ends."""

    def __init__(
        self,
        *endpoints: Endpoint,
        loop: str = "turns",
        config: Config | None = None,
        access: Access | None = None,
        **settings: Any,
    ) -> None:
        self._factory = LOOPS[loop]
        self._access = access
        self._config = replace(
            config or Config(durability="memory"),
            endpoints=endpoints or (Endpoint("127.0.0.1", 0),),
            settings=Settings(**{"sys_interval_s": 0, **settings}),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self.server: Server
        self.loop: asyncio.AbstractEventLoop
        self.bound: list[Endpoint] = []
        self._stop: asyncio.Event

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop_soon(self) -> None:
        """Ask for the end, and do not wait for it."""
        self.loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has just ended by itself
            if self._thread.is_alive():
                self.stop_soon()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
        self._is_ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = Server(self._config, self._access)
        self.bound = self.server.start()
        self._is_ready.set()
        await self._stop.wait()
        await self.server.stop()

    def ask(self, question: Callable[[], Result]) -> Result:
        """The answer as the loop's own thread sees it."""

        async def answer() -> Result:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(PATIENCE_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Ask again after every turn until it holds."""

        async def watch() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        future = asyncio.run_coroutine_threadsafe(watch(), self.loop)
        try:
            future.result(PATIENCE_S)
        except TimeoutError:
            future.cancel()
            raise

    @property
    def refusals(self) -> dict[str, int]:
        """Connections that never came to MQTT, by reason."""
        refused = self.server.broker.counters.refused
        return {
            reason: count
            for what, _, reason in (key.partition("/") for key in refused)
            if what == "connection" and (count := refused[f"{what}/{reason}"])
        }

    @property
    def port(self) -> int:
        return self.bound[0].port

    def raw(self, *, receive_buffer: int = 0) -> Raw:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", self.port))
        return Raw(sock)

    def client(
        self, client_id: str, version: int = V5, *, receive_buffer: int = 0, **fields: Any
    ) -> Raw:
        raw = self.raw(receive_buffer=receive_buffer)
        raw.send(connect(client_id, version, **fields))
        answer = raw.packet()
        assert answer[0] == 0x20 and answer[3] == 0, answer.hex()
        return raw


class Raw:
    """A blocking socket that reads whole packets."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.sock = sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.sock.close()

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def exactly(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            data = self.sock.recv(count - len(out))
            if not data:
                raise EOFError(out)
            out += data
        return out

    def packet(self) -> bytes:
        head = self.exactly(2)
        length, shift = head[1] & 0x7F, 7
        while head[-1] & 0x80:
            head += self.exactly(1)
            length |= (head[-1] & 0x7F) << shift
            shift += 7
        return head + self.exactly(length)

    def rest(self) -> bytes:
        """Everything up to the end of the connection, which has to come in order."""
        out = b""
        while data := self.sock.recv(65_536):
            out += data
        return out

    def reset(self) -> None:
        """Close in the rudest way: what is under way is lost, the peer gets RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

"""A TCP proxy that breaks what passes through: each direction alone, and from a seed.

    with Proxy(server.address) as proxy:
        proxy.url("nats")
        proxy.pause(UP); proxy.resume(UP)      a network that is cut, and heals: nothing is lost
        proxy.disconnect()                     every connection is reset
        proxy.refuse(); proxy.accept()         new connections
        proxy.damage(DOWN, make)               what to do with bytes, for each new connection

It runs in a thread of its own, so the code that is tested may wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

UP: Final = "up"  # to the server
DOWN: Final = "down"  # from the server
_PATIENCE_S: Final = 60.0
_BUFFER_BYTES: Final = 65_536


class Damage(Protocol):
    """What becomes of the bytes of one direction of one connection."""

    def take(self, data: bytes) -> list[tuple[float, bytes]]:
        """The bytes to pass on, and after how many seconds."""


class Whole:
    """Nothing: bytes pass as they are."""

    def take(self, data: bytes) -> list[tuple[float, bytes]]:
        return [(0.0, data)]


class Bytes:
    """Bytes are changed, lost and doubled, and pieces cut: no protocol survives it."""

    def __init__(self, rng: random.Random, chance: float) -> None:
        self._rng = rng
        self._chance = chance

    def take(self, data: bytes) -> list[tuple[float, bytes]]:
        rng = self._rng
        if rng.random() >= self._chance:
            return [(0.0, data)]
        at = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            changed = bytes([data[at] ^ 1 << rng.randrange(8)])
            return [(0.0, data[:at] + changed + data[at + 1 :])]
        if kind == 1:
            return [(0.0, data[:at])]
        return [(0.0, data[:at] + data[max(0, at - 100) :])]


class _Side(asyncio.Protocol):
    """One end of a connection; what it receives goes to the other end."""

    def __init__(self, pair: _Pair, direction: str) -> None:
        self._pair = pair
        self._direction = direction
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_BUFFER_BYTES)
        self.transport = transport
        self._pair.on_made(self._direction)

    def data_received(self, data: bytes) -> None:
        self._pair.on_data(self._direction, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pair.close()

    # It takes no more: the other end waits.

    def pause_writing(self) -> None:
        self._pair.hold(self._direction, True)

    def resume_writing(self) -> None:
        self._pair.hold(self._direction, False)


class _Pair:
    """A connection to the proxy and its own one to the server."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.client = _Side(self, UP)
        self.server = _Side(self, DOWN)
        self._sides = {UP: self.client, DOWN: self.server}
        self._damages = {direction: proxy.new_damage(direction) for direction in (UP, DOWN)}
        self._held = {UP: False, DOWN: False}

    def on_made(self, direction: str) -> None:
        if direction == UP:
            self._proxy.on_client(self)
        self.watch()

    def on_data(self, direction: str, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for delay_s, piece in self._damages[direction].take(data):
            if delay_s:
                loop.call_later(delay_s, self._pass_on, direction, piece)
            else:
                self._pass_on(direction, piece)

    def _pass_on(self, direction: str, data: bytes) -> None:
        other = self._sides[DOWN if direction == UP else UP].transport
        if other is not None and not other.is_closing():
            other.write(data)
            self._proxy.count(direction, len(data))

    def hold(self, direction: str, is_full: bool) -> None:
        """The end that sends in this direction is full: read no more of the other."""
        self._held[DOWN if direction == UP else UP] = is_full
        self.watch()

    def watch(self) -> None:
        """Read from the ends that may be read."""
        is_whole = all(side.transport is not None for side in self._sides.values())
        for direction, side in self._sides.items():
            if side.transport is not None and not side.transport.is_closing():
                if not is_whole or self._held[direction] or direction in self._proxy.paused:
                    side.transport.pause_reading()
                else:
                    side.transport.resume_reading()

    def close(self) -> None:
        """Reset both ends."""
        for side in self._sides.values():
            if side.transport is not None:
                side.transport.abort()
        self._proxy.on_closed(self)


class Proxy:
    """Listens on a free port of loopback, and passes on to one server, or to its unix socket."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._pairs: set[_Pair] = set()
        self._makers: dict[str, Callable[[], Damage]] = {UP: Whole, DOWN: Whole}
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.paused: set[str] = set()
        self.passed_bytes = {UP: 0, DOWN: 0}
        self.connections = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.port}"

    # From the test's thread.

    def pause(self, *directions: str) -> None:
        """Pass nothing on in these directions, of all connections; none: in both."""

        def pause() -> None:
            self.paused.update(directions or (UP, DOWN))
            self._watch()

        self._do(pause)

    def resume(self) -> None:
        """Pass on what has waited."""

        def resume() -> None:
            self.paused.clear()
            self._watch()

        self._do(resume)

    def damage(self, direction: str, make: Callable[[], Damage]) -> None:
        """Do this with the bytes of each connection that is made from now on."""

        def damage() -> None:
            self._makers[direction] = make

        self._do(damage)

    def disconnect(self) -> None:
        """Reset all connections."""

        def disconnect() -> None:
            for pair in list(self._pairs):
                pair.close()

        self._do(disconnect)

    def refuse(self) -> None:
        """Reset all connections, and each new one."""
        self._do(lambda: setattr(self, "_refuses", True))
        self.disconnect()

    def accept(self) -> None:
        """Pass new connections on."""
        self._do(lambda: setattr(self, "_refuses", False))

    # In the proxy's thread.

    def new_damage(self, direction: str) -> Damage:
        return self._makers[direction]()

    def on_client(self, pair: _Pair) -> None:
        if self._refuses:
            pair.close()
            return
        self.connections += 1
        self._pairs.add(pair)
        task = self._loop.create_task(self._connect(pair))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_closed(self, pair: _Pair) -> None:
        self._pairs.discard(pair)

    def count(self, direction: str, size: int) -> None:
        self.passed_bytes[direction] += size

    async def _connect(self, pair: _Pair) -> None:
        try:
            if isinstance(self._target, Path):
                await self._loop.create_unix_connection(lambda: pair.server, str(self._target))
            else:
                await self._loop.create_connection(lambda: pair.server, *self._target)
        except OSError:
            pair.close()

    def _watch(self) -> None:
        for pair in self._pairs:
            pair.watch()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _Pair(self).client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for pair in list(self._pairs):
            pair.close()
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)

    def _do(self, act: Callable[[], object]) -> None:
        async def run() -> None:
            found = act()
            if asyncio.iscoroutine(found):
                await found

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_PATIENCE_S)

"""Accepting for HTTP when descriptors are out: one line, one connection at a time, then on."""

from __future__ import annotations

import asyncio
import os
import socket
from errno import EMFILE
from typing import Any, Final

import pytest

from mqtt_broker.http_api.acceptor import Acceptor
from mqtt_broker.server.process.descriptors import Descriptors

PATIENCE_S: Final = 120.0


class Listening(socket.socket):
    """A listening socket that finds no descriptor, but for one that was closed for it."""

    is_out = False
    lowest = 0  # what is below is in use, when they are out

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_out and not self.is_one_free():
            raise OSError(EMFILE, "Too many open files")
        return super().accept()

    def is_one_free(self) -> bool:
        """Whether the acceptor has just closed the one that it kept."""
        fd = os.open(os.devnull, os.O_RDONLY)
        os.close(fd)
        return fd < self.lowest


class Echo(asyncio.Protocol):
    """Answers with a word, and what it was sent."""

    def __init__(self, word: bytes) -> None:
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._word + data)


class World:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.descriptors = Descriptors(self.lines.append)
        self.socket = Listening()
        self.socket.setblocking(False)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(16)
        self.acceptor = Acceptor(
            asyncio.get_running_loop(),
            self.socket,
            lambda: Echo(b"serves "),
            lambda: Echo(b"refuses "),
            self.descriptors,
        )
        self.acceptor.start()

    def run_out(self) -> None:
        """From now on the number that the acceptor kept is the only free one."""
        fd = os.open(os.devnull, os.O_RDONLY)
        self.holes = [fd]
        while fd < 64:  # numbers below are taken, so that a lower one is what was kept
            fd = os.dup(fd)
            self.holes.append(fd)
        self.socket.lowest = fd + 1
        self.socket.is_out = True

    def go_on(self) -> None:
        self.socket.is_out = False
        for fd in self.holes:
            os.close(fd)

    async def ask(self, word: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.socket.getsockname())
        writer.write(word)
        async with asyncio.timeout(PATIENCE_S):
            found = await reader.read(100)
        writer.close()
        await writer.wait_closed()
        return found

    def close(self) -> None:
        self.acceptor.close()
        self.socket.close()


def test_one_at_a_time_is_served_and_then_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtt_broker.http_api.acceptor.PAUSE_S", 0.01)

    async def main() -> None:
        world = World()
        assert await world.ask(b"first") == b"serves first"
        before = len(os.listdir("/proc/self/fd"))
        world.run_out()
        for number in range(5):
            assert await world.ask(b"%d" % number) == b"serves %d" % number
        assert world.descriptors.pauses >= 5
        assert len(world.lines) <= 2, world.lines
        assert "cannot accept: Too many open files" in world.lines[0]
        world.go_on()
        found = await asyncio.gather(*(world.ask(b"x") for _ in range(10)))
        assert found == [b"serves x"] * 10
        while len(os.listdir("/proc/self/fd")) > before:  # none is lost
            await asyncio.sleep(0.01)
        world.close()

    asyncio.run(main())


def test_the_last_ones_are_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World()
        monkeypatch.setattr(world.descriptors, "http_end", 3)
        assert await world.ask(b"x") == b"refuses x"
        assert world.lines == []
        world.close()

    asyncio.run(main())

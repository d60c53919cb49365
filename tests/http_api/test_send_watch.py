"""Peers that do not read are closed, those that read slowly are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mqtt_broker.http_api.send_watch import SendWatch


class Transport(asyncio.Transport):
    """A transport that keeps so many bytes as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.is_aborted = True


class Inner(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def eof_received(self) -> bool | None:
        self.told.append("eof")
        return True

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class Timer:
    """A timer that a test runs."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """A watched connection."""

    def __init__(self) -> None:
        self.inner, self.transport = Inner(), Transport()
        self.timers: list[Timer] = []
        self.watch = SendWatch(self.inner, 10.0, self._call_later)
        self.watch.connection_made(self.transport)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        assert seconds == 10.0
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def elapse(self) -> None:
        """Run the timer that was set last, unless it was cancelled."""
        timer = self.timers.pop()
        if not timer.is_cancelled:
            timer.callback()


def test_everything_is_passed_on() -> None:
    world = World()
    watch = world.watch
    watch.data_received(b"x")
    watch.pause_writing()
    watch.resume_writing()
    world.elapse()
    assert watch.eof_received()
    watch.connection_lost(None)
    assert world.inner.told == ["made", b"x", "pause", "resume", "eof", "lost"]
    assert not world.transport.is_aborted


def test_who_reads_nothing_is_aborted() -> None:
    world = World()
    world.transport.left = 100_000
    world.watch.pause_writing()
    world.transport.left -= 10_240  # the least that goes
    world.elapse()
    assert not world.transport.is_aborted
    world.transport.left -= 10_239
    world.elapse()
    assert world.transport.is_aborted


def test_a_connection_that_is_lost_is_watched_no_more() -> None:
    world = World()
    world.watch.pause_writing()
    world.watch.connection_lost(None)
    world.elapse()
    assert not world.transport.is_aborted

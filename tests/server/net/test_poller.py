"""The poller, turned by hand, where each poll can be looked at: deferred reads, and their lag."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqtt_broker.core.interfaces.link import LATER, NOW, SOON
from mqtt_broker.server.net import poller as turns_module
from mqtt_broker.server.net.poller import LAG_S, READ_BYTES, Poller
from sessions.messages.work import Work
from tests.server.running import PATIENCE_S


class Bench:
    """Turns with one deferred and one ordinary socket; `served` says who was read, in order."""

    def __init__(self, *, may_lag: bool = True) -> None:
        self.poller = Poller(may_lag=may_lag)
        self.served: list[str] = []
        self.deferred, self.far_deferred = socket.socketpair()
        self.plain, self.far_plain = socket.socketpair()
        self.poller.add(self.deferred.fileno(), self.reads(self.deferred, "deferred"))
        self.poller.add(self.plain.fileno(), self.reads(self.plain, "plain"))
        self.poller.set_deferred(self.deferred.fileno(), True)

    def reads(self, sock: socket.socket, name: str) -> Callable[[], None]:
        def read() -> None:
            sock.recv(100)
            self.served.append(name)
            self.poller.is_wanted = True  # ends the wait

        return read

    def expect(self, urgency: int = LATER) -> None:
        """A turn in which something was sent to the deferred socket."""
        self.poller.expect(urgency)
        self.poller.serve([])

    def wakes(self) -> bool:
        """Whether the kernel would end a wait now."""
        return bool(self.poller.epoll.poll(0, 10))

    def close(self) -> None:
        self.poller.close()
        for sock in (self.deferred, self.far_deferred, self.plain, self.far_plain):
            sock.close()


@pytest.fixture(params=["epoll", "any poller"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    if request.param == "any poller":
        monkeypatch.setattr(turns_module, "_new_epoll", turns_module._Epoll)
    one = Bench()
    yield one
    one.close()


def test_an_expected_acknowledgement_wakes_nobody_and_is_read_after_the_lag(bench: Bench) -> None:
    bench.expect()
    bench.far_deferred.send(b"x")
    assert not bench.wakes()
    start = time.monotonic()
    assert bench.poller.wait(-1.0) == []
    assert bench.served == ["deferred"]
    assert time.monotonic() - start >= LAG_S * 0.9


def test_what_is_wanted_soon_is_read_in_the_turn_that_something_else_causes(bench: Bench) -> None:
    bench.expect(SOON)
    bench.far_deferred.send(b"x")
    assert not bench.wakes()
    bench.far_plain.send(b"x")
    assert bench.poller.wait(-1.0) == []
    assert sorted(bench.served) == ["deferred", "plain"]


def test_what_is_not_wanted_soon_is_left_alone_in_other_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LAG_S", 60.0)
    bench.expect()
    bench.far_deferred.send(b"x")
    for _ in range(3):
        bench.far_plain.send(b"x")
        assert bench.poller.wait(-1.0) == []
    assert bench.served == ["plain"] * 3
    bench.expect(SOON)
    bench.far_plain.send(b"x")
    bench.poller.wait(-1.0)
    assert sorted(bench.served) == ["deferred", "plain", "plain", "plain", "plain"]


def test_more_of_them_than_fit_into_a_turn_are_read_in_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LAG_S", 60.0)
    monkeypatch.setattr(turns_module, "EVENTS_MAX", 1)
    near, far = socket.socketpair()
    with near, far:
        bench.poller.add(near.fileno(), bench.reads(near, "other"))
        bench.poller.set_deferred(near.fileno(), True)
        bench.expect(SOON)
        bench.far_deferred.send(b"x")
        far.send(b"x")
        for _ in range(2):
            bench.poller.expect(LATER)
            bench.far_plain.send(b"x")
            bench.poller.wait(-1.0)
        assert sorted(bench.served) == ["deferred", "other", "plain", "plain"]
        bench.poller.remove(near.fileno())


def test_others_cannot_put_it_off_for_longer_than_the_lag(bench: Bench) -> None:
    bench.expect()
    bench.far_deferred.send(b"x")
    deadline = time.monotonic() + PATIENCE_S
    while "deferred" not in bench.served:
        bench.far_plain.send(b"x")
        bench.poller.wait(-1.0)
        assert time.monotonic() < deadline


def test_what_is_wanted_now_wakes_though_it_was_sent_between_two_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LAG_S", 60.0)
    bench.expect()
    bench.poller.expect(NOW)
    bench.far_deferred.send(b"x")
    bench.poller.wait(PATIENCE_S)
    assert bench.served == ["deferred"]


def test_when_nothing_was_sent_to_it_it_wakes_like_any_other(bench: Bench) -> None:
    bench.far_deferred.send(b"x")
    assert bench.wakes()
    assert bench.poller.wait(-1.0) == []
    assert bench.served == ["deferred"]


def test_after_one_lag_it_wakes_again(bench: Bench) -> None:
    bench.expect()
    assert bench.poller.wait(2 * LAG_S) == []
    bench.far_deferred.send(b"x")
    assert bench.wakes()
    bench.poller.wait(-1.0)
    assert bench.served == ["deferred"]


def test_when_something_waits_for_its_acknowledgement_it_wakes(bench: Bench) -> None:
    bench.expect(NOW)
    bench.far_deferred.send(b"x")
    assert bench.wakes()


def test_without_a_wait_of_our_own_nothing_lags() -> None:
    bench = Bench(may_lag=False)
    try:
        bench.expect()
        bench.far_deferred.send(b"x")
        assert bench.wakes()
    finally:
        bench.close()


def test_a_wait_of_no_time_serves_what_is_there(bench: Bench) -> None:
    bench.expect()
    bench.far_deferred.send(b"x")
    assert bench.poller.wait(0.0) == []
    assert bench.served == ["deferred"]


def test_a_short_wait_is_not_made_longer_by_the_lag(bench: Bench) -> None:
    limits: list[float] = []
    epoll = bench.poller.epoll

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(epoll, name)

        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
            limits.append(timeout)
            events: list[tuple[int, int]] = epoll.poll(timeout, maxevents)
            return events

    bench.expect()
    bench.poller.epoll = Noted()
    bench.poller.wait(LAG_S / 10)
    bench.poller.wait(0.0)
    bench.poller.epoll = epoll
    assert len(limits) >= 2 and limits[-1] == 0.0
    assert max(limits) <= LAG_S / 10
    assert bench.served == []


def test_back_among_the_others(bench: Bench) -> None:
    bench.poller.set_deferred(bench.deferred.fileno(), False)
    bench.expect()
    bench.far_deferred.send(b"x")
    assert bench.wakes()
    bench.poller.wait(-1.0)
    assert bench.served == ["deferred"]


def test_paused_and_resumed_while_deferred(bench: Bench) -> None:
    fd = bench.deferred.fileno()
    bench.poller.watch(fd, None, None)
    bench.far_deferred.send(b"x")
    bench.expect()
    bench.poller.wait(2 * LAG_S)
    assert bench.served == []
    bench.poller.watch(fd, bench.reads(bench.deferred, "again"), None)
    bench.poller.wait(-1.0)
    assert bench.served == ["again"]


def test_writable_while_deferred(bench: Bench) -> None:
    fd = bench.deferred.fileno()

    def write() -> None:
        bench.served.append("written")
        bench.poller.watch(fd, bench.reads(bench.deferred, "deferred"), None)
        bench.poller.is_wanted = True

    bench.poller.watch(fd, bench.reads(bench.deferred, "deferred"), write)
    bench.expect()
    bench.poller.wait(-1.0)
    assert bench.served == ["written"]


@pytest.mark.parametrize("is_paused", [False, True])
def test_removed_while_deferred(bench: Bench, is_paused: bool) -> None:
    fd = bench.deferred.fileno()
    bench.expect()
    bench.far_deferred.close()
    if is_paused:
        bench.poller.watch(fd, None, None)
    bench.poller.remove(fd)
    bench.deferred.close()
    bench.far_plain.send(b"x")
    assert bench.poller.wait(-1.0) == []
    assert bench.served == ["plain"]
    assert not bench.wakes()


def test_a_hang_up_while_deferred_and_paused_is_no_busy_loop(bench: Bench) -> None:
    bench.poller.watch(bench.deferred.fileno(), None, None)
    bench.far_deferred.close()
    assert not bench.wakes()
    bench.expect()
    bench.poller.wait(2 * LAG_S)
    assert not bench.wakes()


# Shares of a turn.


class Crowd:
    """Sockets with input, each of which costs so much work to read."""

    def __init__(self, count: int, units: int) -> None:
        self.work = Work(share=10, turn_units=20)
        self.poller = Poller()
        self.poller.bound(self.work)
        self.served: list[int] = []
        self.shares: set[int] = set()
        self.sizes: set[int] = set()
        self.turns = 0
        self.poller.end_turn = self._end_turn
        self.pairs = [socket.socketpair() for _ in range(count)]
        for number, (near, far) in enumerate(self.pairs):
            far.send(b"x")
            self.poller.add(near.fileno(), self._reads(number, units))

    def _reads(self, number: int, units: int) -> Callable[[], None]:
        def read() -> None:  # and leave something: it is ready in every turn
            self.work.spent += units
            self.served.append(number)
            self.shares.add(self.work.share)
            self.sizes.add(self.poller.read_bytes)

        return read

    def _end_turn(self) -> None:
        self.turns += 1

    def serve(self, turns: int) -> None:
        while self.turns < turns:
            self.poller.wait(0.0)

    def close(self) -> None:
        self.poller.close()
        for pair in self.pairs:
            for sock in pair:
                sock.close()


@pytest.fixture(params=[3, 12])
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    one = Crowd(request.param, units=10)
    yield one
    one.close()


def test_a_turn_ends_and_those_that_are_left_come_first_in_the_next(crowd: Crowd) -> None:
    crowd.serve(1)
    assert len(crowd.served) == 2
    crowd.serve(3 * len(crowd.pairs))
    least = min(crowd.served.count(number) for number in range(len(crowd.pairs)))
    assert least >= 3, "however ready the others are"


def test_a_turn_is_divided_among_those_that_are_ready(crowd: Crowd) -> None:
    crowd.serve(1)
    many = len(crowd.pairs) > 8
    assert crowd.shares == {20 // len(crowd.pairs)}
    assert crowd.sizes == {READ_BYTES // 4 if many else READ_BYTES}
    assert crowd.work.share == 10, "what else works has all of it"


def test_a_socket_that_is_left_may_go(crowd: Crowd) -> None:
    crowd.serve(1)
    left = set(range(len(crowd.pairs))) - set(crowd.served)
    gone = min(left)
    crowd.poller.remove(crowd.pairs[gone][0].fileno())
    crowd.serve(3 * len(crowd.pairs))
    assert gone not in crowd.served and left - {gone} <= set(crowd.served)

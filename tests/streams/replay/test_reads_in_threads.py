"""Reads in threads: one at a time for each client, and none that nobody wants any longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqtt_broker.streams.replay.read_ahead import ReadQueue


class Threads:
    """Keeps what it is given until a test lets one of it be done."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.queue = ReadQueue(lambda work, done: self.given.append((work, done)))
        self.found: list[Any] = []

    def ask(self, client: str, what: object, *, is_wanted: bool = True) -> None:
        self.queue.read(client, lambda: what, self.found.append, lambda: is_wanted)

    def finish(self) -> None:
        work, done = self.given.pop(0)
        done(work())


def test_one_at_a_time_for_each_client() -> None:
    threads = Threads()
    for number in range(5):
        threads.ask("a", number)
    threads.ask("b", "b")
    assert len(threads.given) == 2 and len(threads.queue) == 2
    threads.finish()
    threads.finish()
    assert threads.found == [0, "b"], "b does not wait for what a has asked for"
    for _ in range(4):
        threads.finish()
    assert threads.found == [0, "b", 1, 2, 3, 4]
    assert not threads.given and not len(threads.queue)


def test_what_is_not_wanted_any_longer_is_not_read() -> None:
    threads = Threads()
    threads.ask("a", 0, is_wanted=False)  # it has begun
    for number in range(1, 1_000):
        threads.ask("a", number, is_wanted=number == 999)
    threads.finish()
    assert threads.found == [None] * 998 + [0] and len(threads.given) == 1
    threads.finish()
    assert threads.found[-1] == 999 and not len(threads.queue)


def test_what_is_asked_for_by_an_answer_comes_behind() -> None:
    threads = Threads()

    def again(found: object) -> None:
        threads.found.append(found)
        threads.ask("a", "again")

    threads.queue.read("a", lambda: "first", again, lambda: True)
    threads.ask("a", "second")
    for _ in range(3):
        threads.finish()
    assert threads.found == ["first", "second", "again"]

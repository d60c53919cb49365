"""The loads of the store's benchmark, on the clients of `peers`.

    online    closed loops at QoS 1 or 2, a publisher and a persistent subscriber each
    away      QoS 1 to sessions that are away, from the first byte to the last PUBACK
    paced     single QoS 1 messages at a fixed rate
    plain     QoS 0, at a fixed rate or as fast as it goes
    enrol     sessions with one subscription each, which go away
    collect   sessions that come back for what waited

Each runs in a process of its own and takes `Target`, where the broker is. Times are of the
monotonic clock, which all processes of a machine share. Topics, client ids and frames are a
function of a name and a number.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not


from tests.bench.peers import (
    WARM_UP_S,
    WAVE,
    Flow,
    Frames,
    Gatherer,
    Link,
    Poll,
    Publisher,
    Stopwatch,
    Subscriber,
    Target,
    Wrong,
    cpu_seconds,
    spread_ms,
)


def topic_of(name: str, number: int) -> str:
    return f"bench/{name}/{number:05}"


def _publishers(
    poll: Poll, target: Target, name: str, every: Sequence[Frames], window: int
) -> list[Publisher]:
    found = [
        Publisher(target, f"{name}-p{number}", frames, window)
        for number, frames in enumerate(every)
    ]
    for one in found:
        poll.add(one.welcome())
    return found


def online(
    target: Target, qos: int, pairs: int, window: int, payload_bytes: int, seconds: float
) -> Flow:
    name = f"online{qos}"
    every = [
        Frames(topic_of(name, number), qos, payload_bytes, 10 * window, number)
        for number in range(pairs)
    ]
    with Poll() as poll:
        takers = [
            Subscriber(target, f"{name}-s{number}", frames) for number, frames in enumerate(every)
        ]
        for number, one in enumerate(takers):
            one.welcome().subscribe(topic_of(name, number), qos)
            poll.add(one)
        givers = _publishers(poll, target, name, every, window)
        for giver in givers:
            giver.fill()
        poll.run(time.monotonic() + WARM_UP_S)
        came, began, cpu = (
            sum(one.came for one in takers),
            time.monotonic(),
            cpu_seconds(target.pid),
        )
        poll.run(began + seconds)
        flow = Flow(
            sum(one.came for one in takers) - came,
            began,
            time.monotonic(),
            cpu_seconds(target.pid) - cpu,
        )
        for giver in givers:
            giver.due = giver.sent
        due = sum(giver.sent for giver in givers)
        poll.finish(f"{name}: acknowledged", due, lambda: sum(giver.done for giver in givers))
        poll.finish(f"{name}: delivered", due, lambda: sum(one.came for one in takers))
        if qos == 2:
            poll.finish(f"{name}: released", due, lambda: sum(one.done for one in takers))
        poll.ask_all(name)
        poll.finish(f"{name}: delivered", due, lambda: sum(one.came for one in takers))
        return flow


def away(
    target: Target,
    name: str,
    topics: Sequence[str],
    each: int,
    window: int,
    payload_bytes: int,
    *,
    then_kill: bool = False,
) -> Flow:
    """A publisher for each topic, `each` messages from each of them.

    `then_kill`: the last PUBACK is the last thing the broker does.
    """
    every = [Frames(topic, 1, payload_bytes, window, number) for number, topic in enumerate(topics)]
    with Poll() as poll:
        givers = _publishers(poll, target, name, every, window)
        for giver in givers:
            giver.due = each
        began, cpu = time.monotonic(), cpu_seconds(target.pid)
        for giver in givers:
            giver.fill()
        due = each * len(givers)
        what = f"{name}: acknowledged"
        ended = poll.finish(what, due, lambda: sum(giver.done for giver in givers))
        if then_kill:
            os.kill(target.pid, signal.SIGKILL)
            return Flow(due, began, ended, 0.0)
        flow = Flow(due, began, ended, cpu_seconds(target.pid) - cpu)
        poll.ask_all(name)
        return flow


def enrol(target: Target, names: Sequence[str], filters: Sequence[str], qos: int) -> None:
    """Sessions that outlive their connections, with one subscription each."""
    for start in range(0, len(names), WAVE):
        with ExitStack() as stack:
            links: list[Link] = []
            for name, text in zip(
                names[start : start + WAVE], filters[start : start + WAVE], strict=True
            ):
                link = stack.enter_context(Link(target, name, clean=False))
                link.ask_subscribe(text, qos)
                links.append(link)
            for link in links:
                link.welcome().subscribed(qos)
            for link in links:
                link.leave()


def collect(
    target: Target,
    names: Sequence[str],
    topics: Sequence[str],
    each: int,
    window: int,
    payload_bytes: int,
    owners: Sequence[int],
) -> Flow:
    """Sessions get what waited: `each` messages that `away` had sent with the same numbers.

    Where many publishers sent to one topic, `owners` is empty.
    """
    with Poll() as poll:
        takers: list[Subscriber] = []
        began, cpu = time.monotonic(), cpu_seconds(target.pid)
        for place, name in enumerate(names):
            owner = owners[place] if owners else 0
            frames = Frames(topics[place], 1, payload_bytes, window, owner)
            kind = Subscriber if owners else Gatherer
            takers.append(kind(target, name, frames))
        for taker in takers:
            poll.add(taker.welcome())
        due = each * len(names)

        def came() -> int:
            return sum(taker.came for taker in takers)

        ended = poll.finish("collected", due, came)
        flow = Flow(due, began, ended, cpu_seconds(target.pid) - cpu)
        poll.ask_all("collected")
        poll.finish("collected", due, came)
        if wrong := [taker.client_id for taker in takers if taker.came != each]:
            raise Wrong(f"{wrong[0]} and {len(wrong) - 1} others did not get {each} messages")
        return flow


def _pace(
    poll: Poll, rate: float, until: float, send: Iterator[Callable[[], None]]
) -> tuple[int, list[float]]:
    """Call one after the other at a rate; how many, and how late each was."""
    late: list[float] = []
    due = time.monotonic()
    while due < until:
        now = time.monotonic()
        while due <= now:
            late.append(now - due)
            next(send)()
            due += 1 / rate
        poll.turn(max(0.0, due - time.monotonic()))
    return len(late), late


def paced(
    target: Target, name: str, publishers: int, rate: float, payload_bytes: int, seconds: float,
    *, is_online: bool,
) -> tuple[Flow, int]:  # fmt: skip
    """QoS 1 to session `<name>-s`, which is here or away; the flow, and how many were sent."""
    every = [
        Frames(topic_of(name, number), 1, payload_bytes, paced_ring(rate, publishers), number)
        for number in range(publishers)
    ]
    with Poll() as poll:
        takers: list[Gatherer] = []
        if is_online:
            taker = Gatherer(target, f"{name}-s", every[0])
            poll.add(taker.welcome())
            takers.append(taker)
        givers = _publishers(poll, target, name, every, 0)
        turns = cycle([_one_more(giver) for giver in givers])
        _pace(poll, rate, time.monotonic() + WARM_UP_S, turns)
        watches = []
        for giver in givers:
            giver.watch = Stopwatch()
            watches.append(giver.watch)
        began, cpu = time.monotonic(), cpu_seconds(target.pid)
        count, late = _pace(poll, rate, began + seconds, turns)
        ended, spent = time.monotonic(), cpu_seconds(target.pid) - cpu
        due = sum(giver.sent for giver in givers)
        poll.finish(f"{name}: acknowledged", due, lambda: sum(giver.done for giver in givers))
        poll.ask_all(name)
        if takers:
            poll.finish(f"{name}: delivered", due, lambda: takers[0].came)
        times = spread_ms([second for watch in watches for second in watch.seconds])
        return Flow(count, began, ended, spent, times, spread_ms(late)[1]), due


def paced_ring(rate: float, publishers: int) -> int:
    """How many frames each has: enough for 10 seconds without any acknowledgement."""
    return max(10, int(10 * rate / publishers))


def _one_more(giver: Publisher) -> Callable[[], None]:
    return lambda: giver.send(1)


def plain(
    target: Target, pairs: int, rate: float, window: int, payload_bytes: int, seconds: float
) -> Flow:
    """QoS 0. Rate 0: each pair has always `window` messages under way."""
    name = "plain"
    every = [
        Frames(topic_of(name, number), 0, payload_bytes, max(1000, window), number)
        for number in range(pairs)
    ]
    with Poll() as poll:
        givers = _publishers(poll, target, name, every, 0 if rate else window)
        takers: list[Subscriber] = []
        for number, (giver, frames) in enumerate(zip(givers, every, strict=True)):
            taker = Subscriber(target, f"{name}-s{number}", frames, clean=True)
            taker.welcome().subscribe(topic_of(name, number), 0)
            taker.on_came = _echo(giver)
            poll.add(taker)
            takers.append(taker)
        turns = cycle([_one_more(giver) for giver in givers])
        watches = [Stopwatch() for _ in givers]

        def run(lasts_s: float) -> list[float]:
            until = time.monotonic() + lasts_s
            if rate:
                return _pace(poll, rate, until, turns)[1]
            for giver in givers:
                giver.fill()
            poll.run(until)
            return [0.0]

        run(WARM_UP_S)
        for giver, watch in zip(givers, watches, strict=True):
            giver.watch = watch
        came, began, cpu = (
            sum(one.came for one in takers),
            time.monotonic(),
            cpu_seconds(target.pid),
        )
        late = run(seconds)
        came = sum(one.came for one in takers) - came
        ended, spent = time.monotonic(), cpu_seconds(target.pid) - cpu
        for giver in givers:
            giver.due = giver.sent
        due = sum(giver.sent for giver in givers)
        poll.finish("QoS 0: delivered", due, lambda: sum(one.came for one in takers))
        times = spread_ms([second for watch in watches for second in watch.seconds])
        return Flow(came, began, ended, spent, times, spread_ms(late)[1])


def _echo(giver: Publisher) -> Callable[[int, float], None]:
    """What came makes room for more: QoS 0 has no other acknowledgement."""

    def on_came(count: int, now: float) -> None:
        if count > giver.done:
            giver.done = count
            if giver.watch is not None:
                giver.watch.came(count, now)
            giver.fill()

    return on_came


class Counters:
    """The figures of `$SYS/broker/store/journal`, each with the times when it was told."""

    def __init__(self, target: Target) -> None:
        self._link = Link(target, "bench-counters").welcome()
        self.told: dict[str, list[tuple[float, int]]] = {}
        for packet in self._link.subscribe("$SYS/broker/store/journal/+", 0):
            self._note(packet)

    def _note(self, packet: bytes) -> None:
        (length,) = struct.unpack_from(">H", packet, 2)  # it is shorter than 128 bytes
        name = packet[4 : 4 + length].decode().rpartition("/")[2]
        self.told.setdefault(name, []).append((time.monotonic(), int(packet[4 + length :])))

    def gather(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._link.sock.settimeout(left)
            try:
                self._note(self._link.packet())
            except TimeoutError:
                return

    def last(self, name: str) -> int:
        return self.told[name][-1][1] if name in self.told else 0

    def rate(self, name: str, began: float, ended: float) -> float:
        """How much it grew a second, between the first and the last report in that time."""
        told = [one for one in self.told.get(name, []) if began <= one[0] <= ended]
        if len(told) < 2:
            return 0.0
        (first_at, first), (last_at, last) = told[0], told[-1]
        return (last - first) / (last_at - first_at)

    def close(self) -> None:
        self._link.close()

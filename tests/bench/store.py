"""What the store costs by itself: commits, queueing for clients that are away, and starts.

    python tests/bench/store.py [commit] [queue] [start] [--postgresql] [--small]

Without names, all. The directory is made where the script is called, so that the disk that is
measured is one that is meant. A second thread sleeps a millisecond at a time and sees how long
the interpreter was kept from it: that is what the event loop feels.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pathlib
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from sessions.journal import records
from sessions.journal.rows import SessionRow, SubscriptionRow
from sessions.store.store import Store
from tests.fault.postgres import PostgreSQL

AHEAD_MAX = 8  # groups that are submitted and not committed
NEVER = 4_294_967_295


class Bench:
    """A store that is fed as fast as it commits."""

    def __init__(self, data_dir: str, url: str) -> None:
        self.store = Store.open(data_dir=data_dir, database_url=url)
        snapshot = self.store.snapshot()
        self.number = snapshot.last_number
        self.mid = snapshot.last_mid
        self._committed = self._folded = self.number
        self._room = threading.Semaphore(AHEAD_MAX)
        self._news = threading.Condition()
        self.store.start(self._on_committed, self._on_folded, print)

    def _on_committed(self, number: int) -> None:
        with self._news:
            self._room.release(number - self._committed)
            self._committed = number
            self._news.notify_all()

    def _on_folded(self, number: int) -> None:
        with self._news:
            self._folded = number
            self._news.notify_all()

    def submit(self, found: list[bytes]) -> None:
        self._room.acquire()
        self.number += 1
        self.store.submit(self.number, records.seal(found), time.time())

    def until_committed(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._committed == self.number)

    def until_folded(self) -> None:
        self.until_committed()
        self.store.apply_soon()
        with self._news:
            self._news.wait_for(lambda: self._folded == self.number)

    def messages(self, count: int, size: int = 100) -> bytes:
        first, self.mid = self.mid + 1, self.mid + count
        payloads = [os.urandom(size) for _ in range(count)]
        return records.encode_stored(
            first, b"fleet/7/temperature", 1, False, b"", b"meter-7", time.time(), -1, payloads
        )

    def delivery(self, sid: int, count: int, back: int = 0) -> bytes:
        """Of the last messages, or of those so many before them; numbered as they are."""
        mid = self.mid - count + 1 - back
        return records.encode_delivered(sid, mid, mid, count, 150, 1, False, (), "", [])

    def sessions(self, first: int, count: int) -> None:
        for start in range(first, first + count, 1000):
            found = []
            for sid in range(start, min(start + 1000, first + count)):
                row = SessionRow(
                    sid, f"meter-{sid}", None, 5, 1.0, NEVER, False, float("inf"), 0.0, None
                )
                subscription = SubscriptionRow(sid, f"fleet/{sid}/#", 1, False, False, 0, 0)
                found += [records.encode_session(row), records.encode_subscribed(subscription)]
            self.submit(found)


class Loop:
    """How long the interpreter was away, as a thread sees it that wakes every millisecond."""

    def __enter__(self) -> Self:
        self.late: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.late.sort()

    def _run(self) -> None:
        while not self._stop.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            self.late.append(time.perf_counter() - start - 0.001)

    def __str__(self) -> str:
        p50, p99, worst = (self.late[int(len(self.late) * share)] for share in (0.5, 0.99, 0.99999))
        return f"late by {p50 * 1e3:.2f} ms p50, {p99 * 1e3:.2f} p99, {worst * 1e3:.2f} at worst"


def commit(bench: Bench, small: bool) -> None:
    """One group at a time, as a quiet broker does it."""
    bench.sessions(1, 1)
    bench.until_folded()
    for count in (1, 100, 1000):
        times = []
        cpu = time.process_time()
        for _ in range(200 if small else 1000):
            found = [bench.messages(count), bench.delivery(1, count)]
            start = time.perf_counter()
            bench.submit(found)
            bench.until_committed()
            times.append(time.perf_counter() - start)
            # What is measured is a commit, not the folding of a queue.
            bench.submit([records.encode_done(1, [(bench.mid - count + 1, 0, count)])])
            bench.until_committed()
        cpu = (time.process_time() - cpu) / len(times) / 2
        times.sort()
        print(
            f"commit of {count:4} messages: {times[len(times) // 2] * 1e3:.2f} ms p50, "
            f"{times[int(len(times) * 0.99)] * 1e3:.2f} p99, {cpu * 1e6:.0f} us CPU a group"
        )


def queue(bench: Bench, small: bool) -> None:
    """Messages for clients that are away: into the journal and into the tables."""
    bench.sessions(1, 1000)
    bench.until_folded()
    total = 100_000 if small else 500_000

    def runs() -> None:
        for at in range(total // 500):
            bench.submit([bench.messages(500), bench.delivery(1 + at % 100, 500)])

    def singles() -> None:
        for _ in range(total // 500):
            found = []
            for one in range(500):
                found += [bench.messages(1), bench.delivery(1 + one * 7 % 1000, 1)]
            bench.submit(found)

    def fan_out() -> None:
        for _ in range(total // 1000):
            found = [bench.messages(1)]
            found += [bench.delivery(1 + one, 1) for one in range(1000)]
            bench.submit(found)

    cases: tuple[tuple[str, Callable[[], None]], ...] = (
        ("runs of 500", runs),
        ("one by one", singles),
        ("one for 1,000", fan_out),
    )
    for name, feed in cases:
        cpu, start = time.process_time(), time.perf_counter()
        with Loop() as loop:
            feed()
            bench.until_committed()
            committed = time.perf_counter() - start
            bench.until_folded()
        took = time.perf_counter() - start
        cpu = time.process_time() - cpu
        print(
            f"queue, {name}: {total / took:,.0f} deliveries/s folded "
            f"({total / committed:,.0f} committed), {cpu / total * 1e6:.1f} us CPU each; {loop}"
        )
    start = time.perf_counter()
    bench.submit([records.encode_end(sid) for sid in range(1, 1001)])
    bench.until_folded()
    print(f"end of 1,000 sessions with {3 * total:,} deliveries: "
          f"{time.perf_counter() - start:.1f} s")  # fmt: skip


def start(bench: Bench, small: bool, again: Callable[[], Store]) -> None:
    """A broker that comes back to a large state."""
    share = 10 if small else 1
    sessions = 100_000 // share
    bench.sessions(1, sessions)
    for at in range(1_000_000 // share // 500):
        bench.submit([bench.messages(500), *(
            bench.delivery(1 + (at * 50 + one) % sessions, 10, back=one * 10)
            for one in range(50)
        )])  # fmt: skip
    for _ in range(100_000 // share // 500):
        found = []
        for _ in range(500):
            found += [bench.messages(1), records.encode_retained(bench.mid, 0)]
        bench.submit(found)
    assert bench.store.stop(600)
    before = resident()
    began = time.perf_counter()
    store = again()
    opened = time.perf_counter()
    snapshot = store.snapshot()
    print(f"start: open {opened - began:.2f} s")
    for name in ("sessions", "subscriptions", "backlogs", "windows", "retained"):
        began = time.perf_counter()
        kept = list(getattr(snapshot, name))
        print(
            f"start: {len(kept):,} {name} in {time.perf_counter() - began:.2f} s, "
            f"{resident() - before:.0f} MB with their rows"
        )
    assert sum(1 for _ in snapshot.backlogs) == 0  # each is read once
    store.start(print_nothing, print_nothing, print_nothing)
    times = []
    for sid in range(1, 201):
        came = threading.Event()
        began = time.perf_counter()
        store.page(sid, 0, 100, 1 << 20, partial(_set, came))
        came.wait()
        times.append(time.perf_counter() - began)
    times.sort()
    print(f"page of 10: {times[100] * 1e3:.2f} ms p50, {times[-2] * 1e3:.2f} p99")
    store.abandon()


def print_nothing(_: object) -> None: ...


def _set(came: threading.Event, _: object) -> None:
    came.set()


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


@contextlib.contextmanager
def place(is_postgresql: bool) -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix="bench-"))
        url = ""
        if is_postgresql:
            url = stack.enter_context(PostgreSQL()).database("bench")
        yield directory, url


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["commit", "queue", "start", []])
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--small", action="store_true", help="a tenth of it")
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as `fleetmq broker` does
    for name in args.what or ("commit", "queue", "start"):
        with place(args.postgresql) as (directory, url):
            bench = Bench(directory, url)
            if name == "start":
                start(bench, args.small, lambda: Store.open(data_dir=directory, database_url=url))
            else:
                (commit if name == "commit" else queue)(bench, args.small)
                bench.store.stop(60)


if __name__ == "__main__":
    main()

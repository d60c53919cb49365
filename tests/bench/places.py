"""Where the store's benchmark keeps stores, the broker on them, and stores made without one."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not

from sqlalchemy import Engine, NullPool, create_engine, make_url, text

from mqtt_broker.codec.constants import NEVER_EXPIRES, V311
from sessions.journal import records
from sessions.journal.rows import SessionRow, SubscriptionRow
from sessions.messages.message import MESSAGE_OVERHEAD_BYTES
from sessions.store.store import Store
from tests.bench.flows import Counters
from tests.bench.peers import Link, Target, Wrong
from tests.fault.tether import tied

PATIENCE_S: Final = 120.0
PAYLOAD_BYTES: Final = 100
STORED_EACH: Final = 10
_PORT: Final = re.compile(r" on 127\.0\.0\.1:(\d+)")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """One store."""

    data_dir: Path
    url: str = ""

    @property
    def options(self) -> list[str]:
        return [
            f"--data-dir={self.data_dir}",
            *([f"--database-url={self.url}"] if self.url else []),
        ]

    def ask(self, statement: str, name: str = "fleetmq.db") -> Any:
        """One value, by a connection of our own that changes nothing."""
        with self._engine(name).connect() as connection:
            return connection.execute(text(statement)).scalar()

    def _engine(self, name: str) -> Engine:
        if self.url:
            return create_engine(self.url, poolclass=NullPool)
        uri = f"file:{self.data_dir / name}?mode=ro"
        return create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(uri, uri=True, timeout=PATIENCE_S),
            poolclass=NullPool,
        )

    def settle(self) -> float:
        """Wait until the tables have what the journal has now; the time when they had."""
        newest = self.ask("SELECT max(number) FROM journal", "journal.db") or 0
        until = time.monotonic() + PATIENCE_S
        while self.ask("SELECT folded FROM meta") < newest:
            if time.monotonic() > until:
                raise Wrong(f"the journal is not folded after {PATIENCE_S:.0f} s")
            time.sleep(0.02)
        return time.monotonic()

    @property
    def size_mb(self) -> float:
        """Of the tables, with their keys."""
        if self.url:
            statement = (
                "SELECT pg_total_relation_size('messages') + pg_total_relation_size('deliveries')"
            )
            return float(self.ask(statement)) / 1e6
        pages, size = self.ask("PRAGMA page_count"), self.ask("PRAGMA page_size")
        return float(pages * size) / 1e6


class Places:
    """New stores and copies of stores, gone when the run ends."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self._folder = folder
        self._url = make_url(url) if url else None
        self._numbers = itertools.count(1)
        self._made: list[str] = []

    def fresh(self) -> Place:
        return self._new("")

    def copy(self, place: Place) -> Place:
        """Of a store that no broker has."""
        if not place.url:
            data_dir = self._folder / f"store-{next(self._numbers)}"
            shutil.copytree(place.data_dir, data_dir)
            return Place(data_dir)
        return self._new(f" TEMPLATE {make_url(place.url).database}")

    def _new(self, template: str) -> Place:
        number = next(self._numbers)
        data_dir = self._folder / f"store-{number}"
        if self._url is None:
            return Place(data_dir)
        name = f"fleetmq_bench_{os.getpid()}_{number}"
        self._administer(f"CREATE DATABASE {name}{template}")
        self._made.append(name)
        url = self._url.set(database=name).render_as_string(hide_password=False)
        return Place(data_dir, url)

    def drop(self, place: Place) -> None:
        shutil.rmtree(place.data_dir, ignore_errors=True)
        if place.url:
            name = str(make_url(place.url).database)
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")
            self._made.remove(name)

    def _administer(self, statement: str) -> None:
        assert self._url is not None
        engine = create_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))

    def close(self) -> None:
        for name in list(self._made):
            self._administer(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


# The broker and its load.


class Broker:
    """`with Broker(...)`: a broker process that serves, and is alive and silent at the end."""

    def __init__(
        self, program: Path, place: Place, durability: str, settings: Mapping[str, str]
    ) -> None:
        self._command = [str(program), "broker", "--port=0", "--log-level=warning"]
        self._command += [f"--durability={durability}", *place.options]
        self._place = place
        self._is_killed = False
        kept = {name: value for name, value in os.environ.items() if name[:8] != "FLEETMQ_"}
        self._environment = {**kept, "FLEETMQ_SYS_INTERVAL_S": "1", **settings}

    def __enter__(self) -> Self:
        folder = self._place.data_dir.parent  # not the working tree: the product is installed
        self._log = folder / f"{self._place.data_dir.name}.log"
        self.began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied(self._command),
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            assert self._process.stdout is not None
            greeting = self._process.stdout.readline()
            found = _PORT.search(greeting)
            if found is None:
                raise Wrong(f"the broker did not start: {greeting}{self._log.read_text()}")
            self.target = Target("127.0.0.1", int(found[1]), self._process.pid)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = None if self._is_killed else self._process.poll()
        self._end()
        said = self._log.read_text()
        if code is not None or (said and kind is None):
            raise Wrong(f"the broker {'ended' if code is not None else 'said'}: {said or code}")
        if said:
            print(said, file=sys.stderr)

    def kill(self) -> None:
        """As a crash does; the block may end then."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()

    def _end(self) -> None:
        with self._process:
            self._process.kill()

    def memory_mb(self, name: str) -> float:
        """VmRSS, or VmHWM: the most it ever was."""
        status = Path(f"/proc/{self.target.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1e3


@contextmanager
def started(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Iterator[Future[T]]:
    """A load in a process of its own, which is over when the block ends."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool.submit(work, *args, **named)


def in_child(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    with started(work, *args, **named) as load:
        return load.result()


def watched(counters: Counters, load: Future[T]) -> T:
    """The result of a load, while the counters are listened to."""
    while not load.done():
        counters.gather(0.1)
    return load.result()


class Filling:
    """Groups of records handed to a new store, which has them in its tables at the end."""

    GROUP_BYTES: Final = 1 << 20

    def __init__(self, place: Place) -> None:
        self._store = Store.open(data_dir=str(place.data_dir), database_url=place.url)
        snapshot = self._store.snapshot()
        self._number = snapshot.last_number
        self._records: list[bytes] = []
        self._bytes = 0
        self._store.start(lambda _: None, lambda _: None, self._on_state)

    @staticmethod
    def _on_state(state: str) -> None:
        if state:
            print(f"store: {state}", file=sys.stderr)

    def add(self, record: bytes) -> None:
        self._records.append(record)
        self._bytes += len(record)
        if self._bytes > self.GROUP_BYTES:
            self._submit()

    def _submit(self) -> None:
        self._number += 1
        self._store.submit(self._number, records.seal(self._records), time.time())
        self._records, self._bytes = [], 0

    def close(self) -> None:
        if self._records:
            self._submit()
        if not self._store.stop(10 * PATIENCE_S):
            raise Wrong("the store for the start could not be made")


def stored_topic(number: int) -> str:
    return f"bench/stored/{number:06}"


def retained_topic(number: int) -> str:
    return f"bench/retained/{number:06}"


def stored_payload(number: int) -> bytes:
    return b"%06d" % number + b"x" * (PAYLOAD_BYTES - 6)


def fill_queues(place: Place, sessions: int) -> None:
    """Sessions that are away, each with one subscription and `STORED_EACH` messages."""
    filling = Filling(place)
    now = time.time()
    forever = math.inf
    for sid in range(1, sessions + 1):
        topic = stored_topic(sid)
        name, mid = f"stored-{sid}", 1 + (sid - 1) * STORED_EACH
        payloads = [stored_payload(number) for number in range(STORED_EACH)]
        size = len(topic) + PAYLOAD_BYTES + MESSAGE_OVERHEAD_BYTES
        filling.add(
            records.encode_session(
                SessionRow(sid, name, None, V311, now, NEVER_EXPIRES, False, forever, 0.0, None)
            )
        )
        filling.add(records.encode_subscribed(SubscriptionRow(sid, topic, 1, False, False, 0, 0)))
        filling.add(
            records.encode_stored(mid, topic.encode(), 1, False, b"", b"bench", now, -1, payloads)
            + records.encode_delivered(sid, 1, mid, STORED_EACH, size, 1, False, (), "", [])
        )
    filling.close()


def fill_retained(place: Place, count: int) -> None:
    filling = Filling(place)
    now = time.time()
    for mid in range(1, count + 1):
        topic = retained_topic(mid).encode()
        stored = records.encode_stored(
            mid, topic, 1, True, b"", b"bench", now, -1, [stored_payload(mid)]
        )
        filling.add(stored + records.encode_retained(mid, 0))
    filling.close()


def check_start(target: Target, sessions: int, retained: int) -> None:
    """Some sessions get their queues, or some subscribers their retained messages."""
    last = sessions or retained
    for number in {1, 2, last // 2, last - 1, last}:
        if sessions:
            with Link(target, f"stored-{number}", clean=False).welcome() as link:
                found = [link.packet()[-PAYLOAD_BYTES:] for _ in range(STORED_EACH)]
            due = [stored_payload(place) for place in range(STORED_EACH)]
        else:
            with Link(target, "looks").welcome() as link:
                before = link.subscribe(retained_topic(number), 0)
                found = [(before or [link.packet()])[0][-PAYLOAD_BYTES:]]
            due = [stored_payload(number)]
        if found != due:
            raise Wrong(f"number {number} is not there as it was")

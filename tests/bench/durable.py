"""What it costs to keep sessions: the store under load, beside the limits it has to hold.

    python tests/bench/durable.py                       all scenarios, on SQLite
    python tests/bench/durable.py --only offline,start  some
    python tests/bench/durable.py --postgresql          on a PostgreSQL of the run's own
    python tests/bench/durable.py --database-url URL    on yours: a role that may create databases
    python tests/bench/durable.py --scale 0.1 --rounds 1 --seconds 2     a quick look

Each measurement has a broker process of its own and a fresh store; the modes that are compared
take turns. Figures are medians of the rounds. CPU time is that of the broker's process, all
threads, and not that of PostgreSQL. The load comes from tests/bench/flows.py and ends the run
when anything is lost or out of order.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not


from tests.bench import flows, peers
from tests.bench.flows import Counters
from tests.bench.password_check import answers
from tests.bench.password_check import options as asked
from tests.bench.peers import Flow, Link, Wrong
from tests.bench.places import (
    PAYLOAD_BYTES,
    STORED_EACH,
    Broker,
    Place,
    Places,
    check_start,
    fill_queues,
    fill_retained,
    in_child,
    started,
    watched,
)
from tests.fault.postgres import PostgreSQL, Unavailable

REPORT_S: Final = 1.2  # after this, $SYS has told what was
PAIRS: Final = 50
WINDOW: Final = 20
AWAY_EACH: Final = 20_000  # messages for each of 50 sessions that are away
AWAY_WINDOW: Final = 2_000
SHARING: Final = 10_000  # sessions that are away and get the same messages
SHARED_MESSAGES: Final = 100
SHARED_PAYLOAD_BYTES: Final = 500
PACED: Final = 200  # publishers
PACED_RATE: Final = 2_000.0
PLAIN_PAIRS: Final = 20
PLAIN_RATE: Final = 4_000.0
STORED_SESSIONS: Final = 100_000
RETAINED: Final = 100_000


# Tables.


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    print(f"\n{title}")
    for row in (head, *rows):
        first, *others = (
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + "  ".join((first, *others)).rstrip())
    for note in notes:
        print(f"  {note}")
    sys.stdout.flush()


def verdict(what: str, value: float, limit: float, *, most: bool = False) -> str:
    """A line that says whether a limit holds."""
    holds = value <= limit if most else value >= limit
    words = "at most" if most else "at least"
    return f"{'holds' if holds else 'MISSED'}: {what} {value:,.2f}, limit {words} {limit:,g}"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


class Rounds:
    """What was measured, by mode and by figure, over the rounds."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, mode: str, **figures: float) -> None:
        for name, value in figures.items():
            self._values.setdefault(mode, {}).setdefault(name, []).append(value)

    def of(self, mode: str, name: str) -> float:
        return median(self._values.get(mode, {}).get(name, []))

    def row(self, mode: str, names: Sequence[str]) -> list[str]:
        known = self._values.get(mode, {})
        return [mode, *(short(self.of(mode, name)) if name in known else "-" for name in names)]

    def rows(self, names: Sequence[str]) -> list[list[str]]:
        return [self.row(mode, names) for mode in self._values]


# Scenarios.


@dataclass(slots=True)
class Bench:
    """How the scenarios run."""

    program: Path
    places: Places
    rounds: int
    seconds: float
    scale: float
    is_sqlite: bool

    def sized(self, count: int) -> int:
        return max(10, int(count * self.scale))

    @contextmanager
    def broker(self, durability: str = "commit", **settings: str) -> Iterator[tuple[Broker, Place]]:
        place = self.places.fresh()
        with Broker(self.program, place, durability, settings) as broker:
            yield broker, place
        self.places.drop(place)

    # Online.

    def online(self, qos: int) -> None:
        rounds = Rounds()
        for _ in range(self.rounds):
            for mode in ("memory", "commit"):
                with self.broker(mode) as (broker, _):
                    arguments = (broker.target, qos, PAIRS, WINDOW, PAYLOAD_BYTES, self.seconds)
                    flow = in_child(flows.online, *arguments)
                    rounds.add(mode, rate=flow.rate, cpu=flow.cpu_us)
                    if mode == "commit":
                        counters = Counters(broker.target)
                        counters.gather(REPORT_S)
                        counters.close()
                        names = ("records", "commits", "folded", "cancelled")
                        rounds.add(mode, **{name: counters.last(name) for name in names})
        ratio = rounds.of("commit", "rate") / rounds.of("memory", "rate")
        show(
            f"online-qos{qos}: {PAIRS} publishers, {PAIRS} persistent subscribers, window {WINDOW}",
            ("", "messages/s", "CPU us", "records", "commits", "folded", "cancelled"),
            rounds.rows(("rate", "cpu", "records", "commits", "folded", "cancelled")),
            verdict("commit / memory", ratio, 0.6 if qos == 1 else 0.4),
        )

    # Away.

    def offline(self) -> None:
        """To sessions that are away, each with its own topic; then they come for it.

        In the end once more, with a kill right behind the last PUBACK: all of it was on disk.
        """
        rounds = Rounds()
        each = self.sized(AWAY_EACH)
        names = [f"away-s{number}" for number in range(PAIRS)]
        topics = [flows.topic_of("away", number) for number in range(PAIRS)]
        away = ("away", topics, each, AWAY_WINDOW, PAYLOAD_BYTES)
        back = (names, topics, each, AWAY_WINDOW, PAYLOAD_BYTES, range(PAIRS))
        for _ in range(self.rounds):
            with self.broker() as (broker, place):
                target = broker.target
                in_child(flows.enrol, target, names, topics, 1)
                flow = in_child(flows.away, target, *away)
                folded = place.settle()
                stored = place.ask("SELECT count(*) FROM deliveries")
                if stored != flow.messages:
                    raise Wrong(f"{stored} of {flow.messages} are in the tables")
                rounds.add(
                    "commit",
                    rate=flow.rate,
                    cpu=flow.cpu_us,
                    folded=flow.messages / (folded - flow.began),
                    back=in_child(flows.collect, target, *back).rate,
                    peak=broker.memory_mb("VmHWM"),
                )
        with self.broker() as (broker, place):
            in_child(flows.enrol, broker.target, names, topics, 1)
            in_child(flows.away, broker.target, *away, then_kill=True)
            broker.kill()
            with Broker(self.program, place, "commit", {}) as again:
                in_child(flows.collect, again.target, *back)
        show(
            f"offline: {PAIRS * each:,} messages of {PAYLOAD_BYTES} bytes to {PAIRS} sessions away",
            ("", "messages/s", "CPU us", "until lag 0 /s", "fetched /s", "peak MB"),
            rounds.rows(("rate", "cpu", "folded", "back", "peak")),
            verdict(
                "messages/s", rounds.of("commit", "rate"), 40_000 if self.is_sqlite else 20_000
            ),
            f"a broker killed right behind the last PUBACK had all {PAIRS * each:,} afterwards",
        )

    def shared(self) -> None:
        """Many sessions that are away get each message; it is stored once."""
        rounds = Rounds()
        count = self.sized(SHARING)
        names = [f"shared-s{number}" for number in range(count)]
        topic = flows.topic_of("shared", 0)
        back_names = names[:: max(1, count // 100)]
        for _ in range(self.rounds):
            with self.broker() as (broker, place):
                target = broker.target
                in_child(flows.enrol, target, names, [topic] * count, 1)
                place.settle()
                before = place.size_mb
                sizes = (SHARED_MESSAGES, SHARED_MESSAGES, SHARED_PAYLOAD_BYTES)
                flow = in_child(flows.away, target, "shared", [topic], *sizes)
                folded = place.settle()
                stored = place.ask("SELECT count(*) FROM messages WHERE topic LIKE 'bench/%'")
                deliveries = place.ask("SELECT count(*) FROM deliveries")
                if (stored, deliveries) != (SHARED_MESSAGES, SHARED_MESSAGES * count):
                    raise Wrong(f"{stored} messages, {deliveries} deliveries are stored")
                size_mb = place.size_mb - before
                rounds.add(
                    "commit",
                    rate=flow.rate,
                    deliveries=flow.rate * count,
                    folded=deliveries / (folded - flow.began),
                    cpu=flow.cpu_us / count,
                    size=size_mb,
                    each=size_mb * 1e6 / deliveries,
                    peak=broker.memory_mb("VmHWM"),
                )
                topics = [topic] * len(back_names)
                in_child(flows.collect, target, back_names, topics, *sizes, [0] * len(topics))
        show(
            f"shared: {SHARED_MESSAGES} messages of {SHARED_PAYLOAD_BYTES} bytes, each to "
            f"{count:,} sessions away; a message is stored once",
            ("", "messages/s", "deliveries/s", "until lag 0 /s", "CPU us a delivery", "database MB",
             "bytes a delivery", "peak MB"),
            rounds.rows(("rate", "deliveries", "folded", "cpu", "size", "each", "peak")),
        )  # fmt: skip

    # One at a time.

    def puback(self) -> None:
        rounds = Rounds()
        variants = [
            (f"{mode}, {'online' if is_online else 'away'}", mode, is_online)
            for is_online in (False, True)
            for mode in ("memory", "commit")
        ]
        for _ in range(self.rounds):
            for label, mode, is_online in variants:
                with self.broker(mode) as (broker, _):
                    flow, counters = self._paced(broker, is_online=is_online)
                    p50, p99, longest = flow.latencies_ms
                    rounds.add(
                        label, p50=p50, p99=p99, longest=longest, cpu=flow.cpu_us,
                        late=flow.late_ms_p99,
                    )  # fmt: skip
                    if mode == "commit":
                        commits = counters.rate("commits", flow.began, flow.ended)
                        rounds.add(label, commits=commits)
        show(
            f"puback: QoS 1 at {PACED_RATE:,.0f}/s from {PACED} publishers to one stored session",
            ("", "p50 ms", "p99 ms", "max ms", "CPU us", "commits/s", "load late ms p99"),
            rounds.rows(("p50", "p99", "longest", "cpu", "commits", "late")),
            verdict("PUBACK p99 ms, away", rounds.of("commit, away", "p99"), 10, most=True),
            verdict("PUBACK p99 ms, online", rounds.of("commit, online", "p99"), 10, most=True),
        )

    def _paced(self, broker: Broker, *, is_online: bool) -> tuple[Flow, Counters]:
        target = broker.target
        in_child(flows.enrol, target, ["paced-s"], ["bench/paced/#"], 1)
        counters = Counters(target)
        arguments = (target, "paced", PACED, PACED_RATE, PAYLOAD_BYTES, self.seconds)
        with started(flows.paced, *arguments, is_online=is_online) as load:
            flow, sent = watched(counters, load)
        counters.close()
        if not is_online:
            ring = flows.paced_ring(PACED_RATE, PACED)
            names, topics = ["paced-s"], [flows.topic_of("paced", 0)]
            in_child(flows.collect, target, names, topics, sent, ring, PAYLOAD_BYTES, ())
        return flow, counters

    def beside(self) -> None:
        """QoS 0 alone, and beside the traffic of `puback` when it is and is not stored."""
        notes = []
        rows: list[list[str]] = []
        for kind, rate in (("fixed", PLAIN_RATE), ("full", 0.0)):
            rounds = Rounds()
            modes = (f"{kind}, alone", f"{kind}, beside memory", f"{kind}, beside commit")
            for _ in range(self.rounds):
                for mode in modes:
                    flow = self._plain(rate, mode.rpartition(" ")[2])
                    p50, p99, _ = flow.latencies_ms
                    rounds.add(mode, rate=flow.rate, p50=p50, p99=p99, late=flow.late_ms_p99)
            rows += rounds.rows(("rate", "p50", "p99", "late"))
            for other in modes[:2]:
                ratio = rounds.of(modes[2], "rate") / rounds.of(other, "rate")
                notes.append(
                    verdict(f"messages/s, {modes[2]} / {other.split(', ')[1]}", ratio, 0.8)
                )
                slower = rounds.of(modes[2], "p99") / rounds.of(other, "p99")
                notes.append(f"p99, {modes[2]} / {other.split(', ')[1]}: {slower:.2f}")
        show(
            f"beside: QoS 0 of {PLAIN_PAIRS} pairs, beside QoS 1 at {PACED_RATE:,.0f}/s to a "
            "session away",
            ("", "messages/s", "p50 ms", "p99 ms", "load late ms p99"),
            rows,
            *notes,
        )

    def _plain(self, rate: float, durability: str) -> Flow:
        arguments = (PLAIN_PAIRS, rate, 100, PAYLOAD_BYTES, self.seconds)
        if durability == "alone":
            with self.broker("commit") as (broker, _):
                return in_child(flows.plain, broker.target, *arguments)
        with self.broker(durability) as (broker, _):
            target = broker.target
            in_child(flows.enrol, target, ["paced-s"], ["bench/paced/#"], 1)
            lasts_s = self.seconds + 2 * peers.WARM_UP_S + 2.0  # for its process to begin
            paced = (target, "paced", PACED, PACED_RATE, PAYLOAD_BYTES, lasts_s)
            with started(flows.paced, *paced, is_online=False) as load:
                time.sleep(peers.WARM_UP_S)
                flow = in_child(flows.plain, target, *arguments)
                other, _ = load.result()
            if not other.began <= flow.began <= flow.ended <= other.ended:
                raise Wrong("the two loads did not run at the same time: this machine is too busy")
            return flow

    # Starts.

    def start(self) -> None:
        sessions, retained = self.sized(STORED_SESSIONS), self.sized(RETAINED)
        rounds = Rounds()
        many, kept = self.places.fresh(), self.places.fresh()
        in_child(fill_queues, many, sessions)
        in_child(fill_retained, kept, retained)
        queued = f"{sessions * STORED_EACH:,} queued, {sessions:,} sessions"
        held = f"{retained:,} retained"
        for _ in range(self.rounds):
            for label, made in ((queued, many), (held, kept)):
                place = self.places.copy(made)
                os.sync()  # what the copy wrote is not the broker's to wait for
                for how in ("", ", after a kill"):
                    with Broker(self.program, place, "commit", {}) as broker:
                        Link(broker.target, "first").welcome().leave()
                        rounds.add(
                            label + how,
                            seconds=time.monotonic() - broker.began,
                            cpu=peers.cpu_seconds(broker.target.pid),
                            rss=broker.memory_mb("VmRSS"),
                            peak=broker.memory_mb("VmHWM"),
                        )
                        if how:
                            check_start(broker.target, sessions if made is many else 0, retained)
                        broker.kill()
                self.places.drop(place)
        for place in (many, kept):
            self.places.drop(place)
        show(
            "start: from the start of the process to the first CONNACK",
            ("", "seconds", "CPU s", "RSS MB", "peak MB"),
            rounds.rows(("seconds", "cpu", "rss", "peak")),
            verdict("seconds, queued", rounds.of(queued, "seconds"), 20, most=True),
            verdict("peak MB, queued", rounds.of(queued, "peak"), 600, most=True),
            verdict("seconds, retained", rounds.of(held, "seconds"), 3, most=True),
        )


# The command line.


def fsync_ms(folder: Path) -> tuple[float, float]:
    """p50 and p99 of making 4 KB safe: what this disk can do."""
    seconds = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(300):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    found = peers.spread_ms(seconds)
    return found[0], found[1]


SCENARIOS: Final[dict[str, Callable[[Bench], None]]] = {
    "online-qos1": lambda bench: bench.online(1),
    "online-qos2": lambda bench: bench.online(2),
    "offline": Bench.offline,
    "shared": Bench.shared,
    "puback": Bench.puback,
    "beside": Bench.beside,
    "start": Bench.start,
}


def arguments() -> argparse.Namespace:
    parser = asked("The store under load.", SCENARIOS, seconds=8.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of counts that have to be stored")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--database-url", default="", help="databases are created beside this one")
    where.add_argument("--postgresql", action="store_true", help="start one (PyPI: pgserver)")
    return answers(parser, SCENARIOS)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="fleetmq-bench-", dir=options.folder)
            )
        )
        url = options.database_url
        try:
            if options.postgresql:
                url = stack.enter_context(PostgreSQL()).database("fleetmq_bench")
        except Unavailable as error:
            print(f"durable: no PostgreSQL: {error}", file=sys.stderr)
            return 1
        places = Places(folder, url)
        stack.callback(places.close)
        bench = Bench(
            options.fleetmq, places, options.rounds, options.seconds, options.scale, not url
        )
        p50, p99 = fsync_ms(folder)
        print(
            f"{'PostgreSQL' if url else 'SQLite'}, {options.rounds} rounds, "
            f"scale {options.scale:g}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
            f"fdatasync of 4 KB: p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )
        for name in options.only:
            try:
                SCENARIOS[name](bench)
            except Wrong as error:
                print(f"durable: {name}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

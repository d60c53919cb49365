"""What it costs to find the receivers of a topic, by the number of subscriptions.

    python tests/bench/match.py              1,000 to 1,000,000 subscriptions (half a GB)
    python tests/bench/match.py 1000 50000   as many as you say

The subscriptions are a fleet's: of ten, seven are `fleet/<n>/cmd` and three `fleet/<n>/#`;
ten dashboards have `fleet/+/telemetry`. The topics are of devices drawn with a fixed seed.
`Trie.match` finds the subscriptions; `Routes.find` makes a route of them as well, with a
target for each session, and puts it into the cache. A topic that is in the cache is one
lookup in a dict: the last column. Microseconds a topic, best of five rounds.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not

from mqtt_broker.core.limits.settings import DEFAULTS
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.topics.trie import Trie
from sessions.messages.backlog import Backlog, QueueFull
from sessions.messages.work import Work
from sessions.outbound import Outbound
from sessions.session import Session, Subscription

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
DASHBOARDS = 10
SUBSCRIPTIONS_A_SESSION = 1_000
TOPICS = 2_000
ROUNDS = 5


def session(name: str) -> Session:
    backlog = Backlog(
        DEFAULTS.queue_messages_max,
        DEFAULTS.queue_bytes_max,
        DEFAULTS.queue_total_bytes_max,
        QueueFull(DEFAULTS.queue_full),
        DEFAULTS.queue_qos0,
        DEFAULTS.inflight_max,
    )
    outbound = Outbound(name, backlog, None)
    return Session(outbound, receive_maximum=DEFAULTS.receive_maximum, now=0.0)


def subscriptions(count: int) -> list[Subscription]:
    dashboards = [
        Subscription(session(f"dashboard-{number}"), "fleet/+/telemetry", 0)
        for number in range(min(DASHBOARDS, count))
    ]
    found = []
    owner = session("gateway-0")
    for number in range(count - len(dashboards)):
        if number % SUBSCRIPTIONS_A_SESSION == 0:
            owner = session(f"gateway-{number}")
        last = "#" if number % 10 < 3 else "cmd"
        found.append(Subscription(owner, f"fleet/{number}/{last}", 1))
    return found + dashboards


def topics(count: int, last: str) -> list[str]:
    rng = random.Random(count)
    return [f"fleet/{rng.randrange(count)}/{last}" for _ in range(TOPICS)]


def best_us(act: Callable[[str], object], names: Sequence[str]) -> float:
    """Microseconds a topic in the fastest round; the collector runs between rounds only."""
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        for name in names:
            act(name)
        rounds.append(time.perf_counter() - start)
        gc.enable()
    return min(rounds) / len(names) * 1e6


def measure(count: int) -> Iterator[str]:
    """A line for the commands, a line for the telemetry."""
    every = subscriptions(count)
    routes = Routes(Work())
    start = time.perf_counter()
    for one in every:
        routes.add(one)
    subscribe_us = (time.perf_counter() - start) / len(every) * 1e6
    trie: Trie[Session, Subscription] = routes.trie
    for last in ("cmd", "telemetry"):
        names = topics(count, last)
        found = sum(len(trie.match(name)) for name in names) / len(names)
        match_us = best_us(trie.match, names)
        find_us = best_us(lambda name: routes.find(name, 0, 0, None, None), names)
        cached_us = best_us(routes.cache.results.get, names)
        yield (
            f"{count:>13,} {subscribe_us:>9.2f}  fleet/<n>/{last:<9} {found:>5.1f} "
            f"{match_us:>10.2f} {find_us:>11.2f} {cached_us:>6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description="The cost of a topic match.")
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS, help="subscriptions")
    counts = parser.parse_args().counts
    head = f"{'subscriptions':>13} {'subscribe':>9}  {'topic':<19} {'found':>5}"
    print(f"{head} {'Trie.match':>10} {'Routes.find':>11} {'cached':>6}   (us each)")
    for count in counts:
        for line in measure(count):
            print(line, flush=True)


if __name__ == "__main__":
    main()

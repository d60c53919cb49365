"""A process of a cluster with a toy of a broker: the product's `Node` on real connections.

    python -m tests.cluster.torture.program NUMBER DATABASE_URL PORT WITHOUT WORLD

It takes orders from the harness on a port of loopback, and tells it what was acknowledged, which
numbers it serves, and which it has lost: lines of JSON. SIGTERM lets it leave in order. WITHOUT
is a rule that does not hold in this process, so that one can see that the harness notices; or `-`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from sqlalchemy import make_url

from mqtt_broker.cluster.host import Content
from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.node import Node
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.executor import Executor
from tests.cluster.torture.tables import ALL, CLUSTER
from tests.cluster.torture.toys import TICK_S, TOYS
from tests.sim.cluster import ablations  # noqa: F401
from tests.sim.cluster.ablation import ABLATIONS
from tests.sim.cluster.hosts import Lists

ANSWER_S: Final = 6.0
WAIT_S_MAX: Final = 60.0


class Beats:
    """When the last write that was committed began, of one host."""

    def __init__(self, now: float) -> None:
        self.turn = 0
        self.began_at = now
        self.committed_began_at = now

    def look(self, turn: int, began_at: float, *, was_running: bool) -> None:
        """Note what one action has done; `began_at` is from before it."""
        if turn != self.turn:
            self.committed_began_at = self.began_at
            self.turn = turn
            self.began_at = began_at
        elif not was_running:
            self.began_at = began_at


class Program:
    def __init__(
        self, number: int, world: str, connector: Connector, harness: socket.socket
    ) -> None:
        self._connector = connector
        self._harness = harness
        self._actions: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()
        self._beats: dict[str, Beats] = {}  # by epoch
        self._ticks_at = 0.0
        self._toy = TOYS[world](self)
        self.node = Node(number, self, random.Random())

    # The surroundings of the node.

    def connect(self, label: str, link: DatabaseLink) -> Executor:
        return Executor(self._connector, label, self._actions.put, link)

    def new_epoch(self) -> str:
        return f"{os.getpid()}-{secrets.token_hex(6)}"

    def new_content(self, number: int, epoch: str) -> Content:
        self._beats[epoch] = Beats(self.clock())
        return self._toy.new_content(number, epoch)

    def on_rows(self, rows: list[NodeRow]) -> None:
        """Nothing here needs to know who hosts what."""

    def on_taken(self, seen: NodeRow) -> None:
        self.tell("taken", seen.number, seen.epoch)

    # What the toy asks and says.

    def clock(self) -> float:
        return time.monotonic()

    def tell(self, *words: Any) -> None:
        self._harness.sendall(json.dumps(words).encode() + b"\n")

    def wake(self, number: int) -> None:
        if number in self.node.hosts:
            self.node.hosts[number].wake(self.clock())

    def on_served(self, number: int, epoch: str) -> None:
        self.tell("serves", number, epoch)

    def on_lost(self, number: int, epoch: str) -> None:
        """Tell that it is lost, and for how long at least it had shown no sign of life."""
        self.tell("lost", number, epoch, self.clock() - self._beats[epoch].committed_began_at)

    # The harness.

    def _listen(self) -> None:
        for line in self._harness.makefile("rb"):
            self._actions.put(partial(self._obey, json.loads(line)))
        os._exit(3)  # the harness is gone

    def _obey(self, words: list[Any], now: float) -> None:
        order, *rest = words
        if order == "report":
            self._report()
        else:
            getattr(self._toy, f"on_{order}")(*rest, now)

    def _report(self) -> None:
        """Tell what is hosted here, and what its memory has."""
        hosts = {
            number: [host.hosting.epoch, self._toy.report(host.content)]
            for number, host in self.node.hosts.items()
        }
        self.tell("report", hosts)

    # The loop.

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._actions.put(self.node.leave))
        self.tell("hello", self.node.membership.own, os.getpid())
        threading.Thread(target=self._listen, daemon=True).start()
        while not self.node.is_over:
            wait_s = min(self.node.wakes_at, self._ticks_at) - self.clock()
            if wait_s <= 0:
                self._do(self._tick)
                continue
            with contextlib.suppress(queue.Empty):
                self._do(self._actions.get(timeout=min(wait_s, WAIT_S_MAX)))
        self.node.close()

    def _tick(self, now: float) -> None:
        self.node.tick(now)
        if now >= self._ticks_at:
            self._ticks_at = now + TICK_S
            self._toy.tick(now)

    def _do(self, action: Callable[[float], None]) -> None:
        now = self.clock()
        running = {number for number, host in self.node.hosts.items() if host.link.is_running}
        action(now)
        for number, host in self.node.hosts.items():
            beats = self._beats[host.hosting.epoch]
            beats.look(host.hosting.turn, now, was_running=number in running)


def _forgetful() -> Any:
    """Acknowledge some values at once, and commit them never."""

    def write(self: Lists, writer: str, value: int, reply: Callable[[], None]) -> None:
        if value % 5:
            original(self, writer, value, reply)
        else:
            reply()

    original = Lists.write
    return patch.object(Lists, "write", write)


def _without(rule: str) -> Any:
    return ABLATIONS[rule].taken_out()


ABSENT: Final[dict[str, Callable[[], Any]]] = {
    "-": contextlib.nullcontext,
    "acknowledge-after-commit": _forgetful,
    **{rule: partial(_without, rule) for rule in ABLATIONS},
}


def main() -> int:
    number, url, port, without = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    world = sys.argv[5]
    connector = Connector(make_url(url), CLUSTER, ALL, answer_s=ANSWER_S)
    with ABSENT[without](), socket.create_connection(("127.0.0.1", port)) as harness:
        program = Program(number, world, connector, harness)
        program.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

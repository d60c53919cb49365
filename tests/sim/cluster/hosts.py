"""Nodes that host numbers, take them over and hand them back, without any MQTT.

Each number has a list for each writer. A writer sends the next value to whichever process hosts the
number, again and again until it is acknowledged. What has to hold is in `oracles.ORACLES`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Final

from mqtt_broker.cluster import tables
from mqtt_broker.cluster.host import Content, Host
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.statements import Commit, Put, Select, Statement, Transaction
from mqtt_broker.cluster.tables import GROUPS, NODES
from tests.sim.cluster.faults import ASYNCHRONOUS, FaultyWorld
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process

VALUES: Final = "values"
TOTALS: Final = "totals"  # how many values a writer has, of those that are folded
KEYS: Final = {
    **tables.KEYS,
    VALUES: ("number", "writer", "value"),
    TOTALS: ("number", "writer"),
}
WRITERS: Final = 3


class Lists:
    """What a number holds: a list for each writer."""

    errands = None

    def __init__(self, number: int) -> None:
        self._number = number
        self.is_served = False
        self.lists: dict[str, list[int]] = {}
        self._totals: Counter[str] = Counter()  # what the tables have
        self._gathered: list[tuple[str, int]] = []
        self._groups: list[tuple[int, list[tuple[str, int]]]] = []  # not folded
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._committed = 0

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        return None

    def load(self, row: NodeRow) -> Transaction[None]:
        self._groups.clear()
        self._committed = row.group
        where = {"number": self._number}
        found = yield [
            Select(VALUES, where),
            Select(GROUPS, where, above=("group", row.folded)),
            Commit(),
        ]
        self.lists = {}
        for folded in found[0]:
            self.lists.setdefault(folded["writer"], []).append(folded["value"])
        self._totals = Counter({writer: len(values) for writer, values in self.lists.items()})
        for group in found[1]:
            records = [(writer, value) for writer, value in json.loads(group["blob"])]
            self._groups.append((group["group"], records))
            for writer, value in records:
                self.lists.setdefault(writer, []).append(value)

    def on_loaded(self) -> None:
        self.is_served = True

    def on_stopped(self) -> None:
        self.is_served = False
        self._waiting.clear()

    def write(self, writer: str, value: int, reply: Callable[[], None]) -> None:
        """Append a value, or find it there; reply when it is committed."""
        known = self.lists.setdefault(writer, [])
        if value not in known:
            known.append(value)
            self._gathered.append((writer, value))
        group = 0
        if (writer, value) in self._gathered:
            group = 1 << 60
        else:
            group = max((n for n, records in self._groups if (writer, value) in records), default=0)
        if group <= self._committed:
            reply()
        else:
            self._waiting.append((group, reply))

    def pack(self, group: int) -> bytes | None:
        if not self._gathered:
            return None
        records, self._gathered = self._gathered, []
        self._groups.append((group, records))
        self._waiting = [(min(number, group), reply) for number, reply in self._waiting]
        return json.dumps(records).encode()

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        return writes.commit_group(group, blob)

    def read(self, now: float) -> Transaction[object] | None:
        return None

    def on_committed(self, group: int) -> None:
        self._committed = group
        ready = [reply for number, reply in self._waiting if number <= group]
        self._waiting = [one for one in self._waiting if one[0] > group]
        for reply in ready:
            reply()

    def fold(self, group: int) -> list[Statement]:
        values: list[Statement] = []
        for writer, value in self._records(group):
            row = {"number": self._number, "writer": writer, "value": value}
            values.append(Put(VALUES, row))
        totals = self._totals + Counter(writer for writer, _ in self._records(group))
        return values + [
            Put(TOTALS, {"number": self._number, "writer": writer, "total": totals[writer]})
            for writer in sorted({writer for writer, _ in self._records(group)})
        ]

    def on_folded(self, group: int) -> None:
        self._totals.update(writer for writer, _ in self._records(group))
        self._groups = [one for one in self._groups if one[0] > group]

    def _records(self, group: int) -> list[tuple[str, int]]:
        return [one for number, records in self._groups if number <= group for one in records]


class Writer:
    """Writes 1, 2, 3 and so on to a number, the next when the last is acknowledged."""

    def __init__(self, world: HostsWorld, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.acknowledged = 0
        self.goal = 0
        self._attempt = 0
        world.events.after(world.rng.random() * 5, self._try)

    def _try(self) -> None:
        self._attempt += 1
        attempt, value = self._attempt, self.acknowledged + 1
        events = self.world.events
        if value <= self.goal:
            for process in self.world.processes.values():
                process.call(lambda process=process: self._ask(process, attempt, value))  # type: ignore[misc]
            events.after(self.world.rng.choice([0.3, 1.0]), lambda: self._again(attempt))
        else:
            events.after(0.2, self._try)

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    def _ask(self, process: Process, attempt: int, value: int) -> None:
        host = process.hosts.get(self.number)
        if host is None or attempt != self._attempt:
            return
        assert isinstance(host.content, Lists)
        if not host.content.is_served:
            return
        host.content.write(self.name, value, lambda: self._acknowledge(process, value))
        process.wake(self.number)

    def _acknowledge(self, process: Process, value: int) -> None:
        def arrive() -> None:
            if value == self.acknowledged + 1:
                self.acknowledged = value
                self.world.events.after(self.world.rng.random() * 0.3, self._try)

        self.world.events.after(0.0005, arrive)


class HostsWorld(FaultyWorld):
    """Some nodes and writers over one database."""

    may_stall = True

    def __init__(self, seed: int) -> None:
        super().__init__(seed, KEYS)
        self.writers = [
            Writer(self, f"w{index}", self.rng.choice(list(self.processes)))
            for index in range(WRITERS)
        ]

    def make_content(self, process: Process, number: int) -> Content:
        return Lists(number)

    # The play.

    def play(self, faults: int = 12) -> None:
        events = self.events
        events.run_until(events.now + 5)
        for _ in range(faults):
            for writer in self.writers:
                writer.goal += self.rng.randint(0, 12)
            events.run_until(events.now + self.rng.choice([0.0, 0.3, 1.0]))
            self.fault()
            events.run_until(events.now + self.rng.choice([0.01, 0.5, 3.0, 9.0]))
        self.calm_down()
        events.run_until(events.now + 120)
        self.check()

    def check(self) -> None:
        for number in self.processes:
            found = self.processes_of(number)
            check("one-owner", len(found) == 1, f"{number} has {len(found)} hosts")
            is_home = found[0].number == number or self.processes[number].is_dead
            check("one-owner", is_home, f"{number} has not come home")
            self._check_lists(number, found[0].hosts[number])
        for writer in self.writers:
            check("rest", writer.acknowledged == writer.goal, f"{writer.name} still waits")
        check("deadlock", not self.database.deadlocks, f"{self.database.deadlocks} deadlocks")
        for _ in range(400):  # beats go on, but no lock stays
            if self.database.locks:
                self.events.run_until(self.events.now + 0.01)
        check("bounded", not self.database.locks, "a lock is held")

    def _check_lists(self, number: int, host: Host) -> None:
        stored: dict[str, list[int]] = {}
        for row in self.database.rows(VALUES):
            if row["number"] == number:
                stored.setdefault(row["writer"], []).append(row["value"])
        for row in self.database.rows(TOTALS):
            if row["number"] == number:
                count = len(stored[row["writer"]])
                text = f"{count} values of {row['writer']}, but the total is {row['total']}"
                check("torn", row["total"] == count, text)
        groups = [row for row in self.database.rows(GROUPS) if row["number"] == number]
        for row in groups:
            for writer, value in json.loads(row["blob"]):
                stored.setdefault(writer, []).append(value)
        check("bounded", len(groups) < 10, f"{len(groups)} groups of {number} are not folded")
        for writer in self.writers:
            if writer.number == number:
                self._check_list(writer, stored.get(writer.name, []))
        assert isinstance(host.content, Lists)
        memory = {name: values for name, values in host.content.lists.items() if values}
        check("one-owner", memory == stored, f"{number}: {memory} in memory, {stored} stored")
        owner = next(row for row in self.database.rows(NODES) if row["number"] == number)
        check("one-owner", owner["epoch"] == host.hosting.epoch, f"{number} has another epoch")

    def _check_list(self, writer: Writer, stored: list[int]) -> None:
        check("once", len(set(stored)) == len(stored), f"{writer.name}: {stored}")
        check("order", stored == sorted(stored), f"{writer.name}: {stored}")
        if not self.database.is_synchronous:
            return  # a fail-over may lose what was acknowledged, and nothing else
        missing = [n for n in range(1, writer.acknowledged + 1) if n not in stored]
        check("lost", not missing, f"{writer.name} had {missing} acknowledged, which are gone")


def play_asynchronous(seed: int) -> HostsWorld:
    return play(seed * ASYNCHRONOUS)


def play(seed: int) -> HostsWorld:
    world = HostsWorld(seed)
    world.play()
    return world

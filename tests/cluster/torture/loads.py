"""What clients ask of a torture's processes, and what has to hold when they come to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, Protocol

from mqtt_broker.cluster.hosting import FOLD_GROUPS
from mqtt_broker.cluster.tables import GROUPS, NODES
from tests.cluster.torture.ledger import Found, Writer, check_lists
from tests.cluster.torture.members import Member, until
from tests.cluster.torture.tables import Rows
from tests.sim.cluster.oracles import check

RETRY_S: Final = 0.3
PAUSE_S: Final = 0.02  # of a writer, between two values

Tables = dict[str, Rows]


class Report:
    """What the processes said at one moment at which no number moved, and what the tables had."""

    def __init__(self, hosts: dict[int, dict[str, Any]], tables: Tables) -> None:
        self.tables = tables
        self._hosts = hosts  # by process; by number, the epoch and what its memory has

    def memories(self) -> dict[int, Any]:
        """Check that one process hosts each number, and return what its memory has."""
        found: dict[int, Any] = {}
        for row in self.tables[NODES]:
            number = row["number"]
            hosts = {
                process: hosted[str(number)]
                for process, hosted in self._hosts.items()
                if str(number) in hosted
            }
            check("one-owner", list(hosts) == [number], f"{number} is hosted by {list(hosts)}")
            epoch, found[number] = hosts[number]
            check("one-owner", epoch == row["epoch"], f"{number} has another epoch")
            groups = sum(group["number"] == number for group in self.tables[GROUPS])
            check("bounded", groups <= FOLD_GROUPS, f"{groups} groups of {number} are not folded")
        return found


class Torture(Protocol):
    """The harness, as a load needs it."""

    rng: Random
    members: list[Member]

    def spawn(self, work: Awaitable[None]) -> None:
        """Do this beside all else, until the end."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do this later; what it finds is a finding."""

    async def report(self) -> Report:
        """Wait until every number is at home, and ask all processes."""


class Load(Protocol):
    """The clients."""

    @property
    def has_begun(self) -> bool:
        """Tell whether every number has something to lose."""

    @property
    def acknowledged(self) -> int:
        """Return how much was acknowledged."""

    def start(self) -> None: ...

    def on_words(self, member: Member, kind: str, rest: list[Any]) -> None:
        """Take what a process says to its clients."""

    def on_gone(self, member: Member) -> None:
        """Note that a process has ended."""

    async def rest(self) -> None:
        """Come to rest, and check what is there."""

    def check_end(self, tables: Tables) -> None:
        """Check what is there when all processes have left."""


class WritersLoad:
    """Writers, each to one number, which send a value until it is acknowledged."""

    def __init__(self, torture: Torture, count: int) -> None:
        self._torture = torture
        self._writers = {
            name: Writer(name, member.number)
            for member in torture.members
            for name in (f"w{member.number}-{index}" for index in range(count))
        }
        self._is_writing = True

    @property
    def has_begun(self) -> bool:
        return all(writer.acknowledged for writer in self._writers.values())

    @property
    def acknowledged(self) -> int:
        return sum(writer.acknowledged for writer in self._writers.values())

    def start(self) -> None:
        self._torture.spawn(self._write_all())

    async def _write_all(self) -> None:
        """Send what is not acknowledged, again and again."""
        while True:
            for writer in self._writers.values():
                self._write(writer)
            await asyncio.sleep(RETRY_S)

    def _write(self, writer: Writer) -> None:
        if self._is_writing or writer.is_waiting:
            value = writer.next()
            for member in self._torture.members:
                member.tell("write", writer.number, writer.name, value)

    def on_words(self, member: Member, kind: str, rest: list[Any]) -> None:
        assert kind == "ack", kind
        name, value = rest
        writer = self._writers[name]
        if writer.on_ack(value):
            self._torture.call_later(PAUSE_S, lambda: self._write(writer))

    def on_gone(self, member: Member) -> None:
        """Nothing: what is not acknowledged is sent again anyway."""

    async def rest(self) -> None:
        self._is_writing = False
        writers = self._writers.values()
        name = "an acknowledgement of every value"
        await until(lambda: not any(one.is_waiting for one in writers), name)
        report = await self._torture.report()
        found = Found(report.tables)
        check_lists([*writers], found)
        for number, lists in report.memories().items():
            memory = {writer: values for writer, values in lists.items() if values}
            text = f"the memory of {number} is not what the database has"
            check("one-owner", memory == found.lists(number), text)

    def check_end(self, tables: Tables) -> None:
        check_lists([*self._writers.values()], Found(tables))

"""Processes over one PostgreSQL, the faults that happen to them, and what has to hold then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqtt_broker.cluster.hosting import FOLD_GROUPS
from mqtt_broker.cluster.membership import LAPSE_S
from mqtt_broker.cluster.node_row import FREE
from tests.cluster.torture import faults
from tests.cluster.torture.ledger import Found, Writer, check_lists, read_found
from tests.cluster.torture.members import Member, NeverEnds, until
from tests.cluster.torture.tables import make_tables
from tests.fault.postgres import PostgreSQL
from tests.sim.cluster.oracles import Broken, check

DATABASE: Final = "torture"
RETRY_S: Final = 0.3
PROGRESS_S: Final = 5.0
BETWEEN_S: Final = (0.05, 0.5, 2.0)  # from one fault to the next
REPORTS_MAX: Final = 100
PAUSE_S: Final = 0.02  # of a writer, between two values

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    faults: int = 50
    seed: int = 1
    nodes: int = 3
    writers: int = 6
    only: str = ""  # a kind of fault
    without: str = ""  # a rule that is taken out

    def again(self) -> str:
        words = f"python -m tests.cluster.torture --faults {self.faults} --seed {self.seed}"
        words += f" --nodes {self.nodes} --writers {self.writers}"
        words += f" --only '{self.only}'" if self.only else ""
        return words + (f" --without {self.without}" if self.without else "")


@dataclass(slots=True)
class Verdict:
    faults: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    acknowledged: int = 0
    times_s: dict[str, list[float]] = field(default_factory=dict)
    taken: int = 0  # numbers, from hosts whose row did not move

    @property
    def is_clean(self) -> bool:
        return not self.findings


class Torture:
    def __init__(self, options: Options, server: PostgreSQL, directory: Path, say: Say) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.verdict = Verdict()
        self._server = server
        self._say = say
        numbers = range(1, options.nodes + 1)
        self.members = [
            Member(number, server.socket, directory / f"process-{number}.log", self._on_words)
            for number in numbers
        ]
        self._writers = {
            name: Writer(name, number)
            for number in numbers
            for name in (f"w{number}-{index}" for index in range(options.writers))
        }
        self._is_writing = True
        self._moves = 0  # numbers that came or went
        self._taken_at: dict[tuple[int, int], float] = {}  # by process and number
        self._lost: dict[str, float] = {}  # by epoch, how long its host had been quiet
        self._taken: set[str] = set()  # epochs that another process took for lapsed
        self._reports: dict[int, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._database = asyncio.Lock()
        self._port = 0

    # What processes say.

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if not (line := await reader.readline()):
                return
            _, number, pid = json.loads(line)
            await self.members[number - 1].listen(pid, reader, writer)
        writer.close()

    def _on_words(self, member: Member, kind: str, rest: list[Any]) -> None:
        if kind == "ack":
            name, value = rest
            if self._writers[name].on_ack(value):
                asyncio.get_running_loop().call_later(PAUSE_S, self._write, self._writers[name])
        elif kind == "report":
            self._reports[member.number] = rest[0]
        else:
            self._on_move(member, kind, *rest)

    def _on_move(self, member: Member, kind: str, number: int, epoch: str, *rest: float) -> None:
        """Note that a number was taken, is served, or was lost by its host."""
        self._moves += 1
        now = asyncio.get_running_loop().time()
        if kind == "taken":
            self.verdict.taken += epoch != FREE
            self._taken.add(epoch)
            self._taken_at[member.number, number] = now
        elif kind == "lost":
            (self._lost[epoch],) = rest
        elif (since := self._taken_at.pop((member.number, number), None)) is not None:
            self.note("taken until served", now - since)

    def _write(self, writer: Writer) -> None:
        if not (self._is_writing or writer.is_waiting):
            return
        value = writer.next()
        for member in self.members:
            member.tell("write", writer.number, writer.name, value)

    async def _write_again(self) -> None:
        """Send again what is not acknowledged."""
        while True:
            for writer in self._writers.values():
                self._write(writer)
            await asyncio.sleep(RETRY_S)

    # What faults ask.

    def start(self, member: Member) -> None:
        url = "postgresql+psycopg://postgres@127.0.0.1:{port}/" + DATABASE
        member.start(url, self._port, self.options.without or "-")

    def is_served_elsewhere(self, member: Member) -> bool:
        return any(member.number in one.serves for one in self.members if one is not member)

    def note(self, measure: str, seconds: float) -> None:
        self.verdict.times_s.setdefault(measure, []).append(seconds)

    def find(self, finding: str) -> None:
        self.verdict.findings.append(finding)
        self._say(finding)

    async def psql(self, statement: str) -> None:
        await asyncio.to_thread(self._server.psql, DATABASE, statement)

    async def restart_database(self, away_s: float) -> None:
        await asyncio.to_thread(self._server.stop, "immediate")
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self._server.start)

    # The play.

    async def run(self) -> None:
        listener = await asyncio.start_server(self._listen, "127.0.0.1", 0)
        self._port = listener.sockets[0].getsockname()[1]
        try:
            for member in self.members:
                member.open()
                self.start(member)
            await until(self._are_home, "the start of all processes")
            self._spawn(self._write_again())
            self._spawn(self._report_progress())
            await until(self._has_begun, "the first acknowledgements")
            await self._fault()
            await self._rest()
            await self._end()
        except (NeverEnds, Broken) as error:
            self.find(str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            listener.close()
            for member in self.members:
                await asyncio.to_thread(member.close)
        self.verdict.acknowledged = sum(one.acknowledged for one in self._writers.values())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        return task

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            count = sum(one.acknowledged for one in self._writers.values())
            done = sum(self.verdict.faults.values())
            self._say(
                f"{done} of {self.options.faults} faults, {count} values acknowledged, "
                f"{self.verdict.taken} numbers taken, {len(self.verdict.findings)} findings"
            )

    async def _fault(self) -> None:
        """Let things go wrong, one after the other and several at a time."""
        under_way: list[asyncio.Task[None]] = []
        kinds: list[str] = []
        while sum(self.verdict.faults.values()) < self.options.faults:
            if not kinds:
                kinds = [self.options.only] if self.options.only else [*faults.EACH]
                self.rng.shuffle(kinds)
            kind = kinds.pop()
            self.verdict.faults[kind] += 1
            if kind in faults.OF_MEMBERS:
                member = await self._untroubled()
                under_way.append(self._spawn(self._trouble(member, faults.OF_MEMBERS[kind])))
            else:
                under_way.append(self._spawn(self._trouble_database(faults.OF_DATABASE[kind])))
            await asyncio.sleep(self.rng.choice(BETWEEN_S))
        await asyncio.gather(*under_way)

    async def _untroubled(self) -> Member:
        """Wait for a process to which nothing happens at the moment."""
        name = "a process that is well"
        await until(lambda: not all(one.is_troubled for one in self.members), name)
        return self.rng.choice([one for one in self.members if not one.is_troubled])

    async def _trouble(self, member: Member, fault: faults.OfMember) -> None:
        member.is_troubled = True
        await fault(self, member)
        member.is_troubled = False

    async def _trouble_database(self, fault: faults.OfDatabase) -> None:
        async with self._database:
            await fault(self)

    # What has to hold.

    def _has_begun(self) -> bool:
        return all(writer.acknowledged for writer in self._writers.values())

    def _are_home(self) -> bool:
        return all(list(member.serves) == [member.number] for member in self.members)

    async def _rest(self) -> None:
        """Let all come to rest, and examine what is there."""
        await until(self._are_home, "every number at its own process")
        self._is_writing = False
        writers = self._writers.values()
        name = "an acknowledgement of every value"
        await until(lambda: not any(one.is_waiting for one in writers), name)
        found = await self._report()
        check_lists([*self._writers.values()], found)
        for row in found.nodes:
            self._check_number(row, found)
        self._check_needless()

    async def _report(self) -> Found:
        """Let all processes report, and read the database, while no number moves."""
        for _ in range(REPORTS_MAX):
            await until(self._are_home, "every number at its own process")
            moves = self._moves
            self._reports.clear()
            for member in self.members:
                member.tell("report")
            await until(lambda: len(self._reports) == len(self.members), "a report of all")
            found = await self._found()
            if moves == self._moves:
                return found
        raise NeverEnds("numbers still move, and nothing goes wrong any more")

    async def _found(self) -> Found:
        return await asyncio.to_thread(read_found, self._server.conninfo(DATABASE))

    def _check_number(self, row: dict[str, Any], found: Found) -> None:
        number = row["number"]
        reports = self._reports.items()
        hosts = {one: hosted[str(number)] for one, hosted in reports if str(number) in hosted}
        check("one-owner", list(hosts) == [number], f"{number} is hosted by {list(hosts)}")
        epoch, lists = hosts[number]
        check("one-owner", epoch == row["epoch"], f"{number} has another epoch")
        memory = {writer: values for writer, values in lists.items() if values}
        text = f"the memory of {number} is not what the database has"
        check("one-owner", memory == found.lists(number), text)
        groups = sum(group["number"] == number for group in found.groups)
        check("bounded", groups <= FOLD_GROUPS, f"{groups} groups of {number} are not folded")

    def _check_needless(self) -> None:
        """Whoever lost a number to another process had shown no sign of life for the whole time."""
        for epoch in self._taken & self._lost.keys():
            quiet_s = self._lost[epoch]
            text = f"{epoch} was taken from a host that had been quiet for {quiet_s:.2f} s"
            check("needless", quiet_s >= LAPSE_S, text)

    async def _end(self) -> None:
        """Let all processes leave at once, as on the last day: nothing is left to fold."""
        for member in self.members:
            member.signal(signal.SIGTERM)
        for member in self.members:
            code = await member.ended()
            check("rest", code == 0, f"process {member.number} ended with {code}")
        found = await self._found()
        check("rest", not found.groups, f"{len(found.groups)} groups are not folded at the end")
        hosted = [row["number"] for row in found.nodes if row["epoch"] != FREE]
        check("rest", not hosted, f"{hosted} are not free at the end")
        check_lists([*self._writers.values()], found)


def torture(options: Options, say: Say) -> Verdict:
    """Play one torture; the directory is kept if something was found."""
    directory = Path(tempfile.mkdtemp(prefix="fmq-cluster-"))
    with PostgreSQL() as server:
        url = server.database(DATABASE)
        make_tables(url)
        one = Torture(options, server, directory, say)
        asyncio.run(one.run())
    return one.verdict

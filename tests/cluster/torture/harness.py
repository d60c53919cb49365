"""Processes over one PostgreSQL, the faults that happen to them, and what has to hold then."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqtt_broker.cluster.membership import LAPSE_S
from mqtt_broker.cluster.node_row import FREE
from mqtt_broker.cluster.tables import GROUPS, NODES
from tests.cluster.torture import faults
from tests.cluster.torture.loads import Load, Report, Tables, Torture, WritersLoad
from tests.cluster.torture.members import Member, NeverEnds, until
from tests.cluster.torture.roaming_load import RoamingLoad
from tests.cluster.torture.tables import make_tables, read_tables
from tests.fault.postgres import PostgreSQL
from tests.sim.cluster.oracles import Broken, check

DATABASE: Final = "torture"
PROGRESS_S: Final = 5.0
BETWEEN_S: Final = (0.05, 1.0, 4.0)  # from one fault to the next
REPORTS_MAX: Final = 100
LOADS: Final[dict[str, Callable[[Torture, int], Load]]] = {
    "hosts": WritersLoad,
    "owners": RoamingLoad,
}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    faults: int = 50
    seed: int = 1
    world: str = "hosts"
    nodes: int = 3
    clients: int = 6  # of each number, or all together where they move
    only: str = ""  # a kind of fault
    without: str = ""  # a rule that is taken out

    def again(self) -> str:
        words = ["python", "-m", "tests.cluster.torture", "--world", self.world]
        words += ["--faults", str(self.faults), "--seed", str(self.seed)]
        words += ["--nodes", str(self.nodes), "--clients", str(self.clients)]
        words += ["--only", self.only] if self.only else []
        return shlex.join(words + (["--without", self.without] if self.without else []))


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


class Harness:
    def __init__(self, options: Options, server: PostgreSQL, directory: Path, say: Say) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.is_alone = bool(options.only)
        self.verdict = Verdict()
        self._server = server
        self._url = server.database(DATABASE)
        make_tables(self._url)
        self._say = say
        self.members = [
            Member(
                number,
                server.socket,
                directory / f"process-{number}.log",
                self._on_words,
                self._on_gone,
            )
            for number in range(1, options.nodes + 1)
        ]
        self._load = LOADS[options.world](self, options.clients)
        self._moves = 0  # numbers that came or went
        self._taken_at: dict[tuple[int, int], float] = {}  # by process and number
        self._lost: dict[str, float] = {}  # by epoch, how long its host had been quiet
        self._taken: set[str] = set()  # epochs that another process took for lapsed
        self._reports: dict[int, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._database = asyncio.Lock()
        self._failed: asyncio.Future[None] | None = None
        self._port = 0
        self._is_over = False  # clients do nothing any more

    # What processes say.

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := await reader.readline():
                _, number, pid = json.loads(line)
                await self.members[number - 1].listen(pid, reader, writer)
        except ConnectionError:
            pass  # it was killed as soon as it was there
        except Exception as error:
            self._fail(error)
        finally:
            writer.close()

    def _on_words(self, member: Member, kind: str, rest: list[Any]) -> None:
        if kind == "report":
            self._reports[member.number] = rest[0]
        elif kind in ("taken", "serves", "lost"):
            self._on_move(member, kind, *rest)
        else:
            self._load.on_words(member, kind, rest)

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

    def _on_gone(self, member: Member) -> None:
        self._load.on_gone(member)

    # What the load and faults ask.

    def spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._fail(error)

        self._tasks.add(asyncio.get_running_loop().create_task(run()))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        def run() -> None:
            if self._is_over:
                return
            try:
                action()
            except Exception as error:
                self._fail(error)

        asyncio.get_running_loop().call_later(seconds, run)

    def _fail(self, error: Exception) -> None:
        """End the play with an error that is found beside it."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    def start(self, member: Member) -> None:
        url = f"postgresql+psycopg://postgres@127.0.0.1:{{port}}/{DATABASE}"
        member.start(url, self._port, self.options.without or "-", self.options.world)

    def is_served_elsewhere(self, member: Member) -> bool:
        return any(member.number in one.serves for one in self.members if one is not member)

    def note(self, measure: str, seconds: float) -> None:
        self.verdict.times_s.setdefault(measure, []).append(seconds)

    async def psql(self, statement: str) -> None:
        await asyncio.to_thread(self._server.psql, DATABASE, statement)

    async def restart_database(self, away_s: float) -> None:
        await asyncio.to_thread(self._server.stop, "immediate")
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self._server.start)

    async def report(self) -> Report:
        """Let all processes report, and read the database, while no number moves."""
        for _ in range(REPORTS_MAX):
            await until(self._are_home, "every number at its own process")
            moves = self._moves
            self._reports.clear()
            for member in self.members:
                member.tell("report")
            await until(lambda: len(self._reports) == len(self.members), "a report of all")
            tables = await self._read()
            if moves == self._moves:
                return Report(dict(self._reports), tables)
        raise NeverEnds("numbers still move, and nothing goes wrong any more")

    async def _read(self) -> Tables:
        return await asyncio.to_thread(read_tables, self._url)

    def _are_home(self) -> bool:
        return all(list(member.serves) == [member.number] for member in self.members)

    # The play.

    async def run(self) -> None:
        listener = await asyncio.start_server(self._listen, "127.0.0.1", 0, limit=1 << 26)
        self._port = listener.sockets[0].getsockname()[1]
        self._failed = asyncio.get_running_loop().create_future()
        play = asyncio.get_running_loop().create_task(self._play())
        try:
            await asyncio.wait({play, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (play, self._failed):
                if ended.done():
                    ended.result()
        except (NeverEnds, Broken) as error:
            self.verdict.findings.append(str(error))
        finally:
            self.verdict.acknowledged = self._load.acknowledged
            for task in (play, *self._tasks):
                task.cancel()
            await asyncio.gather(play, *self._tasks, return_exceptions=True)
            listener.close()
            for member in self.members:
                await asyncio.to_thread(member.close)

    async def _play(self) -> None:
        for member in self.members:
            member.open()
            self.start(member)
        await until(self._are_home, "the start of all processes")
        self._load.start()
        self.spawn(self._report_progress())
        await until(lambda: self._load.has_begun, "the first acknowledgements")
        await self._fault()
        await self._load.rest()
        self._check_needless()
        await self._end()

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            done = sum(self.verdict.faults.values())
            served = " ".join(f"{one.number}:{[*one.serves]}" for one in self.members)
            self._say(
                f"{done} of {self.options.faults} faults, {self._load.acknowledged} "
                f"acknowledgements, {self.verdict.taken} numbers taken; served {served}"
            )

    async def _fault(self) -> None:
        """Let things go wrong, one after the other and several at a time."""
        under_way: list[asyncio.Task[None]] = []
        kinds: list[str] = []
        while sum(self.verdict.faults.values()) < self.options.faults:
            if not kinds:
                await self._recover(under_way)
                kinds = [self.options.only] if self.options.only else [*faults.EACH]
                self.rng.shuffle(kinds)
            kind = kinds.pop()
            self.verdict.faults[kind] += 1
            if kind in faults.OF_MEMBERS:
                member = await self._untroubled()
                member.is_troubled = True
                fault = self._trouble(member, faults.OF_MEMBERS[kind])
            else:
                fault = self._trouble_database(faults.OF_DATABASE[kind])
            under_way.append(asyncio.get_running_loop().create_task(fault))
            if self.is_alone:
                await under_way[-1]
                await until(self._are_home, "every number at its own process")
            await asyncio.sleep(self.rng.choice(BETWEEN_S))
        await self._recover(under_way)

    async def _recover(self, under_way: list[asyncio.Task[None]]) -> None:
        """Let the faults end; then every number is at home, and clients are served again."""
        await asyncio.gather(*under_way)
        under_way.clear()
        await until(self._are_home, "every number at its own process")
        count = self._load.acknowledged
        await until(lambda: self._load.acknowledged > count, "acknowledgements after the faults")

    async def _untroubled(self) -> Member:
        """Wait for a process to which nothing happens at the moment."""
        name = "a process that is well"
        await until(lambda: not all(one.is_troubled for one in self.members), name)
        return self.rng.choice([one for one in self.members if not one.is_troubled])

    async def _trouble(self, member: Member, fault: faults.OfMember) -> None:
        await fault(self, member)
        member.is_troubled = False

    async def _trouble_database(self, fault: faults.OfDatabase) -> None:
        async with self._database:
            await fault(self)

    def _check_needless(self) -> None:
        """Whoever lost a number to another process had shown no sign of life for long enough."""
        for epoch in self._taken & self._lost.keys():
            quiet_s = self._lost[epoch]
            text = f"{epoch} was taken from a host that had been quiet for {quiet_s:.2f} s"
            check("needless", quiet_s >= LAPSE_S, text)

    async def _end(self) -> None:
        """Let all processes leave at once, as on the last day: nothing is left to fold."""
        self._is_over = True
        for member in self.members:
            member.signal(signal.SIGTERM)
        for member in self.members:
            code = await member.ended()
            check("rest", code == 0, f"process {member.number} ended with {code}")
        tables = await self._read()
        check("rest", not tables[GROUPS], f"{len(tables[GROUPS])} groups are not folded")
        hosted = [row["number"] for row in tables[NODES] if row["epoch"] != FREE]
        check("rest", not hosted, f"{hosted} are not free at the end")
        self._load.check_end(tables)


def torture(options: Options, say: Say) -> Verdict:
    """Play one torture; what the processes wrote to stderr stays in its directory."""
    directory = Path(tempfile.mkdtemp(prefix="fmq-cluster-"))
    with PostgreSQL() as server:
        one = Harness(options, server, directory, say)
        asyncio.run(one.run())
    if one.verdict.is_clean:
        shutil.rmtree(directory)
    else:
        say(f"what the processes said: {directory}")
    return one.verdict

"""Processes over one database, and the faults that happen to them, drawn from a seed."""

from __future__ import annotations

import random
from typing import Final

from mqtt_broker.cluster.host import Content
from mqtt_broker.cluster.membership import LAPSE_S
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.tables import NODES
from tests.sim.cluster.database import Database
from tests.sim.cluster.events import Events
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process

NODES_MAX: Final = 3
UNTROUBLED_S: Final = 2.0
CUTS_SURVIVED: Final = 1  # of the connections of a host, within a lapse
ASYNCHRONOUS: Final = 5  # one world of so many replicates asynchronously


class FaultyWorld:
    """A world of processes with what can go wrong; what a number holds is the subclass's."""

    may_stall = False  # the database takes no writes for a while

    def __init__(self, seed: int, keys: dict[str, tuple[str, ...]]) -> None:
        self.events = Events(seed)
        self.rng: random.Random = self.events.rng
        self.database = Database(self.events, keys)
        if seed % ASYNCHRONOUS == 0:
            self.database.replicate_asynchronously()
        self.cut_chance = self._usual_cut_chance = self.rng.choice([0.0, 0.02, 0.2])
        self._names = self._backends = 0
        self.taken = 0
        self._may_stay_dead = seed % 4 == 0
        self.trouble_ends: dict[int, float] = {}  # by the process's own number
        self._cuts: dict[str, list[float]] = {}  # by epoch, when its connections were cut
        self.processes: dict[int, Process] = {}
        self._process_of: dict[str, Process] = {}  # by epoch
        for number in range(1, self.rng.randint(2, NODES_MAX) + 1):
            self._start(number)

    def make_content(self, process: Process, number: int) -> Content:
        """Make what a process hosts with a number."""
        raise AssertionError("a world says what its numbers hold")

    def processes_of(self, number: int) -> list[Process]:
        """Return the living processes that host a number."""
        alive = (process for process in self.processes.values() if not process.is_dead)
        return [process for process in alive if number in process.hosts]

    # What processes ask of their world.

    def next_backend(self) -> int:
        self._backends += 1
        return self._backends

    def new_name(self) -> str:
        self._names += 1
        return f"e{self._names}"

    def on_cut(self, label: str) -> None:
        self._cuts.setdefault(label, []).append(self.events.now)

    def new_content(self, process: Process, number: int, epoch: str) -> Content:
        self._process_of[epoch] = process
        return self.make_content(process, number)

    def on_rows(self, process: Process, rows: list[NodeRow]) -> None:
        """Let a world that has a bus tell it who hosts what."""

    def on_taken(self, taker: Process, number: int, seen: str) -> None:
        self.taken += 1
        victim = self._process_of.get(seen)
        host = victim.hosts.get(number) if victim is not None else None
        is_hosted = host is not None and host.hosting.epoch == seen
        if victim is not None and is_hosted and not victim.is_dead:
            ended = self.trouble_ends.get(victim.number, 0.0)
            names = f"{victim.number} by {taker.number}"
            text = f"{number} was taken from {names} at {self.events.now:.1f}"
            is_excused = self.events.now < ended + LAPSE_S + UNTROUBLED_S or self._is_cut_off(seen)
            check("needless", is_excused, text)

    def _is_cut_off(self, epoch: str) -> bool:
        """Tell whether a host lost one connection after the other, and could not show itself."""
        since = self.events.now - LAPSE_S - UNTROUBLED_S
        return sum(cut > since for cut in self._cuts.get(epoch, ())) > CUTS_SURVIVED

    # Faults.

    def _start(self, number: int) -> None:
        self._trouble(number, LAPSE_S)
        self.processes[number] = Process(self, number)

    def _trouble(self, number: int, seconds: float) -> None:
        end = max(self.trouble_ends.get(number, 0.0), self.events.now + seconds)
        self.trouble_ends[number] = end

    def fault(self) -> None:
        """Let something go wrong."""
        rng, process = self.rng, self.rng.choice(list(self.processes.values()))
        chance = rng.random()
        if not self.database.is_synchronous and chance < 0.5 and self.database.is_up:
            self.database.stop()
            self.database.fail_over()
        elif chance < 0.3:
            self._freeze(process)
        elif chance < 0.5:
            self.kill(process)
        elif chance < 0.6:
            self._leave(process)
        elif chance < 0.8:
            process.call(process.cut)
        elif chance < 0.87:
            self._fail_over_after_a_cut()
        elif self.database.is_up and (chance < 0.95 or not self.may_stall):
            self._stop_database()
        elif self.may_stall:
            self.database.stall(rng.choice([LAPSE_S - 1, LAPSE_S + 1, LAPSE_S + 6]))

    def calm_down(self) -> None:
        """Cut no connection any more."""
        self.cut_chance = self._usual_cut_chance = 0.0
        self.database.calm_down()

    def _freeze(self, process: Process) -> None:
        if not process.is_frozen and not process.is_dead:
            seconds = self.rng.choice([0.3, LAPSE_S - 1, LAPSE_S + 3, 20.0])
            self._trouble(process.number, seconds)
            process.freeze(seconds)

    def kill(self, process: Process) -> None:
        if not process.is_dead:
            seconds = self.rng.choice([0.0, 1.0, 30.0])
            process.kill()
            rows = {row["number"]: row for row in self.database.rows(NODES)}
            has_something = process.number in rows and rows[process.number]["folded"] > 0
            if self._may_stay_dead and has_something and seconds:
                self._may_stay_dead = False  # one that never comes back
            else:
                self._trouble(process.number, seconds + LAPSE_S)
                self.events.after(seconds, lambda: self._start(process.number))

    def _leave(self, process: Process) -> None:
        if not process.is_dead and not process.is_frozen and not process.is_leaving:
            process.leave()
            self.events.after(2.0, lambda: self.kill(process))

    def _fail_over_after_a_cut(self) -> None:
        """A fail-over that finds hosts in the middle of asking what became of a commit."""
        self.cut_chance = 0.3

        def fail_over() -> None:
            self.cut_chance = self._usual_cut_chance
            if self.database.is_up:
                self.database.stop()
                self.database.fail_over()

        self.events.after(self.rng.choice([0.1, 0.5, 1.0]), fail_over)

    def _stop_database(self) -> None:
        self.database.stop()
        back = self.rng.choice([self.database.restart, self.database.fail_over])
        self.events.after(self.rng.choice([0.01, 1.0, 30.0]), back)

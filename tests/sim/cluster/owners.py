"""Sessions that move between numbers: clients connect anywhere, sessions follow them.

Each number has a toy of a broker. What has to hold is in `oracles.ORACLES`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from mqtt_broker.cluster.claims import Claims
from mqtt_broker.cluster.host import Content
from mqtt_broker.cluster.statements import Row, Rows
from mqtt_broker.cluster.tables import ASKS, GROUPS, NODES, OWNERS
from tests.sim.cluster.broker import (
    CONNECT_WAIT_S,
    KEYS,
    PUBLISHED,
    SESSIONS,
    TAKEN_OVER,
    UNAVAILABLE,
    Broker,
)
from tests.sim.cluster.bus import SimulatedBus
from tests.sim.cluster.faults import FaultyWorld
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process
from tests.sim.cluster.roaming import (
    FOREVER_S,
    Attempt,
    Roamer,
    expected_wills,
    may_have_taken,
)

Frame = Callable[[Claims], None]  # what it does to the number that it reaches

CLIENTS: Final = 4
TICK_S: Final = 0.1
ANSWER_S_MAX: Final = CONNECT_WAIT_S + 1.0  # of a CONNECT to a process that is not frozen
SERVED_S_MAX: Final = 3.0  # of a client, when nothing is wrong


class Surroundings:
    """The process and the bus, as the broker of one number sees them."""

    def __init__(self, world: OwnersWorld, process: Process, number: int) -> None:
        self._world = world
        self._process = process
        self._number = number

    def clock(self) -> float:
        return self._process.clock()

    def wake(self, number: int) -> None:
        self._process.wake(number)

    def ask(self, owner: int, client: str, tenure: int) -> None:
        asker = self._number
        self._world.bus.send(owner, lambda broker: broker.on_ask(client, tenure, asker))

    def tell_offered(self, number: int, client: str) -> None:
        self._world.bus.send(number, lambda broker: broker.on_offered(client))


class OwnersWorld(FaultyWorld):
    """Nodes whose clients move."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, KEYS)
        self.bus: SimulatedBus[Frame] = SimulatedBus(self.events, self._deliver)
        self.is_lossless = self.database.is_synchronous
        self.refused = 0
        self.waits_s: list[float] = []  # of CONNECTs that were accepted while nothing was wrong
        self.waits_after_kill_s: list[float] = []
        self.is_calm = self.has_killed = False
        self.roamers = [Roamer(self, f"c{index}") for index in range(CLIENTS)]
        for roamer in self.roamers:
            roamer.start()

    def make_content(self, process: Process, number: int) -> Content:
        surroundings = Surroundings(self, process, number)
        broker = Broker(number, surroundings, surroundings)
        process.after(TICK_S, partial(self._tick, process, broker))
        return broker

    def _tick(self, process: Process, broker: Broker) -> None:
        host = process.hosts.get(broker.number)
        if host is not None and host.content is broker:
            if broker.is_served:
                broker.tick()
                process.wake(broker.number)
            process.after(TICK_S, partial(self._tick, process, broker))

    def _deliver(self, number: int, frame: Frame) -> None:
        for process in self.processes.values():
            process.call(partial(self._receive, process, number, frame))

    def _receive(self, process: Process, number: int, frame: Frame) -> None:
        broker = self.broker(process, number)
        if broker is not None:
            frame(broker.claims)
            process.wake(number)

    def broker(self, process: Process, number: int) -> Broker | None:
        """Return the broker of a number, if this process hosts and serves it."""
        host = process.hosts.get(number)
        if host is None:
            return None
        assert isinstance(host.content, Broker)
        return host.content if host.content.is_served else None

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.is_dead]

    def on_taken(self, taker: Process, number: int, seen: str) -> None:
        self.taken += 1

    # What happens between clients and processes.

    def reply(self, action: Callable[[], None]) -> None:
        self.events.after(0.0005, action)

    def connect(self, attempt: Attempt[Process]) -> None:
        process = attempt.process
        if process.is_dead:
            attempt.close(0)
            return
        self.events.after(0.0005, lambda: process.call(lambda: self._connect(attempt)))
        self.events.after(ANSWER_S_MAX, lambda: self._check_answered(attempt))

    def _connect(self, attempt: Attempt[Process]) -> None:
        """Let a CONNECT wait for its broker, for its session, and then no longer."""
        process = attempt.process
        process.after(CONNECT_WAIT_S, lambda: self._refuse(attempt))
        self._hand_to_broker(attempt)

    def _hand_to_broker(self, attempt: Attempt[Process]) -> None:
        broker = self.broker(attempt.process, attempt.process.number)
        if attempt.is_over:
            return
        if broker is None:
            attempt.process.after(TICK_S, lambda: self._hand_to_broker(attempt))
        else:
            broker.connect(attempt)

    def _refuse(self, attempt: Attempt[Process]) -> None:
        if attempt.is_over or attempt.has_accepted:
            return
        broker = self.broker(attempt.process, attempt.process.number)
        if broker is not None:
            broker.disconnect(attempt, is_normal=False)
        attempt.close(UNAVAILABLE)

    def append(self, attempt: Attempt[Process], value: int, reply: Callable[[], None]) -> None:
        def arrive() -> None:
            broker = self.broker(attempt.process, attempt.process.number)
            if broker is not None and not attempt.is_over:
                broker.append(attempt, value, lambda: self.reply(reply))

        self.events.after(0.0005, lambda: attempt.process.call(arrive))

    def disconnect(self, attempt: Attempt[Process], delay_s: float, *, is_normal: bool) -> None:
        def arrive() -> None:
            broker = self.broker(attempt.process, attempt.process.number)
            if broker is not None and not attempt.is_over:
                broker.disconnect(attempt, is_normal=is_normal)
            attempt.end()

        self.events.after(0.0005 + delay_s, lambda: attempt.process.call(arrive))

    def on_closed(self, attempt: Attempt[Process], reason: int) -> None:
        """Examine whether a client was disconnected for a CONNECT that came later."""
        if reason == TAKEN_OVER:
            others = [one for one in attempt.roamer.attempts if one is not attempt]
            is_needed = any(may_have_taken(one, attempt, self.events.now) for one in others)
            text = f"{attempt.client} was taken over for nothing at {self.events.now:.1f}"
            check("needless", is_needed, text)

    def on_served(self, attempt: Attempt[Process]) -> None:
        if self.is_calm:
            waits_s = self.waits_after_kill_s if self.has_killed else self.waits_s
            waits_s.append(self.events.now - attempt.began_at)

    def _check_answered(self, attempt: Attempt[Process]) -> None:
        process = attempt.process
        is_answered = attempt.is_over or attempt.has_accepted or attempt.is_given_up
        trouble_ends = self.trouble_ends.get(process.number, 0.0)
        is_excused = process.is_dead or trouble_ends + ANSWER_S_MAX > self.events.now
        text = f"{attempt.client} has no answer from {process.number} at {self.events.now:.1f}"
        check("bounded", is_answered or is_excused, text)

    # The play.

    def fault(self) -> None:
        if self.rng.random() < 0.15:
            self.bus.is_up = not self.bus.is_up
        elif self.rng.random() < 0.2:
            self._stampede()
        elif self.rng.random() < 0.85:
            super().fault()

    def _stampede(self) -> None:
        """Let all clients connect to one process, and then to another before that has answered."""
        for delay_s in (0.0, self.rng.choice([0.01, 0.2, 2.0])):
            process = self.rng.choice(list(self.processes.values()))
            for roamer in self.roamers:
                self.events.after(delay_s, partial(roamer.move_to, process))

    def play(self, faults: int = 8) -> None:
        events = self.events
        events.run_until(events.now + 8)
        for _ in range(faults):
            events.run_until(events.now + self.rng.choice([0.3, 1.0, 4.0]))
            self.fault()
            events.run_until(events.now + self.rng.choice([0.01, 0.5, 3.0, 9.0]))
        self.calm_down()
        events.run_until(events.now + 45)
        self.is_calm = True
        for roamer in self.roamers:
            roamer.is_calm = True
            self._connect_once_more(roamer)
        events.run_until(events.now + 25)
        self.check_connected()
        gone = self.roamers[::2]
        for roamer in gone:
            assert roamer.current is not None
            roamer.leave(roamer.current, is_silent=False, is_normal=False)
            if self.rng.random() < 0.7:
                roamer.connect()
                self.events.after(self.rng.choice([0.002, 0.01, 0.03]), roamer.stay_away)
        if len(self.alive()) > 1 and self.rng.random() < 0.5:
            events.run_until(events.now + 0.1)
            self.has_killed = True
            self.kill(self.rng.choice(self.alive()))
        events.run_until(events.now + 60)
        self.check()
        for roamer in gone:
            self._check_gone(roamer)

    def _connect_once_more(self, roamer: Roamer[Process]) -> None:
        if roamer.current is not None:
            is_silent = self.rng.random() < 0.5
            roamer.leave(roamer.current, is_silent=is_silent, is_normal=False)
        roamer.step()

    # At rest.

    def brokers(self) -> list[Broker]:
        found = []
        for process in self.alive():
            for host in process.hosts.values():
                assert isinstance(host.content, Broker)
                found.append(host.content)
        return found

    def check_connected(self) -> None:
        """Check that each client has the one connection that it believes in."""
        for roamer in self.roamers:
            online = [one for one in self.brokers() if roamer.name in one.online]
            text = f"{roamer.name} is connected to {[one.number for one in online]}"
            check("one-connection", len(online) == 1, text)
            is_right = online[0].online[roamer.name] is roamer.current
            check("one-connection", is_right, f"{roamer.name} has another connection")
        late = [wait_s for wait_s in self.waits_s if wait_s > SERVED_S_MAX]
        check("bounded", not late, f"CONNECTs were answered after {late} s")

    def check(self) -> None:
        self._check_owners()
        self._check_sessions()
        for roamer in self.roamers:
            self._check_wills(roamer)
        check("deadlock", not self.database.deadlocks, f"{self.database.deadlocks} deadlocks")
        check("bounded", not self.database.rows(ASKS), f"asks: {self.database.rows(ASKS)}")

    def _check_owners(self) -> None:
        hosts = Counter(broker.number for broker in self.brokers())
        for row in self.database.rows(NODES):
            count = hosts[row["number"]]
            check("one-owner", count == 1, f"{row['number']} has {count} hosts")
        rows = {row["client"]: row for row in self.database.rows(OWNERS)}
        owned = Counter(client for one in self.brokers() for client in one.claims.owned)
        text = f"{dict(owned)} are owned, {rows} are in the table"
        check("one-owner", owned == Counter(rows.keys()), text)
        for broker in self.brokers():
            for client, tenure in broker.claims.owned.items():
                row = rows[client]
                is_its = (row["number"], row["tenure"]) == (broker.number, tenure)
                check("one-owner", is_its and not row["is_offered"], f"{client}: {row}")
            check("one-owner", set(broker.sessions) <= set(broker.claims.owned), "others' sessions")

    def _check_sessions(self) -> None:
        stored = stored_sessions(self.database.rows(SESSIONS), self.database.rows(GROUPS))
        rows = [one.row() for broker in self.brokers() for one in broker.sessions.values()]
        memory = {row["client"]: row for row in rows if is_to_stay(row)}
        check("one-owner", memory == stored, f"{memory} in memory, {stored} stored")

    def _check_gone(self, roamer: Roamer[Process]) -> None:
        """Check that a client that stays away has a session only if it does not expire."""
        last = roamer.attempts[-1]
        names = [row["client"] for row in self.database.rows(OWNERS)]
        if not last.accepted_at:
            return  # it may have been executed
        if last.expiry < FOREVER_S:
            check("leftover", roamer.name not in names, f"{roamer.name} still has a session")
        else:
            check("lost", roamer.name in names, f"{roamer.name} has no session")

    def _check_wills(self, roamer: Roamer[Process]) -> None:
        published = published_wills(self.database.rows(PUBLISHED), self.database.rows(GROUPS))
        for index, attempt in enumerate(roamer.attempts):
            if attempt.will:
                count = published[attempt.will]
                least, most = expected_wills(roamer, index) if self.is_lossless else (0, 1)
                text = f"{attempt.will} was published {count} times, not {least} to {most}"
                check("will", least <= count <= most, text)


def stored_sessions(rows: Rows, groups: Rows) -> dict[str, Row]:
    """Return the sessions that the database has, by client, with what is not folded."""
    stored = {row["client"]: row for row in rows}
    for group in groups:
        for kind, client, value in json.loads(group["blob"]):
            if kind == "set":
                stored[client] = value
            elif kind == "append":
                values = json.dumps([*json.loads(stored[client]["values"]), value])
                stored[client] = {**stored[client], "values": values}
            elif kind == "end":
                stored.pop(client, None)
    return {client: row for client, row in stored.items() if is_to_stay(row)}


def published_wills(rows: Rows, groups: Rows) -> Counter[str]:
    """Return how often each will was published."""
    published = Counter(row["will"] for row in rows)
    for group in groups:
        records = json.loads(group["blob"])
        published.update(value for kind, _, value in records if kind == "publish")
    return published


def is_to_stay(session: Row) -> bool:
    """Tell whether a session, or its will, outlasts its connection."""
    return session["expiry"] > 0 or bool(session["will"])


def play(seed: int) -> OwnersWorld:
    world = OwnersWorld(seed)
    world.play()
    return world

"""Clients that move between processes: those of the model, over real processes.

Nothing here depends on how long something takes: sessions and wills end at once, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mqtt_broker.cluster.tables import ASKS, GROUPS, OWNERS
from tests.cluster.torture.loads import Report, Tables, Torture
from tests.cluster.torture.members import PATIENCE_S, Member, until
from tests.sim.cluster.broker import PUBLISHED, SESSIONS, TAKEN_OVER
from tests.sim.cluster.oracles import Broken, check
from tests.sim.cluster.owners import is_to_stay, published_wills, stored_sessions
from tests.sim.cluster.roaming import Attempt, Roamer, expected_wills, may_have_taken

NEVER_S: Final = 1e6
EXPIRIES_S: Final = (0.0, NEVER_S, NEVER_S)
WILL_DELAYS_S: Final = (0.0, NEVER_S)
LOOK_S: Final = 1.0  # between two looks at what is not at rest yet
# Of the frames between processes, which nobody may rely on.
LOST: Final = 0.1
REPEATED: Final = 0.1
LATE_S: Final = (0.0, 0.0, 0.0, 0.05, 1.0)


class Time:
    """The time of the harness, as the clients of the model know it."""

    def __init__(self, torture: Torture) -> None:
        self._torture = torture

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @now.setter
    def now(self, value: float) -> None:
        raise AssertionError("time goes on by itself")

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._torture.call_later(seconds, action)


class RoamingLoad:
    """The world of `Roamer`s, whose processes are real ones."""

    def __init__(self, torture: Torture, count: int) -> None:
        self._torture = torture
        self.rng = torture.rng
        self.processes = {member.number: member for member in torture.members}
        self.events = Time(torture)
        self.is_lossless = True
        self.refused = self.acknowledged = 0
        self._attempts: dict[int, Attempt[Member]] = {}
        self._keys: dict[Attempt[Member], int] = {}
        self._replies: dict[tuple[int, int], Callable[[], None]] = {}
        self._roamers: list[Roamer[Member]] = [
            Roamer(self, f"c{index}", expiries_s=EXPIRIES_S, will_delays_s=WILL_DELAYS_S)
            for index in range(count)
        ]

    # What clients do.

    def alive(self) -> list[Member]:
        return [member for member in self.processes.values() if not member.is_dead]

    def reply(self, action: Callable[[], None]) -> None:
        action()

    def connect(self, attempt: Attempt[Member]) -> None:
        if attempt.process.is_dead:
            self.events.after(0.0, partial(attempt.close, 0))
            return
        key = len(self._attempts) + 1
        self._attempts[key] = attempt
        self._keys[attempt] = key
        how = {
            "clean": attempt.clean,
            "expiry": attempt.expiry,
            "will": attempt.will,
            "will_delay": attempt.will_delay,
        }
        attempt.process.tell("connect", key, attempt.client, how)

    def append(self, attempt: Attempt[Member], value: int, reply: Callable[[], None]) -> None:
        key = self._keys[attempt]
        self._replies[key, value] = reply
        attempt.process.tell("append", key, value)

    def disconnect(self, attempt: Attempt[Member], delay_s: float, *, is_normal: bool) -> None:
        def send() -> None:
            key = self._keys.get(attempt)
            if key is not None and not attempt.is_over:
                attempt.process.tell("disconnect", key, is_normal)

        self.events.after(delay_s, send)

    def on_closed(self, attempt: Attempt[Member], reason: int) -> None:
        if reason == TAKEN_OVER:
            others = [one for one in attempt.roamer.attempts if one is not attempt]
            is_needed = any(may_have_taken(one, attempt, self.events.now) for one in others)
            check("needless", is_needed, f"{attempt.client} was taken over for nothing")

    def on_served(self, attempt: Attempt[Member]) -> None:
        self.acknowledged += 1

    # What processes say.

    def on_words(self, member: Member, kind: str, rest: list[Any]) -> None:
        if kind == "bus":
            self._carry(*rest)
            return
        attempt = self._attempts[rest[0]]
        if kind == "accepted":
            attempt.accept(rest[1], rest[2])
        elif kind == "closed":
            attempt.close(rest[1])
        elif kind == "over":
            attempt.on_over(is_normal=rest[1])
        elif kind == "ended":
            attempt.end()
        else:
            assert kind == "appended", kind
            self.acknowledged += 1
            self._replies.pop((rest[0], rest[1]), lambda: None)()

    def _carry(self, number: int, *words: Any) -> None:
        """Carry a frame to whoever hosts a number, or lose it."""
        if self.rng.random() < LOST:
            return
        for _ in range(1 + (self.rng.random() < REPEATED)):
            self.events.after(self.rng.choice(LATE_S), partial(self._arrive, number, words))

    def _arrive(self, number: int, words: tuple[Any, ...]) -> None:
        for member in self.processes.values():
            member.tell("bus", number, *words)

    def on_gone(self, member: Member) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.process is member and not attempt.is_over:
                attempt.close(0)

    # From the begin to the end.

    @property
    def has_begun(self) -> bool:
        attempts = self._attempts.values()
        stored = {one.process.number for one in attempts if one.accepted_at and one.expiry}
        return stored == self.processes.keys()  # else nobody takes the number of a process

    def start(self) -> None:
        for roamer in self._roamers:
            roamer.start()

    async def rest(self) -> None:
        for roamer in self._roamers:
            roamer.is_calm = True
            if roamer.current is not None:
                roamer.leave(roamer.current, is_silent=False, is_normal=False)
            roamer.step()
        await self._eventually(self._check_connected)
        for roamer in self._roamers[::2]:
            roamer.stay_away()
        await until(self._are_left, "the end of the connections")
        await self._eventually(self._check_gone)

    def _are_left(self) -> bool:
        """Tell whether the processes have noted that clients have left."""
        return not any(
            attempt.is_given_up and not attempt.is_over for attempt in self._attempts.values()
        )

    async def _eventually(self, examine: Callable[[Report], None]) -> None:
        """Wait until what has to hold at rest does; raise what it lacks, when patience is over."""
        deadline = self.events.now + PATIENCE_S
        while True:
            report = await self._torture.report()
            try:
                examine(report)
                return
            except Broken:
                if self.events.now > deadline:
                    raise
            await asyncio.sleep(LOOK_S)

    def _check_connected(self, report: Report) -> None:
        """Check that each client has the one connection that it believes in."""
        memories = report.memories()
        for roamer in self._roamers:
            keys = [
                memory["online"][roamer.name]
                for memory in memories.values()
                if roamer.name in memory["online"]
            ]
            current = roamer.current
            is_right = current is not None and keys == [self._keys.get(current)]
            text = f"{roamer.name} has connections {keys}, and believes in another"
            check("one-connection", is_right and not roamer.to_append, text)
        self._check(report)

    def _check(self, report: Report) -> None:
        tables, memories = report.tables, report.memories()
        rows = {row["client"]: (row["number"], row["tenure"]) for row in tables[OWNERS]}
        offered = [row["client"] for row in tables[OWNERS] if row["is_offered"]]
        check("rest", not offered, f"{offered} are offered")
        check("rest", not tables[ASKS], f"{tables[ASKS]} are asked for")
        owned = {
            client: (number, tenure)
            for number, memory in memories.items()
            for client, tenure in memory["owned"].items()
        }
        check("one-owner", owned == rows, f"{owned} are owned, {rows} are in the table")
        stored = stored_sessions(tables[SESSIONS], tables[GROUPS])
        sessions = [session for memory in memories.values() for session in memory["sessions"]]
        memory = {session["client"]: session for session in sessions if is_to_stay(session)}
        check("one-owner", memory == stored, f"{memory} in memory, {stored} stored")
        self._check_wills(tables)

    def _check_wills(self, tables: Tables) -> None:
        published = published_wills(tables[PUBLISHED], tables[GROUPS])
        for roamer in self._roamers:
            for index, attempt in enumerate(roamer.attempts):
                if attempt.will:
                    count = published[attempt.will]
                    least, most = expected_wills(roamer, index)
                    if min(attempt.will_delay, attempt.expiry) == NEVER_S:
                        least = 0  # it may still be delayed
                    text = f"{attempt.will} was published {count} times, not {least} to {most}"
                    check("will", least <= count <= most, text)

    def _check_gone(self, report: Report) -> None:
        """Check that clients that stay away have sessions if these do not expire."""
        self._check(report)
        names = [row["client"] for row in report.tables[OWNERS]]
        for roamer in self._roamers[::2]:
            last = roamer.attempts[-1]
            if last.accepted_at and last.expiry:
                check("lost", roamer.name in names, f"{roamer.name} has no session")
            elif last.accepted_at:
                check("leftover", roamer.name not in names, f"{roamer.name} still has a session")

    def check_end(self, tables: Tables) -> None:
        """Check that nothing is published for leaving."""
        check("rest", not tables[GROUPS], "a journal is not folded")

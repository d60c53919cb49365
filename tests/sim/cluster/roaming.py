"""Clients that move between nodes, and a ledger of what each may find when it connects.

A client has one connection that it believes in; earlier ones it has closed, or left half open. The
ledger has every state in which the session may be: a CONNECT without an answer was executed or not,
perhaps later than the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from tests.sim.cluster.broker import UNAVAILABLE
from tests.sim.cluster.oracles import check

FOREVER_S: Final = 1_000.0
EXPIRIES_S: Final = (0.0, 0.0, 8.0, FOREVER_S, FOREVER_S, FOREVER_S)
WILL_DELAYS_S: Final = (0.0, 3.0, 20.0)
ASK_S_MAX: Final = 60.0  # after which nobody is asked for a CONNECT that was given up
SLACK_S: Final = 2.5  # clocks that differ in pace, and the step of the database's clock


class Place(Protocol):
    """A process to which a client may connect."""

    @property
    def is_dead(self) -> bool: ...


class Time(Protocol):
    now: float

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...


PlaceT = TypeVar("PlaceT", bound=Place)


class World(Protocol[PlaceT]):
    """The processes, and what happens between them and their clients."""

    rng: Random
    processes: dict[int, PlaceT]
    is_lossless: bool
    refused: int

    @property
    def events(self) -> Time: ...

    def alive(self) -> list[PlaceT]: ...

    def reply(self, action: Callable[[], None]) -> None: ...

    def connect(self, attempt: Attempt[PlaceT]) -> None: ...

    def append(self, attempt: Attempt[PlaceT], value: int, reply: Callable[[], None]) -> None: ...

    def disconnect(self, attempt: Attempt[PlaceT], delay_s: float, *, is_normal: bool) -> None: ...

    def on_closed(self, attempt: Attempt[PlaceT], reason: int) -> None: ...

    def on_served(self, attempt: Attempt[PlaceT]) -> None: ...


@dataclass(frozen=True, slots=True)
class State:
    """A session as it may be: what it has for certain, what it may have, when it may be over."""

    has: tuple[int, ...] = ()
    may_have: tuple[int, ...] = ()
    ends_at: float = float("inf")


class Attempt(Generic[PlaceT]):
    """A connection from its CONNECT to its end."""

    def __init__(
        self, roamer: Roamer[PlaceT], process: PlaceT, *, clean: bool, expiry: float
    ) -> None:
        self.roamer = roamer
        self.client = roamer.name
        self.process = process
        self.clean = clean
        self.expiry = expiry
        self.will = ""
        self.will_delay = 0.0
        self.began_at = roamer.world.events.now
        self.accepted_at = 0.0  # as the client knows
        self.alive_at = 0.0  # the last time that something was acknowledged
        self.has_accepted = False  # the broker: CONNACK is sent
        self.over_at: float | None = None  # the broker: it is closed, or was never accepted
        self.is_given_up = False  # the client: it no longer believes in it
        self.is_left_normally = False  # the client has sent DISCONNECT
        self.is_will_discarded = False  # and the broker has committed that

    @property
    def is_over(self) -> bool:
        return self.over_at is not None

    def end(self) -> None:
        if self.over_at is None:
            self.over_at = self.roamer.world.events.now

    # What the broker says.

    def accept(self, present: bool, values: list[int]) -> None:
        if not self.is_over:
            self.has_accepted = True
            self.roamer.world.reply(lambda: self.roamer.on_accepted(self, present, values))

    def close(self, reason: int) -> None:
        if not self.is_over:
            self.end()
            self.roamer.world.on_closed(self, reason)
            self.roamer.world.reply(lambda: self.roamer.on_closed(self, reason))

    def on_over(self, *, is_normal: bool) -> None:
        self.is_will_discarded = is_normal


@dataclass(slots=True)
class Roamer(Generic[PlaceT]):
    """A client: it connects, appends values, leaves or is left, and connects elsewhere."""

    world: World[PlaceT]
    name: str
    is_calm: bool = False  # connect once more, and stay
    states: list[State | None] = field(default_factory=lambda: [None])
    attempts: list[Attempt[PlaceT]] = field(default_factory=list)
    current: Attempt[PlaceT] | None = None
    next_value: int = 1
    to_append: int = 0
    expiries_s: tuple[float, ...] = EXPIRIES_S
    will_delays_s: tuple[float, ...] = WILL_DELAYS_S
    _is_waiting: bool = False

    def start(self) -> None:
        self.world.events.after(self.world.rng.random() * 6, self.step)

    # Connect.

    def step(self) -> None:
        if self.current is None and not self._is_waiting:
            self.connect()

    def move_to(self, process: PlaceT) -> None:
        """Connect to a process, whatever else is under way."""
        if self.is_calm or process.is_dead:
            return
        if self.current is not None:
            self.leave(self.current, is_silent=True, is_normal=False)
        self.connect(process)

    def connect(self, process: PlaceT | None = None) -> None:
        rng = self.world.rng
        processes = self.world.alive() if self.is_calm else list(self.world.processes.values())
        clean, expiry = rng.random() < 0.3, rng.choice(self.expiries_s)
        if self.is_calm:
            clean = False
        attempt = Attempt(self, process or rng.choice(processes), clean=clean, expiry=expiry)
        if rng.random() < 0.5:
            attempt.will = f"{self.name}-{len(self.attempts)}"
            attempt.will_delay = rng.choice(self.will_delays_s)
        self.attempts.append(attempt)
        self.current = attempt
        self.world.connect(attempt)
        patience_s = 8.0 if self.is_calm else rng.choice([0.2, 2.0, 8.0])
        self.world.events.after(patience_s, lambda: self._give_up(attempt))

    def _give_up(self, attempt: Attempt[PlaceT]) -> None:
        if self.current is attempt and not attempt.accepted_at:
            self.leave(attempt, is_silent=self.world.rng.random() < 0.3, is_normal=False)
            self.again()

    def again(self) -> None:
        """Connect in a moment."""
        self._is_waiting = True
        delay_s = self.world.rng.choice([0.001, 0.1, 1.0, 5.0]) if not self.is_calm else 0.3
        self.world.events.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._is_waiting = False
        self.step()

    def leave(self, attempt: Attempt[PlaceT], *, is_silent: bool, is_normal: bool) -> None:
        """No longer believe in a connection; the broker may learn that much later, or at once."""
        attempt.is_given_up = True
        attempt.is_left_normally = is_normal
        if self.current is attempt:
            self.current = None
        delay_s = self.world.rng.choice([5.0, 15.0]) if is_silent else 0.0005
        self.world.disconnect(attempt, delay_s, is_normal=is_normal)

    def stay_away(self) -> None:
        """Leave, and do not come back."""
        if self.current is not None:
            self.leave(self.current, is_silent=False, is_normal=False)

    def on_closed(self, attempt: Attempt[PlaceT], reason: int) -> None:
        if self.current is attempt:
            attempt.is_given_up = True
            self.current = None
            if reason == UNAVAILABLE:
                self.world.refused += 1
            self.again()

    # The ledger.

    def on_accepted(self, attempt: Attempt[PlaceT], present: bool, values: list[int]) -> None:
        if self.current is not attempt:
            return
        now = self.world.events.now
        self._note_end(attempt)
        possible = _closure(self.states, self._loose(attempt), now)
        if attempt.clean:
            check("session-present", not present and not values, f"{self.name}: {values} left")
            state = State()
        else:
            state = self._resume(possible, present, values)
        self.states = [state]
        attempt.accepted_at = attempt.alive_at = now
        self.world.on_served(attempt)
        self.to_append = self.world.rng.randint(0, 3)
        self._append(attempt)

    def _last_accepted(self, attempt: Attempt[PlaceT]) -> Attempt[PlaceT] | None:
        accepted = [one for one in self.attempts if one.accepted_at and one is not attempt]
        return accepted[-1] if accepted else None

    def _note_end(self, attempt: Attempt[PlaceT]) -> None:
        """Note when the session may be over at the earliest, of the connection before."""
        last = self._last_accepted(attempt)
        if last is not None and last.expiry == 0.0:
            self.states = [None]
        elif last is not None:
            ends_at = last.alive_at + last.expiry - SLACK_S
            self.states = [one and replace(one, ends_at=ends_at) for one in self.states]

    def _loose(self, attempt: Attempt[PlaceT]) -> list[Attempt[PlaceT]]:
        """Return CONNECTs without an answer that may have been executed since the last with one."""
        last = self._last_accepted(attempt)
        since = last.began_at if last is not None else 0.0
        return [
            one
            for one in self.attempts
            if one is not attempt
            and not one.accepted_at
            and (one.over_at is None or one.over_at >= since)
        ]

    def _resume(self, possible: list[State | None], present: bool, values: list[int]) -> State:
        now = self.world.events.now
        text = f"{self.name}: present {present}, {values} at {now:.1f}, but {possible} are possible"
        if not self.world.is_lossless:
            possible = [*possible, *([State(may_have=tuple(values))] if present else [None])]
        if not present:
            check("session-present", None in possible and not values, text)
            return State()
        exists = [one for one in possible if one is not None]
        check("session-present", bool(exists), text)
        check("once", len(set(values)) == len(values), text)
        check("order", values == sorted(values), text)
        known = set().union(*({*one.has, *one.may_have} for one in exists))
        check("leftover", known.issuperset(values), text)
        fits = [one for one in exists if set(one.has) <= set(values)]
        check("lost", bool(fits), text)
        return State(has=tuple(values))

    # What a connected client does.

    def _append(self, attempt: Attempt[PlaceT]) -> None:
        if self.current is not attempt:
            return
        if self.to_append <= 0:
            self._idle(attempt)
            return
        self.to_append -= 1
        value, self.next_value = self.next_value, self.next_value + 1
        self.states = [one and replace(one, may_have=(*one.may_have, value)) for one in self.states]
        self.world.append(attempt, value, lambda: self._on_appended(attempt, value))

    def _on_appended(self, attempt: Attempt[PlaceT], value: int) -> None:
        if self.current is not attempt:
            return
        attempt.alive_at = self.world.events.now
        first = self.states[0]
        assert first is not None
        self.states[0] = replace(first, has=(*first.has, value))
        self._append(attempt)

    def _idle(self, attempt: Attempt[PlaceT]) -> None:
        if not self.is_calm:
            seconds = self.world.rng.choice([0.01, 0.5, 3.0, 12.0])
            self.world.events.after(seconds, lambda: self._move_on(attempt))

    def _move_on(self, attempt: Attempt[PlaceT]) -> None:
        if self.current is attempt:
            chance = self.world.rng.random()
            self.leave(attempt, is_silent=chance < 0.4, is_normal=chance > 0.7)
            self.again()


def may_have_taken(one: Attempt[Any], attempt: Attempt[Any], now: float) -> bool:
    """Tell whether a CONNECT may be the reason why another connection is taken over now."""
    if one.accepted_at:
        return one.accepted_at > attempt.began_at
    return one.over_at is None or one.over_at > now - ASK_S_MAX


def expected_wills(roamer: Roamer[Any], index: int) -> tuple[int, int]:
    """Return how often the will of a connection is published, at least and at most."""
    attempt, later = roamer.attempts[index], roamer.attempts[index + 1 :]
    if attempt is roamer.current or attempt.is_will_discarded:
        return 0, 0
    if not attempt.accepted_at or attempt.is_left_normally:
        return 0, 1
    delay_s = min(attempt.will_delay, attempt.expiry)
    following = next((one for one in later if one.accepted_at), None)
    has_loose = any(
        not one.accepted_at and (one.over_at is None or one.over_at > attempt.accepted_at)
        for one in roamer.attempts
    )
    if following is None or following.clean or delay_s == 0:
        return (0 if has_loose and delay_s else 1), 1
    if not has_loose and following.accepted_at < attempt.alive_at + delay_s - SLACK_S:
        return 0, 0
    return 0, 1


def _closure(
    states: list[State | None], loose: list[Attempt[Any]], now: float
) -> list[State | None]:
    """Return what the session may be now, if CONNECTs without an answer may have been executed."""
    found: list[State | None] = []
    todo = list(states)
    while todo:
        state = todo.pop()
        if state not in found:
            found.append(state)
            todo.extend(_executed(attempt, state) for attempt in loose)
            if state is not None and state.ends_at <= now:
                todo.append(None)
    return found


def _executed(attempt: Attempt[Any], before: State | None) -> State:
    """Return what a session is after a CONNECT whose connection may be over."""
    ends_at = attempt.began_at + attempt.expiry - SLACK_S
    after = State() if attempt.clean or before is None else before
    return replace(after, ends_at=min(after.ends_at, ends_at))

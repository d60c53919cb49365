"""What the model of a broker is made of.

Broken    the broker did what it may not; says which oracle saw it
Fact      a value, with those that a crash may bring back
Message   one publication, and whether its publisher was told that it is safe
Owed      a message that one session, or one group, has to get
State     a session
Door      one connection
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from tests.fuzz.broker.wire import Asked, Packet, Properties, Will

T = TypeVar("T")

ORACLES: Final = {
    "answer": "every request is answered, once, with what its packet may carry",
    "brought": "retained messages follow their SUBACK, over a crash too",
    "cleared": "what was removed from the retained messages, and acknowledged, stays removed",
    "close": "a connection ends only for a reason, and always when there is one",
    "early-end": "no session ends, and no will comes, before its time",
    "expired": "what has expired is not handed over to another member of a group",
    "format": "no payload is refused for another's (without it, no burst says that it is text)",
    "group": "what a group was promised reaches one of its members",
    "late-end": "a session whose time is over is gone",
    "live": "what is connected gets QoS 0, and gets it at once",
    "guests": "strangers, repetitions, a bridge (not an oracle: without it there are none)",
    "liveness": "once the store works nobody is left waiting",
    "once": "QoS 2 is delivered once",
    "order": "messages of one publisher and topic keep their order",
    "promise": "what was acknowledged reaches every session that it was for",
    "present": "Session Present tells the truth",
    "retained": "what is retained is what was last published so",
    "returned": "what was ended, and said to be, does not come back",
    "session": "an acknowledged session, subscription or packet id outlives a crash",
    "unowed": "nobody gets what was not meant for it, nor with other flags or properties",
    "wide": "numbers above 2^31 (not an oracle: without it they are not drawn)",
    "will": "a will is published when it is due",
}


BRIDGE: Final = b"bridge of "  # and its client: who published what came over a bridge
BRIDGED: Final = b"over the bridge: "  # in front of its payload


class Broken(AssertionError):
    def __init__(self, oracle: str, text: str) -> None:
        assert oracle in ORACLES
        super().__init__(f"[{oracle}] {text}")
        self.oracle = oracle


class Ignored(Exception):
    """What was seen is a fault that is known: the play ends, and is none."""


class Fact(Generic[T]):
    """A value that changes; all since the one that was surely stored, that one first."""

    def __init__(self, value: T) -> None:
        self._values: list[tuple[int, T]] = [(0, value)]

    @property
    def now(self) -> T:
        return self._values[-1][1]

    @property
    def possible(self) -> list[T]:
        return [value for _, value in self._values]

    def put(self, stamp: int, value: T) -> None:
        self._values.append((stamp, value))

    def promise(self, stamp: int) -> None:
        """What was put at `stamp`, or something later, is there after a crash."""
        for place in range(len(self._values) - 1, 0, -1):
            if self._values[place][0] <= stamp:
                del self._values[:place]
                return

    def settle(self) -> None:
        del self._values[:-1]

    def become(self, value: T) -> None:
        self._values = [(0, value)]


@dataclass(eq=False)
class Message:
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    props: Properties
    publisher: bytes
    at: float
    number: int  # in the order of publication, and of everything else that is recorded
    expires_at: float
    serial: int = 0  # of what it repeats: the same for both
    promised: bool = False
    is_will: bool = False
    origin: Message | None = None  # what a bridge made it of

    def __str__(self) -> str:
        shown = self.payload[:24]
        return f"{self.topic[:40]!r} {shown!r} (QoS {self.qos}, no. {self.number})"


@dataclass(eq=False)
class Owed:
    message: Message
    qos: int
    retain: bool
    ids: frozenset[int]
    must: bool
    kind: str = "live"
    sent: int = 0  # written for the first time
    taken: int = 0  # acknowledged by the client
    taken_at: int = 0
    again: bool = False  # a crash may have forgotten that it was taken, or sent
    holders: set[Door] = field(default_factory=set)  # of a group's: connections that have it
    receiver: State | None = None  # of a group's: who has it, or had it last
    is_mixed: bool = False  # a group's: a member is in another that gets the message too
    keepers: list[State] = field(default_factory=list)  # of a group's: stored members at the time


@dataclass(eq=False)
class Subscription:
    asked: Asked
    identifier: int

    def same(self, other: tuple[int, bool, bool, int]) -> bool:
        asked = self.asked
        return (asked.qos, asked.no_local, asked.as_published, self.identifier) == other


@dataclass(eq=False)
class State:
    client: bytes
    created_at: float
    stamp: int
    version: int = 5
    expiry: int = 0
    stored: bool = False
    tainted: bool = False  # its client did what no client should: little is known of it
    door: Door | None = None
    subs: dict[bytes, Fact[Subscription | None]] = field(default_factory=dict)
    # Groups it ever was in: QoS, Subscription Identifier, Retain As Published.
    groups: dict[bytes, set[tuple[int, int, bool]]] = field(default_factory=dict)
    left: dict[bytes, int] = field(default_factory=dict)  # groups: when it unsubscribed
    owed: list[Owed] = field(default_factory=list)
    outstanding: dict[int, Owed | None] = field(default_factory=dict)
    received: dict[int, Owed | None] = field(default_factory=dict)  # QoS 2, at the client
    open: dict[int, Message] = field(default_factory=dict)  # QoS 2, from the client
    freed: dict[int, Message] = field(default_factory=dict)  # and released, perhaps not on disk
    order: dict[tuple[bytes, bytes, int], int] = field(default_factory=dict)
    # What it was sent as its own, and each of the copies of groups that this may have been.
    lookalikes: list[tuple[Owed, list[Owed]]] = field(default_factory=list)
    will: Will | None = None
    will_due: float = float("inf")
    will_stamp: int = 0
    ends: float = float("inf")
    end_stamp: int = 0
    is_row: bool = False  # its will was one in the store at a start, and ended there
    # Since what is surely on disk: any of these may hold after a crash.
    wills: list[Will | None] = field(default_factory=list)
    lives: list[tuple[float | None, int]] = field(default_factory=list)  # closed at, expiry

    def subscription(self, text: bytes) -> Subscription | None:
        fact = self.subs.get(text)
        return None if fact is None else fact.now


@dataclass(eq=False)
class Kept:
    """A packet behind a CONNECT that waits. It acts after CONNACK, or never."""

    packet: Packet | None  # none: it is malformed
    must_close: bool = False
    may_close: bool = False


@dataclass(eq=False)
class Door:
    """One connection as the model sees it."""

    number: int
    version: int = 0
    client: bytes = b""
    connect: Packet | None = None
    state: State | None = None
    is_open: bool = True
    is_ended: bool = False  # by the broker
    has_connack: bool = False
    said_goodbye: bool = False
    expects_present: bool = False
    ended_stamp: int = 0  # an old session that CONNACK says is gone
    life: tuple[float | None, int] | None = None  # of its session, as CONNACK says
    waits: bool = False  # its CONNACK waits for the store
    waits_until: float = float("inf")  # then it is refused
    prior: tuple[float | None, int] | None = None  # life of the session, should it be lost
    kept: list[Kept] = field(default_factory=list)  # what followed its CONNECT meanwhile
    refusals: frozenset[int] = frozenset()
    may_close: frozenset[int] = frozenset()  # reasons for which it may end at any time
    must_close: bool = False
    tainted: bool = False
    last_heard: float = 0.0
    aliases_in: dict[int, bytes] = field(default_factory=dict)
    aliases_out: dict[int, bytes] = field(default_factory=dict)
    unacked: set[int] = field(default_factory=set)  # ids of the broker under way here
    pending: dict[tuple[int, int], list[Message | Packet | None]] = field(default_factory=dict)

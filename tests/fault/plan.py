"""Who takes part in a torture and what each does: the same in every process.

A *stream* is what one publisher sends to one topic at one QoS, numbered 1, 2, 3, ... A
*taker* subscribes. All follows from a few numbers, so that a seed tells the whole plan.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Final

WILL_TOPIC: Final = "will/mourner"
WILL_DELAY_S: Final = 3
STATUS_TOPIC: Final = "status/beacon"
DAY_S: Final = 86_400
BRIEF_S: Final = 8  # the expiry of a session that no crash may end early
_HEAD: Final = struct.Struct(">HII")


@dataclass(frozen=True, slots=True)
class Stream:
    index: int
    publisher: int
    topic: str
    qos: int
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Taker:
    name: str
    filters: tuple[str, ...]
    qos: int
    share: str = ""  # the group it is a member of, which then is what must get each message
    receive_maximum: int = 65_535
    ack_pause_s: float = 0.0
    comes_and_goes: bool = False
    is_late: bool = False  # subscribes, goes, and is back for the end
    is_cutting: bool = False  # drops its connection in the middle of handshakes
    is_churning: bool = False  # unsubscribes and subscribes
    is_renewing: bool = False  # begins a new session now and then, by Clean Start
    is_fleeting: bool = False  # its session ends with its connection
    expiry_s: int = DAY_S
    log: str = ""  # the stream of the telemetry log it reads them from

    def asked(self, number: int) -> str:
        """The Topic Filter as it is asked for."""
        text = f"$stream/{self.log}" if self.log else self.filters[number]
        return f"$share/{self.share}/{text}" if self.share else text


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    publishers: int
    rate: float  # messages a second, of all publishers
    toggler: int  # the publisher that begins new sessions, and uses their packet ids again
    streams: tuple[Stream, ...] = field(default=())
    takers: tuple[Taker, ...] = field(default=())

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")


def make(seed: int, publishers: int, rate: float, *, has_log: bool = False) -> Plan:
    """At least three publishers; what takers there are follows from their number."""
    streams: list[Stream] = []

    def stream(publisher: int, topic: str, qos: int, retain: bool = False) -> None:
        streams.append(Stream(len(streams), publisher, topic, qos, retain))

    for p in range(publishers):
        for letter in "ab":
            for qos in (1, 2):
                stream(p, f"load/p{p}/{letter}", qos)
        for qos in (1, 2):
            stream(p, f"state/p{p}/{qos}", qos, retain=True)
    stream(publishers, "mark/mourner", 2)
    takers = _takers(publishers) + (_LOG_TAKERS if has_log else [])
    return Plan(seed, publishers, rate, publishers - 1, tuple(streams), tuple(takers))


def _takers(publishers: int) -> list[Taker]:
    takers = [
        Taker("all", ("load/#", "state/#"), 2),
        Taker("overlap", ("load/p0/#", "load/+/a"), 1),
        Taker("narrow", ("load/p1/#",), 2, receive_maximum=3, ack_pause_s=0.002),
        Taker("late-2", ("load/p0/b", "mark/#"), 2, is_late=True),
        Taker("late-1", ("load/p1/b",), 1, is_late=True),
        Taker("churn-2", ("load/p2/a", "load/p2/+", "load/p1/a"), 2, is_churning=True),
        Taker("churn-1", ("load/p1/b", "load/+/b"), 1, is_churning=True),
        Taker("renew", ("load/p0/a", "load/p2/#"), 2, is_renewing=True),
        Taker("member-0", ("load/p1/#",), 2, share="crew"),
        Taker("member-1", ("load/p1/#",), 2, share="crew", comes_and_goes=True),
        Taker("member-2", ("load/p1/#",), 2, share="crew", receive_maximum=5, is_cutting=True),
        Taker("clerk-0", ("load/+/b",), 1, share="desk", ack_pause_s=0.03, comes_and_goes=True),
        Taker("clerk-1", ("load/+/b",), 1, share="desk", ack_pause_s=0.01, comes_and_goes=True),
    ]
    takers += [
        Taker("brief", ("load/p1/a",), 2, expiry_s=BRIEF_S),
        Taker("host", ("load/p0/+",), 1, share="mixed", comes_and_goes=True),
        *(
            Taker(f"guest-{n}", ("load/p0/+",), 1, share="mixed", is_fleeting=True,
                  receive_maximum=2 + 20 * n, ack_pause_s=0.02, expiry_s=0, comes_and_goes=n > 0)
            for n in range(2)
        ),
    ]  # fmt: skip
    for p in range(publishers):
        takers += [
            Taker(f"away-{p}", (f"load/p{p}/a",), 2 - p % 2, comes_and_goes=True),
            Taker(f"cutter-{p}", (f"load/p{p}/+",), 2, receive_maximum=20, is_cutting=True),
        ]
    return takers


# What is under `load/` is also in a stream of that name.
_LOG_TAKERS: Final = [
    Taker("replay", ("load/#",), 1, log="load", comes_and_goes=True),
    Taker("reader-0", ("load/#",), 1, share="readers", log="load"),
    Taker("reader-1", ("load/#",), 1, share="readers", log="load", comes_and_goes=True),
    Taker("reader-2", ("load/#",), 1, share="readers", log="load", is_cutting=True),
]


# Messages.


def write(stream: int, seq: int, size: int) -> bytes:
    """The payload of a message: who it is, and so much filling that depends on it."""
    return _HEAD.pack(stream, seq, size) + bytes([seq & 0xFF]) * size


def read(payload: bytes) -> tuple[int, int]:
    """(stream, seq); ValueError when it is not as it was written."""
    try:
        stream, seq, size = _HEAD.unpack_from(payload)
    except struct.error:
        raise ValueError("a payload that is cut short") from None
    if payload != write(stream, seq, size):
        raise ValueError("a payload that was changed")
    return stream, seq


def matches(text: str, topic: str) -> bool:
    """Whether the filter takes the topic: on purpose not the broker's own way."""
    wanted, found = text.split("/"), topic.split("/")
    for n, level in enumerate(wanted):
        if level == "#":
            return True
        if n >= len(found) or level not in ("+", found[n]):
            return False
    return len(wanted) == len(found)

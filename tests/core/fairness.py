"""Turns in which one client asks for too much, and a bystander only wants an answer.

A turn is what the server does between two waits: the clients with input are read once, as far as
the turn goes, the timers that are due fire, and peers are written to once, as far as it goes. Here
it is counted in calls of functions, Python's and C's, which are the same on every machine; a call
costs about as much as a unit of `Work`. A turn that takes more than `TURN_CALLS_MAX` ends at once
with `Stalled`.

    arena = Arena(World())
    arena.send(arena.world.client("attacker"), data)
    arena.run(turns=10)                   # the bystander sends a PINGREQ in each
    assert arena.worst < WAIT_CALLS_MAX   # calls from a PINGREQ to its PINGRESP
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from types import FrameType
from typing import Any, Final, Self

from mqtt_broker.codec.encode import PINGREQ_BYTES
from mqtt_broker.codec.packets import Pingresp
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from sessions.messages.work import SHARE_UNITS, TURN_UNITS, Work
from tests.core.peers import V5, Peer, World, connect

READ_BYTES: Final = 1 << 18  # that one read brings, as in `server.net.link`
TURN_CALLS_MAX: Final = 150_000
WAIT_CALLS_MAX: Final = 2 * TURN_CALLS_MAX


def small() -> Work:
    """A fifth of what is usual: the code is not compiled here, and the tests are quick."""
    return Work(SHARE_UNITS // 5, TURN_UNITS // 5)


class Stalled(BaseException):
    """A turn took too long. No exception that the broker could take for an error of its own."""


class Calls:
    """Counts calls of functions, and ends what takes more of them than `limit` at a time."""

    def __init__(self) -> None:
        self.total = 0
        self.limit = sys.maxsize  # of `total`

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.total += 1
            if self.total > self.limit:
                sys.setprofile(None)
                raise Stalled(f"more than {TURN_CALLS_MAX} calls in a turn")

    def __enter__(self) -> Self:
        self.limit = self.total + TURN_CALLS_MAX
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


class Sink:
    """A link that takes everything and keeps nothing: crowds are made of these."""

    peer = "192.0.2.2:1"

    def __init__(self) -> None:
        self.is_paused = False
        self.is_closed = False

    def write(self, data: bytes) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def crowd(broker: Broker, now: float, count: int, *packets: bytes, **fields: Any) -> list[Member]:
    """Connect so many clients, named s0, s1, ..., that send these packets."""
    found: list[Member] = []
    for number in range(count):
        member = Member(broker, now)
        member.receive(connect(f"s{number}", V5, **fields), now)
        for packet in packets:
            member.receive(packet, now)
        found.append(member)
    return found


class Member:
    """A client of a crowd."""

    def __init__(self, broker: Broker, now: float) -> None:
        self.link = Sink()
        self.connection: Connection = broker.accept(self.link, now)

    def receive(self, data: bytes, now: float) -> None:
        dispatch.receive(self.connection, data, now)

    def lose(self, now: float) -> None:
        self.connection.lost(now)


class Arena:
    """A world in which input waits at sockets until there is a turn."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bystander = world.client("bystander")
        self.calls = Calls()
        self.turns: list[int] = []  # calls of each
        self.waits: list[int] = []  # calls from each PINGREQ of the bystander to its PINGRESP
        self._unread: dict[Peer, deque[bytes]] = {}
        self._left: list[Peer] = []  # with input, that the last turn did not come to
        self._asked: deque[int] = deque()
        gc.collect()

    def send(self, peer: Peer, *packets: bytes) -> None:
        """Let a peer write this to its socket, which is read a piece a turn."""
        data = b"".join(packets)
        pieces = [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]
        self._unread.setdefault(peer, deque()).extend(pieces)

    def come_back(self, client_id: str, **fields: Any) -> Peer:
        """Let a client send a CONNECT that is read in the next turn."""
        peer = self.world.peer()
        self.send(peer, connect(client_id, **fields))
        return peer

    @property
    def is_at_rest(self) -> bool:
        """Tell whether everything that was sent has been read and acted upon."""
        return not any(self._unread.values()) and not self.world.broker.has_more

    @property
    def worst(self) -> int:
        return max(self.waits)

    def run(self, turns: int = 20) -> None:
        """Serve so many turns, in each of which the bystander asks, and one more to answer."""
        for _ in range(turns):
            self._asked.append(self.calls.total)
            self.send(self.bystander, PINGREQ_BYTES)
            self.turn()
        while self._asked:
            self.turn()

    def turn(self) -> None:
        """Serve one turn."""
        began = self.calls.total
        with self.calls:
            self._read()
            self.world.broker.tick(self.world.now)
            self.world.broker.work(self.world.now)
            self.world.broker.flush(self.world.now)
        self.turns.append(self.calls.total - began)
        self._note_answers()

    def _read(self) -> None:
        """Read clients once, as `server.net.poller` does: the bystander behind all others, but for
        those that the last turn did not come to.
        """
        work = self.world.broker.runtime.work
        others = [peer for peer in self._unread if peer not in self._left]
        others.sort(key=lambda peer: peer is self.bystander)
        ready = [peer for peer in self._left + others if self._is_ready(peer)]
        self._left = []
        end = work.spent + work.turn_units
        work.divide(max(1, len(ready)))
        for at, peer in enumerate(ready):
            if work.spent >= end:
                self._left = ready[at:]
                break
            dispatch.receive(peer.connection, self._take(peer), self.world.now)
        work.divide(1)

    def _take(self, peer: Peer) -> bytes:
        """Take what a read brings: all that the bystander asked meanwhile."""
        pieces = self._unread[peer]
        if peer is not self.bystander:
            return pieces.popleft()
        data = b"".join(pieces)
        pieces.clear()
        return data

    def _is_ready(self, peer: Peer) -> bool:
        return len(self._unread[peer]) > 0 and not (peer.is_paused or peer.is_closed)

    def _note_answers(self) -> None:
        for packet in self.bystander.take():
            if isinstance(packet, Pingresp):
                self.waits.append(self.calls.total - self._asked.popleft())

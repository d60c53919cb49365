"""Plays a vector against the pure core: no socket, no task, no clock but our own.

Every vector is played in three ways. *whole*: each send is one `receive`. *bytewise*: a byte
at a time. *coalesced*: all that one connection sends until another connection, a wait or the
end of a connection comes into play is one `receive`, with a PINGREQ in front and behind where
the connection is open; there, only packets of one type keep their order among themselves,
because a broker may answer a burst in one go.

After each entry into the core the harness flushes, and when the core closed a link, the
connection is told that it is lost, as a socket would.
"""

from __future__ import annotations

import random
from typing import Final

from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from tests.spec.notation import Pattern, Step, Vector

MODES: Final = ("whole", "bytewise", "coalesced")
START: Final = 1000.0
_PINGREQ: Final = b"\xc0\x00"
_PINGRESP: Final = b"\xd0\x00"


class Mismatch(AssertionError):
    """The broker did not do what the vector says."""


class FakeLink:
    """What a socket looks like to the core; what was written waits in `unread`."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.unread = bytearray()
        self.closed = False
        self.aborted = False
        self.paused = False

    def write(self, data: bytes) -> int:
        if not self.closed:  # a closed socket takes no more
            self.unread += data
        return 0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def split_packets(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole packets and what is left over. A length that cannot be is left over, too."""
    packets = []
    at = 0
    while at < len(data):
        length = shift = 0
        place = at + 1
        while place < len(data) and place < at + 5:
            length |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:
                break
        else:
            break
        if place + length > len(data):
            break
        packets.append(data[at : place + length])
        at = place + length
    return packets, data[at:]


def split_pattern(pattern: Pattern) -> list[Pattern]:
    packets, rest = split_packets(pattern.data)
    assert not rest, f"what is expected is not whole packets: {pattern}"
    out = []
    at = 0
    for packet in packets:
        wild = frozenset(place - at for place in pattern.any if at <= place < at + len(packet))
        out.append(Pattern(packet, wild))
        at += len(packet)
    return out


class Peer:
    """One end of one connection."""

    def __init__(self, broker: Broker, name: str, now: float) -> None:
        self.link = FakeLink(f"192.0.2.1:{sum(name.encode())}")
        self.connection = broker.accept(self.link, now)
        self.lost = False
        self.sent = b""  # what does not yet make a whole packet
        self.accepted = False

    @property
    def unread(self) -> bytes:
        return bytes(self.link.unread)

    def take(self, count: int) -> bytes:
        taken = bytes(self.link.unread[:count])
        del self.link.unread[:count]
        return taken


class Player:
    def __init__(self, vector: Vector, mode: str) -> None:
        self.vector = vector
        self.mode = mode
        self.now = START
        settings = Settings(**{"sys_interval_s": 0, **vector.settings})  # type: ignore[arg-type]
        self.broker = Broker(settings, now=START, rng=random.Random(1))
        self.peers: dict[str, Peer] = {}

    # Entries into the core.

    def peer(self, step: Step) -> Peer:
        peer = self.peers.get(step.who)
        if peer is None or (peer.lost and step.kind == "send"):
            if peer is not None:
                self.check_nothing(peer, step)
            peer = Peer(self.broker, step.who, self.now)
            self.peers[step.who] = peer
        return peer

    def receive(self, peer: Peer, data: bytes) -> None:
        dispatch.receive(peer.connection, data, self.now)
        self.settle()
        _, peer.sent = split_packets(peer.sent + data)

    def settle(self) -> None:
        """Flush, and tell the connections that were closed; that may write to others."""
        while True:
            self.broker.flush(self.now)
            while self.broker.has_more:
                self.broker.work(self.now)
                self.broker.flush(self.now)
            closed = [peer for peer in self.peers.values() if peer.link.closed and not peer.lost]
            if not closed:
                return
            for peer in closed:
                peer.lost = True
                peer.connection.lost(self.now)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(10_000):
            deadline = self.broker.tick(self.now)
            self.settle()
            if deadline > end:
                break
            self.now = max(self.now, deadline)
        else:
            raise Mismatch("tick() always has another timer due")
        self.now = end
        self.broker.tick(end)
        self.settle()

    # Steps.

    def play(self, steps: list[Step]) -> None:
        at = 0
        while at < len(steps):
            if self.mode == "coalesced" and steps[at].kind in ("send", "expect"):
                stop = at
                while (
                    stop < len(steps)
                    and steps[stop].who == steps[at].who
                    and steps[stop].kind in ("send", "expect")
                ):
                    stop += 1
                self.coalesced(steps[at:stop])
            else:
                stop = at + 1
                if steps[at].kind == "expect" and steps[at].loose:
                    while stop < len(steps) and self._joins(steps[at], steps[stop]):
                        stop += 1
                    self.expect_loose(steps[at:stop])
                else:
                    self.step(steps[at])
            at = stop
        self.finish()

    @staticmethod
    def _joins(one: Step, other: Step) -> bool:
        return other.kind == "expect" and other.loose and other.who == one.who

    def step(self, step: Step) -> None:
        if step.kind == "wait":
            self.wait(step.seconds)
            return
        peer = self.peer(step)
        if step.kind == "send":
            self.send(peer, step.pattern.data)
        elif step.kind == "expect":
            self.expect(peer, step)
        elif step.kind == "silent":
            self.check_nothing(peer, step)
            if peer.link.closed:
                raise self.mismatch(step, "an open connection", "it is closed")
        elif step.kind == "closed":
            self.check_nothing(peer, step)
            if not peer.link.closed:
                raise self.mismatch(step, "a closed connection", "it is open")
        else:
            assert step.kind == "drop"
            self.check_nothing(peer, step)
            if not peer.lost:
                peer.lost = peer.link.closed = True
                peer.connection.lost(self.now)
                self.settle()

    def send(self, peer: Peer, data: bytes) -> None:
        if self.mode != "bytewise":
            self.receive(peer, data)
            return
        for at in range(len(data)):
            if peer.link.closed:
                return
            dispatch.receive(peer.connection, data[at : at + 1], self.now)
            self.settle()
        _, peer.sent = split_packets(peer.sent + data)

    def expect(self, peer: Peer, step: Step) -> None:
        want = step.pattern
        if not want.matches(peer.unread[: len(want.data)]):
            raise self.mismatch(step, str(want), Pattern(peer.unread))
        got = peer.take(len(want.data))
        peer.accepted |= got[:1] == b"\x20" and got[3] == 0

    def expect_loose(self, steps: list[Step]) -> None:
        peer = self.peer(steps[0])
        for step in steps:
            for want in split_pattern(step.pattern):
                self.take_by_type(peer, want, step)

    def take_by_type(self, peer: Peer, want: Pattern, step: Step) -> None:
        """The first unread packet of the wanted type has to be the one that is wanted."""
        packets, rest = split_packets(peer.unread)
        first = want.data[0] >> 4
        for at, packet in enumerate(packets):
            if packet[0] >> 4 == first:
                wrong_place = (first == 2 and at != 0) or (first == 14 and at != len(packets) - 1)
                if wrong_place or not want.matches(packet):
                    if step.loose:
                        continue
                    break
                del packets[at]
                peer.link.unread[:] = b"".join(packets) + rest
                return
        raise self.mismatch(step, str(want), Pattern(peer.unread))

    def coalesced(self, steps: list[Step]) -> None:
        peer = self.peer(steps[0])
        sent = b"".join(step.pattern.data for step in steps if step.kind == "send")
        pings = 0
        if sent:
            if peer.accepted and not peer.sent and not peer.link.closed:
                sent = _PINGREQ + sent
                pings += 1
            whole = not split_packets(peer.sent + sent)[1]
            if whole:
                sent += _PINGREQ
            before = len(peer.unread)
            self.receive(peer, sent)
            if whole and not peer.link.closed:
                pings += 1
            self.remove_pings(peer, before, pings, steps[0])
        for step in steps:
            if step.kind == "expect":
                for want in split_pattern(step.pattern):
                    self.take_by_type(peer, want, step)
                peer.accepted |= step.pattern.data[:1] == b"\x20"

    def remove_pings(self, peer: Peer, before: int, count: int, step: Step) -> None:
        packets, rest = split_packets(peer.unread[before:])
        if packets.count(_PINGRESP) < count:
            raise self.mismatch(step, f"{count} answers to PINGREQ", Pattern(peer.unread))
        for _ in range(count):
            packets.remove(_PINGRESP)
        peer.link.unread[before:] = b"".join(packets) + rest

    def finish(self) -> None:
        """Nothing is left over, and who is connected is still heard."""
        for name, peer in self.peers.items():
            step = Step("silent", name, self.vector.lines[-1][0])
            self.check_nothing(peer, step)
        for name, peer in self.peers.items():
            if peer.link.closed or not peer.accepted or peer.sent:
                continue
            self.receive(peer, _PINGREQ)
            step = Step("silent", name, self.vector.lines[-1][0])
            if peer.unread != _PINGRESP:
                raise self.mismatch(step, "PINGRESP to a last PINGREQ", Pattern(peer.unread))
            peer.take(2)

    def check_nothing(self, peer: Peer, step: Step) -> None:
        if peer.unread:
            raise self.mismatch(step, "nothing more", Pattern(peer.unread))

    def mismatch(self, step: Step, want: str, got: Pattern | str) -> Mismatch:
        peer = self.peers.get(step.who)
        state = "closed" if peer is not None and peer.link.closed else "open"
        return Mismatch(
            f"{self.vector.path.name}:{step.line} {self.vector.name} ({self.mode}), {step.who}"
            f" at {self.now - START:g} s\n  expected {want}\n  got      {got} ({state})"
            f"\n  rules    {' '.join(self.vector.rules)}"
        )


def play(vector: Vector, version: str, mode: str) -> None:
    Player(vector, mode).play(vector.steps(version))


__all__ = ["MODES", "FakeLink", "Mismatch", "Player", "play", "split_packets"]

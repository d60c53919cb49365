"""Readers and consumers that come, go, lose their way and die, drawn from a seed, and an oracle.

The log grows, rolls and is trimmed; threads answer late and in any order; acknowledgements come
in any order or say that something failed; the broker is killed and loses what was not committed.
What has to hold all the while:

- a reader sees each partition in order, without a gap that it was not told of, and without a
  repeat in one life of the broker, but for what the session repeats with DUP;
- after a restart it goes on at or before the first record it has not acknowledged;
- a group does not see again what was acknowledged in this life, and in the end everything was
  acknowledged by somebody, and nothing is left to be read.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mqtt_broker.codec.packets import Publish
from mqtt_broker.streams.format.offsets import Offsets
from tests.core.peers import Peer, disconnect, unsubscribe
from tests.streams.replaying import (
    ERROR,
    NAME,
    STREAM,
    V5,
    Got,
    ReplayLimits,
    Replays,
    acknowledge,
    subscribe,
)

FOUND = (69,)  # members that wait for one record dropped each other's pages, for ever
MORE = [seed for seed in range(8, 120) if seed not in FOUND]
SEEDS = [*range(8), *FOUND, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)]
GROUP = f"$share/g/{STREAM}"


class Gone(Exception):
    """The connection ended."""


class Reading:
    """One client with a subscription, and what it knows."""

    def __init__(self, play: Play, name: str, text: str, qos: int) -> None:
        self.play = play
        self.name = name
        self.text = text
        self.qos = qos
        self.receive_maximum = play.rng.choice([1, 2, 5, 40])
        self.is_kept = play.rng.random() < 0.7
        self.peer: Peer | None = None
        self.is_subscribed = False
        self.unacked: list[Got] = []
        self.former: list[Got] = []  # the same of a subscription that ended
        self.former_ids: set[int] = set()  # which the session repeats all the same
        self.expected: dict[int, int] = {}  # own readers: the next of each partition
        self.loose: dict[int, int] = {}  # after a restart: it may go on at this one or before

    @property
    def is_member(self) -> bool:
        return self.text.startswith("$share")

    def come(self) -> None:
        world = self.play.world
        expiry = 10_000 if self.is_kept else 0
        self.peer = world.client(
            self.name,
            clean=False,
            expiry=expiry,
            receive_maximum=self.receive_maximum,
        )
        session = world.broker.sessions.get(self.name)
        assert session is not None
        if self.text not in session.subscriptions:
            self.is_subscribed = False
        if not self.is_subscribed:
            self.expected = dict.fromkeys(range(self.play.partitions), -1)
            self.loose.clear()
            self.unacked = [] if not self.is_kept else self.unacked
            self._subscribe()
        self.unacked, self.former = [], []  # what is still owed is repeated
        world.commit()

    def _subscribe(self) -> None:
        assert self.peer is not None
        assert subscribe(self.peer, self.text, "earliest", self.qos) == self.qos
        self.is_subscribed = True

    def go(self, *, is_polite: bool) -> None:
        self.take()
        if self.peer is None:
            return
        peer, self.peer = self.peer, None
        if is_polite:
            peer.send(disconnect())
        else:
            peer.drop()

    def leave(self) -> None:
        self.take()
        if self.peer is not None and self.is_subscribed:
            self.peer.send(unsubscribe(V5, self.text))
            self.play.world.commit()
            self.take()
            self.is_subscribed = False
            self.former += self.unacked
            self.former_ids |= {one.packet_id for one in self.unacked}
            self.unacked = []
            self._subscribe_anew()

    def _subscribe_anew(self) -> None:
        self.expected = dict.fromkeys(range(self.play.partitions), -1)
        self.loose.clear()
        self._subscribe()

    def on_restart(self) -> None:
        self.take()
        self.peer = None
        self.former_ids.clear()
        for partition, expected in self.expected.items():
            owed = [one.offset for one in self.unacked if one.partition == partition]
            if expected < 0:
                continue
            floor = min([expected, *owed])
            self.loose[partition] = min(floor, self.loose.get(partition, floor))

    def take(self) -> None:
        """Look at what came."""
        if self.peer is None:
            return
        for packet in self.peer.take():
            if not isinstance(packet, Publish):
                continue
            if packet.topic == ERROR:
                self._on_told(json.loads(packet.payloads()[0]))
                continue
            user = dict(packet.properties.user)
            ids = packet.packet_ids() if packet.qos else [0] * packet.count
            for packet_id, payload in zip(ids, packet.payloads(), strict=True):
                record = Got(
                    packet_id,
                    int(user["stream-partition"]),
                    int(user["stream-offset"]),
                    payload,
                    packet.dup,
                )
                assert payload == b"%d/%d" % (record.partition, record.offset)
                self._on_record(record)
                if record.dup and packet_id in self.former_ids:
                    self.former.append(record)
                elif packet_id:
                    self.former_ids.discard(packet_id)
                    self.unacked.append(record)

    def _on_told(self, said: dict) -> None:
        assert said["error"] == "OffsetGone", said
        partition, earliest = said["partition"], said["earliest"]
        if self.is_member:
            self.play.gaps.add((partition, earliest))
        else:
            assert earliest > self.expected[partition] or partition in self.loose
            self.expected[partition] = earliest
            self.loose.pop(partition, None)

    def _on_record(self, record: Got) -> None:
        if self.is_member:
            self.play.on_consumed(record)
            return
        if record.dup:
            return
        partition, offset = record.partition, record.offset
        expected = self.expected[partition]
        if expected < 0:  # it began at what was the earliest then
            assert offset in self.play.starts[partition]
        elif partition in self.loose:
            assert offset <= self.loose[partition], (record, self.loose)
            del self.loose[partition]
        else:
            assert offset == expected, (self.name, record, expected)
        self.expected[partition] = offset + 1

    def answer(self) -> None:
        """Some of what is owed, in any order; now and then, that it failed."""
        self.take()
        rng = self.play.rng
        if self.peer is None:
            return
        while self.former and rng.random() < 0.7:
            self._acknowledge(self.former.pop())
        if not self.unacked:
            return
        chosen = rng.sample(self.unacked, rng.randint(1, len(self.unacked)))
        if rng.random() < 0.3:
            chosen.sort()
        self.unacked = [one for one in self.unacked if one not in chosen]
        for one in chosen:
            self._acknowledge(one)

    def _acknowledge(self, one: Got) -> None:
        assert self.peer is not None
        fails = self.is_member and self.play.rng.random() < self.play.failing
        is_his = one.packet_id in self.peer.connection.session.outbound.window.unacked
        if self.is_member and is_his and not fails:  # else it was taken from him meanwhile
            self.play.on_acknowledged(one)
        acknowledge(self.peer, one, reason=0x80 if fails else 0)


class Play:
    def __init__(self, path: Path, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.partitions = rng.choice([1, 2, 5])
        self.failing = rng.choice([0.0, 0.1])
        self.world = Replays(
            path / "streams",
            partitions=self.partitions,
            stream={"partition_by": "round-robin", "segment_bytes": 4096},
            limits=ReplayLimits(
                buffered_bytes_max=rng.choice([5_000, 128 << 20]), files_max=rng.choice([1, 512])
            ),
        )
        self.starts: list[set[int]] = [{0} for _ in range(self.partitions)]
        self.acknowledged: set[tuple[int, int]] = set()
        self.in_this_life: set[tuple[int, int]] = set()
        self.gaps: set[tuple[int, int]] = set()
        self.next_put = 0
        self.put()
        self.readers = [
            Reading(self, f"r{n}", STREAM, rng.randint(0, 1)) for n in range(rng.randint(1, 3))
        ]
        self.readers += [Reading(self, f"m{n}", GROUP, 1) for n in range(rng.randint(1, 4))]

    def on_consumed(self, record: Got) -> None:
        assert (record.partition, record.offset) not in self.in_this_life, record

    def on_acknowledged(self, record: Got) -> None:
        place = record.partition, record.offset
        self.acknowledged.add(place)
        self.in_this_life.add(place)

    def put(self) -> None:
        stream = self.world.log.streams[NAME]
        for _ in range(self.rng.choice([1, 3, 30])):
            place, self.next_put = self.next_put, self.next_put + 1
            payload = b"%d/%d" % (place % self.partitions, place // self.partitions)
            self.world.writer.append(stream, "t", "device", [payload], self.world.now_us)
        self.world.flush_log()

    def trim(self) -> None:
        """Some of what the group has done, and readers may not have."""
        stream = self.world.log.streams[NAME]
        ends = []
        groups = self.world.replay.groups(NAME)
        for partition, end in enumerate(self.world.ends):
            done = groups[0].committed[partition] if groups else 0
            ends.append(min(end, done))
        if self.world.log.trim(NAME, Offsets(stream.epoch, tuple(ends))):
            for partition, starts in enumerate(self.starts):
                starts.add(stream.partitions[partition].catalog.start)

    def restart(self) -> None:
        self.world.settle()
        for one in self.readers:
            one.on_restart()
        self.world.restart()
        self.in_this_life.clear()

    def step(self) -> None:
        rng, world = self.rng, self.world
        kind = rng.random()
        one = rng.choice(self.readers)
        if kind < 0.2:
            self.put()
        elif kind < 0.55:
            one.answer()
        elif kind < 0.7:
            if one.peer is None:
                one.come()
            elif rng.random() < 0.5:
                one.go(is_polite=rng.random() < 0.5)
                if not one.is_kept:
                    one.is_subscribed = False
        elif kind < 0.74:
            one.leave()
        elif kind < 0.8:
            self.trim()
        elif kind < 0.83:
            self.restart()
        elif kind < 0.9:
            world.wait(rng.choice([0.01, 0.2, 3.0, 11.0]))
        elif kind < 0.95:
            world.holds_reads = rng.random() < 0.5
            world.settle()
        elif world.reads:
            world.read_once(rng.randrange(len(world.reads)))
        if rng.random() < 0.3:
            world.commit()
        for each in self.readers:
            each.take()

    def finish(self) -> None:
        world = self.world
        world.holds_reads = False
        self.failing = 0.0
        for one in self.readers:
            if one.peer is None:
                one.come()
        for _ in range(2_000):
            world.commit()
            world.wait(0.5)
            for one in self.readers:
                one.answer()
            if self._is_done():
                break
        else:
            raise AssertionError("it does not come to an end")
        ends = world.ends
        for one in self.readers:
            if not one.is_member:
                for partition, expected in one.expected.items():
                    assert partition in one.loose or expected in (-1, ends[partition])
        (group,) = world.replay.groups(NAME)
        assert group.lag == (0,) * self.partitions and group.committed == ends
        everything = {
            (partition, offset) for partition in range(self.partitions)
            for offset in range(ends[partition])
        }  # fmt: skip
        assert everything == self.acknowledged
        assert world.replay.context.read_ahead.bytes == 0
        for one in self.readers:
            assert one.peer is not None and not one.peer.is_closed
            one.peer.send(unsubscribe(V5, one.text), disconnect())
        world.wait(20_000)
        assert not world.replay.subscriptions and not world.replay.by_stream
        assert not len(world.replay.context.read_ahead)

    def _is_done(self) -> bool:
        """Whether everybody has acknowledged everything, and it was seen here."""
        if any(sum(group.lag) for group in self.world.replay.groups(NAME)):
            return False
        for reading in self.world.replay.subscriptions.values():
            for cursor in reading.cursors:
                if cursor.position != self.world.ends[cursor.partition]:
                    return False
        for one in self.readers:
            one.take()
        return not any(one.unacked for one in self.readers)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_and_consumers(tmp_path: Path, seed: int) -> None:
    play = Play(tmp_path, seed)
    for _ in range(150):
        play.step()
    play.finish()
    play.world.close()

"""Histories of records such as a broker writes, from a seed.

A history is valid: numbers are given once, a message is stored before it is delivered, an id
is opened before it is closed. Within that everything may happen, in runs and one by one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from sessions.journal import records
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow, WillRow

TOPICS = ("a", "a/b", "fleet/7/temperature", "ü/€", "x" * 5000, "t" * 65_535)
FILTERS = ("a/#", "+/b", "fleet/+/temperature", "$share/g/a/#", "f" * 65_535, "f" * 65_534 + "g")
STREAMS = ("telemetry", "a.b-c_1", "n" * 100)
OWNERS = ("$share/g/$stream/telemetry", "client-1", "o" * 65_535, "o" * 65_534 + "p", "ü/€")


class History:
    def __init__(self, seed: int, *, has_streams: bool = True) -> None:
        self.has_streams = has_streams
        self.rng = random.Random(seed)
        self.sid = 0
        self.mid = 0
        self.now = 1_000.0
        self.sessions: dict[int, SessionRow] = {}
        self.shares: dict[int, ShareRow] = {}
        self.n: dict[int, int] = {}
        self.waiting: dict[int, dict[int, int]] = {}  # sid: n: mid
        self.sent: dict[int, dict[int, tuple[int, int]]] = {}  # sid: n: mid, packet id
        self.releases: dict[int, list[int]] = {}
        self.received: dict[int, list[int]] = {}
        self.subscribed: dict[int, set[str]] = {}
        self.retained: dict[str, int] = {}
        self.streams: dict[str, StreamRow] = {}

    def groups(self, count: int) -> Iterator[tuple[bytes, float]]:
        for _ in range(count):
            self.now += self.rng.random()
            found: list[bytes] = []
            for _ in range(self.rng.randint(1, 12)):
                found += self.step()
            yield records.seal(found), self.now

    def step(self) -> list[bytes]:
        if len(self.sessions) < 2:
            return self.connect()
        steps = [
            (self.connect, 1), (self.describe, 2), (self.end, 1), (self.share, 1),
            (self.subscribe, 3), (self.unsubscribe, 1), (self.publish, 12), (self.send, 6),
            (self.finish, 8), (self.release, 3), (self.complete, 3), (self.receive, 3),
            (self.free, 3), (self.move, 1), (self.late, 1),
        ]  # fmt: skip
        if self.has_streams:
            steps += [(self.stream, 2), (self.unstream, 1), (self.take, 6), (self.untake, 2)]
        step = self.rng.choices([s for s, _ in steps], [w for _, w in steps])[0]
        return step()

    def connect(self) -> list[bytes]:
        self.sid += 1
        sid = self.sid
        self._new(sid)
        self.sessions[sid] = SessionRow(
            sid, f"client-{sid}", self.rng.choice([None, "user", "ü"]), 5, self.now, 4_294_967_295,
            True, 0.0, 0.0, None,
        )  # fmt: skip
        return [records.encode_session(self.sessions[sid])]

    def _new(self, sid: int) -> None:
        self.n[sid] = 0
        self.waiting[sid] = {}
        self.sent[sid] = {}
        self.releases[sid] = []
        self.received[sid] = []
        self.subscribed[sid] = set()

    def describe(self) -> list[bytes]:
        sid = self._session()
        is_online = self.rng.random() < 0.5
        will = WillRow("w/" * 100, b"\0gone\xff", 2, True, b"\x05\x18\0\0\0\x01")
        before = self.sessions[sid]
        self.sessions[sid] = SessionRow(
            sid, before.client_id, before.username, 4, before.created_at, self.rng.choice([0, 60]),
            is_online, 0.0 if is_online else self.rng.choice([self.now + 60, float("inf")]),
            0.0 if is_online else self.now + 1, self.rng.choice([None, will]),
        )  # fmt: skip
        return [records.encode_session(self.sessions[sid])]

    def end(self) -> list[bytes]:
        sid = self.rng.choice([*self.sessions, *self.shares])
        self.sessions.pop(sid, None)
        self.shares.pop(sid, None)
        return [records.encode_end(sid)]

    def share(self) -> list[bytes]:
        self.sid += 1
        self._new(self.sid)
        self.shares[self.sid] = ShareRow(self.sid, f"$share/g{self.sid}/a/#")
        return [records.encode_shared(self.shares[self.sid])]

    def subscribe(self) -> list[bytes]:
        sid = self._session()
        rng = self.rng
        filter = rng.choice(FILTERS)
        self.subscribed[sid].add(filter)
        row = SubscriptionRow(
            sid, filter, rng.randint(0, 2), rng.random() < 0.5, rng.random() < 0.5,
            rng.randint(0, 2), rng.choice([0, 1, 268_435_455]),
        )  # fmt: skip
        return [records.encode_subscribed(row)]

    def unsubscribe(self) -> list[bytes]:
        sid = self._session()
        if not self.subscribed[sid]:
            return []
        filter = self.rng.choice(sorted(self.subscribed[sid]))
        self.subscribed[sid].discard(filter)
        return [records.encode_unsubscribed(sid, filter)]

    def publish(self) -> list[bytes]:
        rng = self.rng
        count = rng.choice([1, 1, 2, 7, 8, 9, 40, 150])
        size = rng.choice([0, 1, 30])
        mid, self.mid = self.mid + 1, self.mid + count
        topic, qos, retain = rng.choice(TOPICS), rng.randint(1, 2), rng.random() < 0.2
        section = rng.choice([b"", b"\x02\x01\x01"])
        payloads = [rng.randbytes(size) for _ in range(count)]
        found = [
            records.encode_stored(
                mid, topic.encode(), qos, retain, section, b"publisher", self.now,
                rng.choice([-1, 0, 3600]), payloads,
            )
        ]  # fmt: skip
        everybody = [*self.sessions, *self.shares]
        for sid in rng.sample(everybody, rng.randint(0, min(3, len(everybody)))):
            # Not always the whole run: some were dropped, some are beyond the window.
            start = rng.randrange(count)
            length = rng.randint(1, count - start)
            cut = rng.choice([0, 0, length, rng.randint(0, length)])
            found += self._deliver(sid, mid + start, cut, is_sent=True, size=size)
            found += self._deliver(sid, mid + start + cut, length - cut, is_sent=False, size=size)
        if retain:
            last = self.mid
            found.append(records.encode_retained(last, self.retained.get(topic, 0)))
            self.retained[topic] = last
        elif topic in self.retained and rng.random() < 0.3:
            found.append(records.encode_retained(0, self.retained.pop(topic)))
        return found

    def _deliver(self, sid: int, mid: int, count: int, *, is_sent: bool, size: int) -> list[bytes]:
        if not count:
            return []
        rng = self.rng
        n = self.n[sid] + rng.choice([1, 1, 3])
        self.n[sid] = n + count - 1
        packet_ids = [self._packet_id(sid) for _ in range(count)] if is_sent else []
        for at in range(count):
            if is_sent:
                self.sent[sid][n + at] = (mid + at, packet_ids[at])
            else:
                self.waiting[sid][n + at] = mid + at
        return [
            records.encode_delivered(
                sid, n, mid, count, size + 20, rng.randint(1, 2), rng.random() < 0.1,
                rng.choice([(), (7,), (1, 268_435_455)]), rng.choice(["", "$share/g/a/#"]),
                packet_ids,
            )
        ]  # fmt: skip

    def _packet_id(self, sid: int) -> int:
        return self.rng.randint(1, 65_535)

    def send(self) -> list[bytes]:
        sid = self._any()
        some = self._some(list(self.waiting[sid]))
        pairs = []
        for n in some:
            packet_id = self._packet_id(sid)
            self.sent[sid][n] = (self.waiting[sid].pop(n), packet_id)
            pairs.append((n, packet_id))
        return [records.encode_sent(sid, pairs)] if pairs else []

    def finish(self) -> list[bytes]:
        sid = self._any()
        found = {n: mid for n, (mid, _) in self.sent[sid].items()}
        if self.rng.random() < 0.3:  # expired, or dropped from a full queue
            found |= self.waiting[sid]
        if self.rng.random() < 0.2:  # all there is
            some = sorted(found)
        else:
            some = self._some(sorted(found))
        for n in some:
            self.sent[sid].pop(n, None)
            self.waiting[sid].pop(n, None)
        pairs = [(n, found[n]) for n in some]
        return [records.encode_done(sid, records.runs_of(pairs))] if pairs else []

    def release(self) -> list[bytes]:
        sid = self._session()
        triples = []
        for n in self._some(list(self.sent[sid])):
            mid, packet_id = self.sent[sid].pop(n)
            if packet_id in self.releases[sid]:
                continue
            self.releases[sid].append(packet_id)
            triples.append((n, mid, packet_id))
        return [records.encode_released(sid, triples)] if triples else []

    def complete(self) -> list[bytes]:
        return self._close(self._session(), self.releases, records.COMPLETED)

    def free(self) -> list[bytes]:
        return self._close(self._session(), self.received, records.FREED)

    def _close(self, sid: int, spaces: dict[int, list[int]], kind: int) -> list[bytes]:
        some = self._some(spaces[sid])
        for packet_id in some:
            spaces[sid].remove(packet_id)
        return [records.encode_ids(kind, sid, some)] if some else []

    def receive(self) -> list[bytes]:
        sid = self._session()
        new = {self.rng.randint(1, 65_535) for _ in range(self.rng.choice([1, 3, 20]))}
        ids = [one for one in new if one not in self.received[sid]]
        self.received[sid] += ids
        return [records.encode_ids(records.RECEIVED, sid, ids)] if ids else []

    def move(self) -> list[bytes]:
        """What waited with a group goes to a member."""
        if not self.shares:
            return []
        share = self.rng.choice(list(self.shares))
        if not self.waiting[share]:
            return []
        n, mid = next(iter(self.waiting[share].items()))
        del self.waiting[share][n]
        found = [records.encode_done(share, [(n, mid, 1)])]
        return found + self._deliver(self._session(), mid, 1, is_sent=True, size=5)

    def late(self) -> list[bytes]:
        """What never was, or is over, is finished again."""
        sid = self._session()
        n = self.n[sid] + self.rng.randint(0, 2)
        self.n[sid] = n + 3
        done = records.encode_done(sid, [(n + 1, self.mid + 1, 2)])
        return [done, records.encode_sent(sid, [(n + 2, 9)])]

    def stream(self) -> list[bytes]:
        """A new one, or one as it is now."""
        name = self.rng.choice(STREAMS)
        before = self.streams.get(name)
        epoch = before.epoch if before is not None else f"epoch-{self.rng.random()}"
        created_at = before.created_at if before is not None else self.now
        settings = f'{{"name": "{name}", "retain_s": {self.rng.randint(0, 9)}}}'
        row = StreamRow(name, epoch, self.rng.choice(FILTERS), settings, created_at)
        self.streams[name] = row
        return [records.encode_stream(row)]

    def unstream(self) -> list[bytes]:
        """Gone, and often made again at once."""
        name = self.rng.choice(STREAMS)
        if self.streams.pop(name, None) is None:
            return []
        found = [records.encode_stream_gone(name)]
        return found + self.stream() if self.rng.random() < 0.5 else found

    def take(self) -> list[bytes]:
        rng = self.rng
        name = rng.choice(STREAMS)
        row = self.streams.get(name)
        epoch = row.epoch if row is not None else "late"
        offsets = [(partition, rng.randrange(1 << 40)) for partition in rng.sample(range(256), 3)]
        if rng.random() < 0.5:
            offsets = [(rng.randrange(4), rng.randrange(9))]
        return [records.encode_cursor(rng.choice(OWNERS), name, epoch, offsets)]

    def untake(self) -> list[bytes]:
        return [
            records.encode_cursors_gone(self.rng.choice(OWNERS), self.rng.choice(["", *STREAMS]))
        ]

    def _session(self) -> int:
        return self.rng.choice(list(self.sessions))

    def _any(self) -> int:
        return self.rng.choice([*self.sessions, *self.shares])

    def _some(self, found: list[int]) -> list[int]:
        if not found:
            return []
        start = self.rng.randrange(len(found))
        return found[start : start + self.rng.choice([1, 2, 10, 100])]

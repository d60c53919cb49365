"""A whole broker with a store, its clients, the clock, and crashes: one script, one play.

    play(script)            raises what the script brought out
    World(first).step(one)  a step at a time

The first step is the setting: what the broker's limits are, who is there, how soon the store
commits. Each other step does one thing: a client's packet, mutated bytes, time, the store, a
crash. After each the broker is at rest and the model is asked.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any, Final

from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.restore import items_of, restore
from mqtt_broker.topics.shared import STRATEGIES
from sessions.journal.journal import Journal, StoredQueue
from sessions.messages.work import SHARE_UNITS, Work
from tests.fuzz.broker import mutation, strangers, values, wire
from tests.fuzz.broker.actor import Actor
from tests.fuzz.broker.bridge import Bridge
from tests.fuzz.broker.decisions import Decisions, Script
from tests.fuzz.broker.disk import Disk, MemoryDisk, SqliteDisk
from tests.fuzz.broker.facts import Broken, Ignored, Kept
from tests.fuzz.broker.judge import SHUTTING_DOWN, Judge
from tests.fuzz.broker.links import Link
from tests.fuzz.broker.restart import Restart

START: Final = 1_000_000.0
COMMITS_MAX: Final = 400  # until all has come to its end: a QoS 2 message takes three commits
TICK_S: Final = 0.001  # between steps, so that no two sessions are of one moment
ROUNDS_MAX: Final = 2_000
DEADLINES_MAX: Final = 400
BEAT_S: Final = 5.0  # how old the last sign of life may be at a crash
NARROW_MAX: Final = 0x7FFF_FFFF


class World:
    def __init__(
        self, first: bytes, *, ignored: frozenset[str] = frozenset(), on_disk: bool = False
    ) -> None:
        c = Decisions(first)
        self.ignored = ignored
        self.now = START
        self.model = Judge(ignored)
        self.model.now = self.now
        self.disk: Disk = SqliteDisk() if on_disk else MemoryDisk()
        self.links: list[Link] = []
        self.submitted: deque[tuple[int, bytes, float]] = deque()
        self.is_failing = False
        self.trace: list[str] = []
        self.serial = 0  # of mutated publications
        self._links = 0
        self._beat = START
        self.commits_at_once = c.below(4) != 3
        self.settings = Settings(
            sys_interval_s=0,
            packet_bytes_max=400_000,
            receive_maximum=c.pick((20, 5, 65_535)),
            inflight_max=c.pick((65_535, 1, 4)),
            topic_alias_maximum=c.pick((10, 0, 65_535)),
            shared_strategy=c.pick(tuple(STRATEGIES)),
            retained_sweep_s=c.pick((1 << 34, 7)),
            client_events=c.chance(0.1),
        )
        versions = [c.pick((5, 5, 5, 4, 3)) for _ in range(4)]
        ids = [b"c%d" % number for number in range(4)]
        ids[3] = c.pick((b"c3", "é漢😀".encode(), b"i" * 65_535, b"x/+#"))
        # A share of work, of which most packets take several: no decision, so that it is at random
        # for scripts that were kept as well.
        self.share = random.Random(first).choice([SHARE_UNITS, 1, 20, 300])
        self.subject = values.Subject(c)
        # Each play does more of some things, and nothing of others.
        self.kinds = [
            (kind, weight * c.pick((1, 1, 3) if kind in values.STEPS_ALWAYS else (1, 0, 0, 3)))
            for kind, weight in values.STEP_KINDS
        ]
        self._live()
        count = c.pick((4, 3, 3, 2))
        self.actors = [Actor(self, ids[n], versions[n]) for n in range(count)]
        for actor in self.actors:
            actor.is_reading = c.below(2) == 0
            actor.life = c.pick(("any", "any", "fleeting", "stored"))
            actor.resubscribes = bool(c.below(2)) or actor.life == "fleeting"
        if "guests" not in ignored and c.chance(0.25):
            topics = self.subject.topics
            self.model.bridged = (
                topics[0],
                next((one for one in topics if one != topics[0]), b"bridged"),
            )
            self._build_bridge()

    def wide(self, number: int) -> int:
        """As it is, unless numbers above 2^31 are switched off."""
        return number if "wide" not in self.ignored else min(number, NARROW_MAX)

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now - START:.3f} {text}")

    # The broker's life.

    def _live(self) -> None:
        found = self.disk.snapshot()
        self.journal = Journal(
            lambda number, blob: self.submitted.append((number, blob, self.now)),
            number=found.last_number,
            last_message=found.last_mid,
            last_session=found.last_sid,
        )
        self.broker = Broker(
            self.settings,
            now=self.now,
            rng=random.Random(1),
            journal=self.journal,
            work=Work(self.share, 2 * self.share),
        )
        self._build_bridge()
        self.disk.start(
            lambda number: self.broker.on_committed(number, self.now),
            lambda number: self.broker.on_folded(number, self.now),
        )
        restore(self.broker, found, self.now)

    def _build_bridge(self) -> None:
        if self.model.bridged is not None:
            # Clients cannot subscribe to it, so only the router gets it.
            self.broker.state.router.attach_log(Bridge(self.broker, *self.model.bridged))

    def crash(self, downtime_s: float) -> None:
        """kill -9, and a new process later."""
        self.say(f"kill -9, {downtime_s} s")
        alive_at = min(self._beat, self.now)
        restart = Restart(self.model, alive_at)
        self.model.now = self.now
        for link in self.links:
            link.is_lost = True
            link.actor.lost()
        self.links.clear()
        self.submitted.clear()
        self.disk = self.disk.crash(alive_at)
        self.now = self.model.now = self.now + downtime_s
        restart = Restart(self.model, alive_at)
        restart.forget()
        self._live()
        self._beat = self.now
        self._finish_work()
        restart.adopt(self.broker)

    def stop(self, downtime_s: float) -> None:
        """SIGTERM: everybody is told, everything is stored."""
        self.say(f"SIGTERM, {downtime_s} s")
        self.is_failing = False
        self.commit()
        for link in self.links:
            link.door.may_close |= {SHUTTING_DOWN, 0x88}
        self.model.stop()
        self.broker.stop(self.now)
        for link in list(self.links):  # it is not known who was told first
            self._read(link)
        self.rest()
        Restart(self.model, self.now).adopt_retained(self.broker)
        self.commit()
        self.model.check(self.journal.is_settled, "liveness", "the journal is not settled")
        self.crash(downtime_s)

    # Links.

    def open(self, actor: Actor) -> Link:
        self._links += 1
        link = Link(self, actor, self._links)
        self.links.append(link)
        return link

    def send(self, link: Link, data: bytes) -> None:
        """Valid packets in one read."""
        packets, rest = wire.cut(data)
        assert not rest
        if link.is_closed or link.is_lost:
            return
        self.say(f"{link.door.number} > {data[:200].hex()}{'...' if len(data) > 200 else ''}")
        version = link.door.version
        parsed = []
        for raw in packets:
            parsed.append(wire.read(version, raw, from_server=False))
            version = parsed[-1].version or version
        is_new = parsed[0].kind == wire.CONNECT
        if is_new:
            self._expect_connect(link, parsed[0])
        self._receive(link, data)
        for packet in parsed:
            if not (is_new and link.is_closed):
                self._hear(link, packet)
        self._note_closed()

    def _receive(self, link: Link, data: bytes) -> None:
        """Hand it over, and serve turns until all of it is acted upon."""
        dispatch.receive(link.connection, data, self.now)
        while self.broker.has_work:
            self.broker.work(self.now)

    def _hear(self, link: Link, packet: wire.Packet) -> None:
        """The broker took a packet that is right."""
        door = link.door
        if packet.kind != wire.CONNECT:
            if door.waits:
                door.kept.append(Kept(packet))
            else:
                self.model.hear(door, packet)
            return
        if self.model.arrive(door, packet):
            self._finish_work()
            if not link.is_welcome:
                self.model.wait(door)
                return
        self.model.admit(door)

    def _admit(self) -> None:
        """Those whose CONNACK waited, and left: what they sent behind CONNECT acts now."""
        for door in list(self.model.arriving.values()):
            link = next(link for link in self.links if link.door is door)
            if not link.is_welcome or not door.waits:
                continue
            self.model.admit(door)
            if door.tainted:
                self.model.taint(door)
            kept, door.kept = door.kept, []
            for one in kept:
                if one.must_close:
                    text = f"connection {door.number} stays, whatever it sent behind CONNECT"
                    self.model.check(link.is_closed, "close", text)
                goes = one.packet is not None and one.packet.kind == wire.DISCONNECT
                if one.packet is None or one.must_close:
                    break
                if goes or not (one.may_close and link.is_closed):
                    self.model.hear(door, one.packet)
            if link.is_closed and door.is_open:  # before the next one comes in
                self._note_end(link)

    def send_piece(self, link: Link, raw: bytes) -> None:
        """What may be no packet at all. Whole packets one by one: each is judged alone."""
        door = link.door
        door.tainted = True
        if door.state is not None:
            self.model.taint(door)
        self.say(f"{door.number} > {raw[:200].hex()}{'...' if len(raw) > 200 else ''} (mutated)")
        packets, rest = wire.cut(raw)
        for one in (*packets, rest):
            if door.kept and door.kept[-1].may_close:
                return  # whether it was taken is only seen when nothing follows
            if one and not (link.is_closed or link.is_lost):
                self._send_doubtful(link, one, is_whole=one is not rest)
                self.rest()
        if rest and not link.is_lost:  # whatever follows would be read as the rest of it
            self.lose(link)

    def _send_doubtful(self, link: Link, raw: bytes, *, is_whole: bool) -> None:
        door = link.door
        verdict = mutation.judge(door, raw, self.settings, is_whole=is_whole)
        self._doubt(link, verdict)
        if door.waits:
            self._receive(link, raw)
            door.kept.append(Kept(verdict.packet, verdict.must_close, verdict.may_close))
            return
        if verdict.packet is not None and verdict.packet.kind == wire.CONNECT:
            door.version = verdict.packet.version
            self._expect_connect(link, verdict.packet)
            door.refusals |= {0x85, 0x87, 0x90, 0x99, 0x9B}
        self._receive(link, raw)
        refused = link.is_closed
        if verdict.must_close:
            self.model.check(
                link.is_closed, "close", f"{raw[:40].hex()}: {verdict.why}, and it stays connected"
            )
            strangers.check_told(self, link, verdict)
        elif link.is_closed and not verdict.may_close and verdict.packet is not None:
            kind = verdict.packet.kind
            right = kind in (wire.DISCONNECT, wire.CONNECT)
            self.model.check(right, "close", f"{raw[:60].hex()} is right, and ends it")
        if verdict.packet is None:
            return
        if not refused or verdict.packet.kind == wire.DISCONNECT:
            self._hear(link, verdict.packet)
            if door.state is not None:
                self.model.taint(door)
        self._note_closed()

    def _doubt(self, link: Link, verdict: mutation.Verdict) -> None:
        link.door.refusals = verdict.reasons
        if not link.door.version:
            link.door.refusals |= {0x84, 1, 2, 5}

    def _expect_connect(self, link: Link, packet: wire.Packet) -> None:
        door = link.door
        if wire.has(packet.props, wire.METHOD):
            door.refusals = frozenset({0x8C})

    def lose(self, link: Link) -> None:
        """The network is gone."""
        if link.is_lost:
            return
        self.say(f"{link.door.number} is lost")
        link.is_lost = link.is_closed = True
        self.model.close(link.door)
        link.connection.lost(self.now)
        if link.actor.link is link:
            link.actor.lost()
        self.links.remove(link)

    def _note_closed(self) -> None:
        """Links that the broker has closed: the model's connections end before it reads on."""
        ended = [link for link in self.links if link.is_closed and link.door.is_open]
        for link in sorted(ended, key=self._silent_at):  # one tick may end several
            self._note_end(link)

    def _silent_at(self, link: Link) -> float:
        """When its keep alive was over, if that may be why it ended."""
        connect = link.door.connect
        due = 0.0 if connect is None else link.door.last_heard + connect.keep_alive * 1.5
        return due if connect is not None and connect.keep_alive and due <= self.now else 0.0

    def _note_end(self, link: Link) -> None:
        door = link.door
        if door.waits:
            door.waits_until = link.opened_at + self.settings.connect_timeout_s
            right = bool(link.unread) or SHUTTING_DOWN in door.may_close
            self.model.check(right, "close", f"connection {door.number}: closed, no CONNACK")
        if door.has_connack and not door.tainted:
            keeps = door.connect.keep_alive if door.connect is not None else 0
            is_silent = keeps and self.now >= door.last_heard + keeps * 1.5 - 0.01
            right = bool(is_silent or door.may_close or door.refusals)
            self.model.check(right, "close", f"connection {door.number} is closed for nothing")
        door.is_ended = True
        self.model.close(door)

    def _finish_work(self) -> None:
        """Serve turns until nothing of what clients sent is left."""
        self.broker.flush(self.now)
        while self.broker.has_more:
            self.broker.work(self.now)
            self.broker.flush(self.now)

    def rest(self) -> None:
        """Let the broker write and the clients answer, until nobody has anything to say."""
        for _ in range(ROUNDS_MAX):
            self._finish_work()
            self._admit()
            self._note_closed()
            is_quiet = True
            for link in list(self.links):
                if link.unread:
                    is_quiet = False
                    self._read(link)
                if link.is_closed and not link.is_lost:
                    is_quiet = False
                    self._on_closed(link)
            for actor in self.actors:
                if actor.late and actor.is_reading and actor.link is not None:
                    is_quiet = False
                    actor.catch_up()
            if is_quiet:
                self._check_doors()
                self.model.check_live()
                return
        raise Broken("liveness", "the broker and its clients never come to rest")

    def _check_doors(self) -> None:
        """Who was taken over is closed, who came in was told so, and nobody waits for too long."""
        for link in self.links:
            door = link.door
            self.model.check(door.is_open, "close", f"connection {door.number} should be closed")
            if door.connect is None or door.has_connack:
                continue
            self.model.check(door.waits, "answer", f"connection {door.number} gets no CONNACK")
            right = self.now < link.opened_at + self.settings.connect_timeout_s + TICK_S
            self.model.check(right, "liveness", f"connection {door.number} waits for CONNACK")

    def _read(self, link: Link) -> None:
        data = bytes(link.unread)
        link.unread.clear()
        packets, rest = wire.cut(data)
        if rest:
            raise Broken("answer", f"the broker wrote {rest[:40].hex()}, which is no packet")
        for raw in packets:
            packet = self.model.told(link.door, raw)
            shown = f"{raw[:60].hex()}{'...' if len(raw) > 60 else ''}"
            self.say(f"{link.door.number} < {shown}")
            if link.actor.link is link:
                link.actor.told(packet)

    def _on_closed(self, link: Link) -> None:
        """The broker closed it: whether it may have, was asked of what it said."""
        door = link.door
        link.is_lost = True
        self.say(f"{door.number} is closed")
        if door.is_ended and door.has_connack and not door.said_goodbye and not door.tainted:
            right = door.version < wire.V5 or 0 in door.may_close or door.must_close
            self.model.check(right, "close", f"connection {door.number} is closed without a word")
        link.connection.lost(self.now)
        if link.actor.link is link:
            link.actor.lost()
        self.links.remove(link)

    # Time and the store.

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(DEADLINES_MAX):
            deadline = self.broker.timers.next()
            if deadline > end:
                break
            self._at(max(self.now, deadline))
        self._at(end)

    def _at(self, now: float) -> None:
        self.now = self.model.now = now
        if now - self._beat >= BEAT_S:
            self._beat = now
        while self.broker.tick(now) <= now:  # a share of them at a time
            pass
        self.model.tick()
        self.rest()

    def pack(self) -> None:
        self.journal.flush(self.now)

    def commit(self, count: int = 1 << 30) -> None:
        """Everything that was recorded, or the next groups that were packed."""
        if count == 1 << 30:
            self.pack()
        if self.is_failing:
            return
        groups = [self.submitted.popleft() for _ in range(min(count, len(self.submitted)))]
        if groups:
            # What those bring that are let in now is acted upon at once, each in its turn: that is
            # how the model hears it.
            work = self.broker.runtime.work
            work.share = SHARE_UNITS
            self.disk.commit(groups)
            work.share = self.share
            self._beat = self.now
        self.rest()
        if not self.submitted and self.journal.is_settled:
            self.model.settle()
            waiting = [door.number for door in self.model.arriving.values()]
            self.model.check(not waiting, "liveness", f"connections {waiting} wait for nothing")

    def fold(self) -> None:
        if not self.is_failing:
            self.disk.fold()

    def page(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self.journal.pages_wanted or self.is_failing:
                return
            owner = self.journal.pages_wanted.pop()
            self.disk.page(owner, 3, lambda page, o=owner: self._on_page(o, page))
            self.rest()

    def _on_page(self, owner: StoredQueue, page: Any) -> None:
        owner.on_page(items_of(self.broker, page), self.now)

    def evict(self) -> None:
        """Memory is short: what the tables have of queues is left to them."""
        for session in self.broker.sessions:
            session.outbound.unload(self.journal.folded, 0)
        for group in self.broker.subscriptions.groups.values():
            group.unload(self.journal.folded, 0)

    def fail(self, is_failing: bool) -> None:
        self.say("the store fails" if is_failing else "the store works again")
        self.is_failing = is_failing
        self.broker.on_store_state("disk full" if is_failing else "")

    # Steps.

    def step(self, data: bytes) -> None:
        c = Decisions(data)
        self._at(self.now + TICK_S)
        kind = c.weigh(self.kinds)
        actor = c.pick(self.actors)
        if kind in ("publish", "subscribe", "unsubscribe") and actor.link is None:
            actor.connect(c)
            self.rest()
        if kind in ("connect", "publish", "subscribe", "unsubscribe", "disconnect", "toggle"):
            self.say(f"{kind} {actor.client[:8]!r}")
            getattr(actor, kind)(c)
        elif kind == "lose":
            if actor.link is not None:
                self.lose(actor.link)
        elif kind == "mutate":
            mutation.attack(self, actor, c)
        elif kind == "wait":
            seconds = values.seconds(c)
            self.say(f"wait {seconds}")
            self.wait(seconds)
        elif kind == "crash":
            self.crash(values.seconds(c))
        elif kind == "stop":
            self.stop(values.seconds(c))
        else:
            self._store_step(kind, c)
        self.rest()
        if self.commits_at_once and c.chance(0.5):
            self.commit()
        self.page()
        if "guests" not in self.ignored:
            actor.repeat(c)
            strangers.visit(self, c)
            self.rest()

    def _store_step(self, kind: str, c: Decisions) -> None:
        self.say(kind)
        if kind == "pack":
            self.pack()
        elif kind == "commit":
            self.commit()
        elif kind == "commit one":
            self.commit(1)
        elif kind == "fold":
            self.commit()
            self.fold()
            self.evict()
        else:
            self.fail(not self.is_failing)

    # The end.

    def finish(self) -> None:
        """The store works, everybody comes and reads: nobody may be left waiting."""
        self.say("finish")
        if self.is_failing:
            self.fail(False)
        for actor in self.actors:
            actor.is_reading = True
            actor.catch_up()
        self._come_to_rest()
        for link in list(self.links):
            self.model.check_answered(link.door)
        for actor in self.actors:
            self._return(actor)
            self._come_to_rest()
        self._come_to_rest()
        for link in list(self.links):
            self.model.check_answered(link.door)
        for actor in self.actors:
            right = actor.is_in and not (actor.unacked or actor.released or actor.asked)
            tainted = actor.link is not None and actor.link.door.tainted
            self.model.check(right or tainted, "liveness", f"{actor.client[:20]!r} is not answered")
        self.model.check_kept()
        self.model.check(self.journal.is_settled, "liveness", "the journal is not settled")
        self.crash(0.0)  # on disk there is now what there is in memory
        self.rest()

    def _return(self, actor: Actor) -> None:
        """With nothing that stands in the way of what it is owed."""
        packet = wire.Packet(wire.CONNECT, version=actor.version, client=actor.client)
        if actor.version == wire.V5:
            packet.props = [(wire.SESSION_EXPIRY, 0xFFFF_FFFF)]
        self._at(self.now + TICK_S)
        actor.open(wire.connect(packet))
        self.rest()

    def _come_to_rest(self) -> None:
        for _ in range(COMMITS_MAX):
            self.rest()
            self.commit()
            self.fold()
            self.page()
            if self.journal.is_settled and not self.journal.pages_wanted:
                return
        raise Broken("liveness", "the journal never settles")

    def close(self) -> None:
        self.disk.close()


def play(script: Script, *, ignored: frozenset[str] = frozenset(), on_disk: bool = False) -> World:
    world = World(script[0] if script else b"", ignored=ignored, on_disk=on_disk)
    try:
        for step in script[1:]:
            world.step(step)
        world.finish()
    except Ignored:
        pass
    except struct.error:
        if "wide" not in ignored:
            raise
    except Exception as error:
        error.add_note("\n".join(world.trace[-60:]))
        raise
    finally:
        world.close()
    return world

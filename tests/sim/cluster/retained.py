"""A world of retained messages: publishers of the same topics, and watchers that subscribe anew.

Publishers are on all numbers, and each topic has several of them. A watcher subscribes, looks at
what it is given until then and from then on, and subscribes to something else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Final

from mqtt_broker.cluster import tables
from mqtt_broker.cluster.host import Content, Host
from mqtt_broker.cluster.retained_rows import NEVER, RetainedMessage
from mqtt_broker.cluster.tables import GROUPS, NODES, OUTBOX, RETAINED
from mqtt_broker.topics.names import matches
from tests.sim.cluster import core
from tests.sim.cluster.bus_world import BusWorld
from tests.sim.cluster.core import Core, Message
from tests.sim.cluster.message_clients import Client
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process
from tests.sim.cluster.retained_core import LIMITS, RetainedCore

KEYS: Final = {**tables.KEYS, **core.KEYS}
TOPICS: Final = ("a/1", "a/2", "a/3", "b/1", "b/2", "c/1", "c/2", "c/3")
SCRATCH: Final = "x/"  # topics that have few messages, of which many are removed
RACE: Final = "y/"  # topics that are published and subscribed to at once
RACES: Final = 6
RACE_S: Final = 0.03
FILTERS_ASKED: Final = ("a/1", "a/+", "+/1", "b/#", "#", "c/2", "c/+", "b/1")
EXPIRIES_S: Final = (0, 0, 0, 5, 20)
SLACK_S: Final = 2.5  # clocks that differ in pace, and the step of the database's clock


@dataclass(slots=True)
class Published:
    """A message, what it is, and when it was sent first and acknowledged."""

    message: Message
    sent_at: float
    is_retained: bool
    is_removal: bool
    expiry_s: int
    acknowledged_at: float = 0.0

    def is_before(self, other: Published) -> bool:
        """Tell whether it is certainly older than another."""
        if self.message.publisher == other.message.publisher:
            return self.message.value < other.message.value
        return 0 < self.acknowledged_at < other.sent_at

    def acknowledge(self, now: float) -> None:
        self.acknowledged_at = self.acknowledged_at or now


class Publisher(Client):
    """Sends 1, 2, 3 and so on, and on a new connection what is not acknowledged again."""

    world: RetainedWorld

    def __init__(self, world: RetainedWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.sent: list[Published] = []
        self.goal = 0
        rng = world.rng
        self._topics = rng.sample(TOPICS, rng.randint(1, 4))
        self._qos = rng.choice((1, 2))
        self._core: Core | None = None  # that it is connected to
        self._connections = 0
        self._sent_here = 0  # the last that it has sent on this one
        self._rush: list[str] = []  # topics on which others publish just now

    @property
    def unacknowledged(self) -> list[Published]:
        return [one for one in self.sent if not one.acknowledged_at]

    def ask(self, content: Core) -> None:
        rng = self.world.rng
        while len(self.sent) < self.goal and len(self.unacknowledged) < (1, 6)[self._qos - 1]:
            message = Message(self.name, len(self.sent) + 1, self._topic(), self._qos)
            is_scratch, is_race = message.topic.startswith(SCRATCH), message.topic.startswith(RACE)
            one = Published(
                message, self.world.events.now, is_scratch or is_race or rng.random() < 0.9,
                not is_race and rng.random() < (0.6 if is_scratch else 0.25),
                0 if is_race else rng.choice(EXPIRIES_S),
            )  # fmt: skip
            self.sent.append(one)
        if content is not self._core:
            self._core, self._sent_here = content, 0
            self._connections += 1
        for one in self.unacknowledged:
            if one.message.value > self._sent_here:
                self._sent_here = one.message.value
                on_ack = partial(self._on_ack, one, self._connections)
                content.publish(one.message, self.answered(on_ack))

    def _topic(self) -> str:
        rng = self.world.rng
        if self._rush:
            return self._rush.pop()
        return f"{SCRATCH}{rng.randrange(100)}" if rng.random() < 0.2 else rng.choice(self._topics)

    def rush(self, topics: list[str]) -> None:
        """Publish at once, while others do."""
        self._rush = list(topics)
        self.goal += len(topics)
        self.retry_soon(0.0)

    def _on_ack(self, one: Published, connection: int) -> None:
        """Take an answer of this connection: those of earlier ones come to nobody.

        So what is acknowledged at QoS 1 is not published once more by a copy behind it.
        """
        if connection != self._connections:
            return
        is_first = not one.acknowledged_at
        one.acknowledge(self.world.events.now)
        if is_first and not self.unacknowledged:
            self.retry_soon(0.02)


class Watcher(Client):
    """A stored session with one filter at a time, whose client subscribes on each connection."""

    world: RetainedWorld

    def __init__(self, world: RetainedWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.text = world.rng.choice(FILTERS_ASKED)
        self._core: RetainedCore | None = None  # that it is connected to
        self._asked = 0  # SUBSCRIBEs
        self._asked_at = 0.0
        self.has_begun = False
        self._was = ""  # the filter before
        self._given: dict[str, list[tuple[str, Published]]] = {}  # by topic, since SUBSCRIBE

    def renew(self) -> None:
        """Subscribe to something else."""
        if self.has_begun or self._core is None:
            self._was, self.text = self.text, self.world.rng.choice(FILTERS_ASKED)
            self._core = None
            self.retry_soon(0.001)

    def race(self, text: str) -> None:
        """Subscribe to this now."""
        self._was, self.text = self.text, text
        self._core = None
        self.retry_soon(0.0)

    def has(self, topic: str) -> bool:
        """Tell whether it was given a message of a topic."""
        return topic in self._given

    def ask(self, content: Core) -> None:
        assert isinstance(content, RetainedCore)
        if content is self._core:
            return
        self._core = content
        self._asked += 1
        self._asked_at = self.world.events.now
        self.has_begun = False
        self._given = {}
        if self._was and self._was != self.text:
            content.unsubscribe(self.name, self._was, lambda: None)
        content.watch(self, self.text, self._asked, lambda: None)

    # What it is given.

    def on_live(self, core: RetainedCore, message: Message) -> None:
        if core is self._core:
            self._give(self.world.published(message), "live")

    def on_retained(self, core: RetainedCore, asked: int, message: Message) -> None:
        if core is not self._core or asked != self._asked:
            return
        one = self.world.published(message)
        if one.expiry_s:
            late = self.world.database.clock() - self.world.expiries[message.key]
            check("expired", late < SLACK_S, f"{message.fields()} expired {late:.1f} s ago")
        self._give(one, "retained")

    def _give(self, one: Published, how: str) -> None:
        """Live messages of one publisher are in their order, retained ones in that of all."""
        topic = one.message.topic
        given = self._given.setdefault(topic, [])
        for earlier, before in given:
            is_one = one.message.publisher == before.message.publisher
            is_state = one.is_retained and before.is_retained and "retained" in (how, earlier)
            is_ordered = is_state or (is_one and how == earlier == "live")
            text = f"{how} {one.message.fields()} behind {earlier} {before.message.fields()}"
            check("order", not (is_ordered and one.is_before(before)), f"{self.name} has {text}")
        given.append((how, one))

    def on_begun(self, core: RetainedCore, asked: int, without: set[str]) -> None:
        if core is not self._core or asked != self._asked:
            return
        self.has_begun = True
        if self.world.is_lossless:
            for topic in TOPICS:
                if matches(self.text, topic) and topic not in without:
                    self._check_begun(topic)

    def _check_begun(self, topic: str) -> None:
        """It has what was acknowledged before its SUBSCRIBE, or what is newer."""
        given = self._given.get(topic, [])
        candidates = [one for _, one in given]
        if all(how == "live" for how, _ in given):
            candidates += self.world.ends_of(topic)
        for due in self.world.history(topic):
            if not 0 < due.acknowledged_at < self._asked_at:
                continue
            is_there = any(not one.is_before(due) for one in candidates)
            text = f"{self.name} has not {due.message.fields()} of {due.sent_at:.3f}"
            check("retained", is_there, f"{text}, asked at {self._asked_at:.3f}")

    def check_rest(self, rows: dict[str, RetainedMessage]) -> None:
        """At rest it has every message that is retained now, live or as a retained one."""
        check("rest", self.has_begun, f"{self.name} waits for retained messages")
        for topic, row in rows.items():
            if matches(self.text, topic) and row.expires_at == NEVER:
                message = Message(*json.loads(row.blob))
                given = [one.message.key for _, one in self._given.get(topic, [])]
                check("missed", message.key in given, f"{self.name} has not {message.fields()}")


class RetainedWorld(BusWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, KEYS)
        self.cut_chance /= 4  # these hosts have more transactions than others
        self.expiries: dict[tuple[str, int], int] = {}  # the latest time of each message
        numbers = list(self.processes)
        self.publishers = [
            Publisher(self, f"p{index}", self.rng.choice(numbers)) for index in range(4)
        ]
        self.watchers = [Watcher(self, f"w{index}", self.rng.choice(numbers)) for index in range(4)]
        self._churn()

    def make_content(self, process: Process, number: int) -> Content:
        return WatchedCore(self, process, number)

    @property
    def is_lossless(self) -> bool:
        return self.database.is_synchronous

    # What is known of messages.

    def published(self, message: Message) -> Published:
        sender = next(one for one in self.publishers if one.name == message.publisher)
        return sender.sent[message.value - 1]

    def history(self, topic: str) -> list[Published]:
        """Return all that was published for a topic and retained.

        What was sent first may be retained last: no part of it says what is there now.
        """
        return [
            one
            for publisher in self.publishers
            for one in publisher.sent
            if one.message.topic == topic and one.is_retained
        ]

    def ends_of(self, topic: str) -> list[Published]:
        """Return what may be the reason that a topic has no message."""
        now = self.database.clock() + SLACK_S
        return [
            one
            for one in self.history(topic)
            if one.is_removal or (one.expiry_s and self.expiries.get(one.message.key, now) <= now)
        ]

    # The play.

    def _churn(self) -> None:
        self.events.after(self.rng.choice([0.02, 0.2, 1.0]), self._churn)
        if not self.is_troubled:
            return
        self.rng.choice(self.watchers).renew()
        if self.rng.random() < 0.2:
            topics = self.rng.sample(TOPICS, 3)
            for publisher in self.publishers:
                publisher.rush(topics)

    def play(self, faults: int = 12) -> None:
        self._trouble_all(self.publishers, faults)
        events = self.events
        events.run_until(events.now + 60)
        for number in range(RACES):
            self._race(number)
        events.run_until(events.now + 60)
        self.check()

    def _race(self, number: int) -> None:
        """Publish and subscribe at once: what is retained comes live or as a retained message."""
        events, rng = self.events, self.rng
        topics = [f"{RACE}{number}/{one.name}" for one in self.publishers]
        for publisher, topic in zip(self.publishers, topics, strict=True):
            events.after(rng.random() * RACE_S, partial(publisher.rush, [topic]))
        for watcher in self.watchers:
            events.after(rng.random() * RACE_S, partial(watcher.race, f"{RACE}{number}/+"))
        events.run_until(events.now + 8)
        for watcher in self.watchers:
            for topic in topics:
                check("missed", watcher.has(topic), f"{watcher.name} has no message of {topic}")

    # What has to hold.

    def check(self) -> None:
        stored = self._stored()
        for number in self.processes:
            found = self.processes_of(number)
            check("one-owner", len(found) == 1, f"{number} has {len(found)} hosts")
            self._check_number(number, found[0].hosts[number], stored)
        for publisher in self.publishers:
            check("rest", not publisher.unacknowledged, f"{publisher.name} still waits")
        for watcher in self.watchers:
            watcher.check_rest(stored)
        if self.is_lossless:
            for topic in TOPICS:
                self._check_topic(topic, stored.get(topic))
        check("deadlock", not self.database.deadlocks, f"{self.database.deadlocks} deadlocks")
        self._check_bounds()

    def _stored(self) -> dict[str, RetainedMessage]:
        now = self.database.clock()
        return {
            row["topic"]: RetainedMessage(row["topic"], row["blob"], row["expires_at"])
            for row in self.database.rows(RETAINED)
            if row["blob"] and (row["expires_at"] == NEVER or row["expires_at"] > now)
        }

    def _check_number(self, number: int, host: Host, stored: dict[str, RetainedMessage]) -> None:
        groups = [row for row in self.database.rows(GROUPS) if row["number"] == number]
        check("bounded", len(groups) < 10, f"{len(groups)} groups of {number} are not folded")
        content = host.content
        assert isinstance(content, RetainedCore)
        known = content.memory.live(self.database.clock())
        has = {topic: one.blob for topic, one in known.items()}
        wants = {topic: one.blob for topic, one in stored.items()}
        check("same", has == wants, f"{number} has {has}, and stored are {wants}")

    def _check_topic(self, topic: str, stored: RetainedMessage | None) -> None:
        """What is retained is the last that was published, of those that may be."""
        if stored is None:
            candidates = self.ends_of(topic)
        else:
            candidates = [self.published(Message(*json.loads(stored.blob)))]
        for one in self.history(topic):
            is_there = any(not candidate.is_before(one) for candidate in candidates)
            check("lost", is_there, f"{topic} has not {one.message.fields()}, nor what is newer")

    def _check_bounds(self) -> None:
        rows = self.database.rows(RETAINED)
        removed = sum(not row["blob"] for row in rows)
        limit = len(self.processes) * LIMITS.tombstones
        check("bounded", removed <= limit, f"{removed} rows of messages that are removed")
        now = self.database.clock() - 30
        expired = sum(NEVER != row["expires_at"] < now for row in rows)
        check("bounded", not expired, f"{expired} rows of messages that have expired")
        waiting = self.database.rows(OUTBOX)
        check("bounded", not waiting, f"{len(waiting)} rows wait in the outbox")
        check("rest", bool(self.database.rows(NODES)), "no number is there")


class WatchedCore(RetainedCore):
    """A core whose world sees when messages expire."""

    def __init__(self, world: RetainedWorld, process: Process, number: int) -> None:
        send = partial(world.bus_of(process).send, number)
        super().__init__(number, send, world.published, process.clock)
        self._expiries = world.expiries

    def on_retaining(self, message: Message, expires_at: int) -> None:
        known = self._expiries.get(message.key, expires_at)
        self._expiries[message.key] = max(known, expires_at)


def play(seed: int) -> RetainedWorld:
    world = RetainedWorld(seed)
    world.play()
    return world

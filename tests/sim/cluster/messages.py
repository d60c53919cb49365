"""A world in which messages cross: publishers, sessions, faults, and what has to hold.

Sessions subscribe and unsubscribe on one number while publishers publish on others. Each publisher
sends 1, 2, 3 and so on, several at a time, and all that was not acknowledged again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from mqtt_broker.cluster import tables
from mqtt_broker.cluster.digest import NOBODY, Digest
from mqtt_broker.cluster.host import Content, Host
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.statements import Transaction
from mqtt_broker.cluster.tables import FILTERS, GROUPS, OUTBOX, PLACES, VERSIONS
from mqtt_broker.topics.names import matches
from tests.sim.cluster import core
from tests.sim.cluster.core import Core, Message, Reply
from tests.sim.cluster.faults import FaultyWorld
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process

KEYS: Final = {**tables.KEYS, **core.KEYS}
TOPICS: Final = ("a/1", "a/2", "b/1", "c/1", "c/2", "d/1")
FILTERS_ASKED: Final = ("a/1", "a/#", "+/1", "b/1", "#", "c/1", "c/+", "d/1")
WINDOW: Final = 3


class Client:
    """Asks the host of its number, again and again until it is answered."""

    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self._attempt = 0
        world.events.after(world.rng.random() * 5, self._try)

    def ask(self, content: Core) -> None:
        """Send what is not answered yet."""

    def retry_soon(self, seconds: float = 0.3) -> None:
        self.world.events.after(self.world.rng.random() * seconds, self._try)

    def _try(self) -> None:
        self._attempt += 1
        attempt, rng = self._attempt, self.world.rng
        for process in self.world.processes.values():
            process.call(lambda process=process: self._reach(process, attempt))  # type: ignore[misc]
        self.world.events.after(rng.choice([0.3, 1.0]), lambda: self._again(attempt))

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    def _reach(self, process: Process, attempt: int) -> None:
        host = process.hosts.get(self.number)
        if host is None or attempt != self._attempt:
            return
        assert isinstance(host.content, Core)
        if host.content.is_served:
            self.ask(host.content)
            process.wake(self.number)

    def answered(self, action: Callable[[], None]) -> Reply:
        """Do this when the answer has come back."""
        return lambda: self.world.events.after(0.0005, action)


class Sent:
    """A message, and when it was sent first and acknowledged."""

    __slots__ = ("acknowledged_at", "message", "sent_at")

    def __init__(self, message: Message, sent_at: float) -> None:
        self.message = message
        self.sent_at = sent_at
        self.acknowledged_at = 0.0

    def acknowledge(self, now: float) -> None:
        self.acknowledged_at = self.acknowledged_at or now


class Publisher(Client):
    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.sent: list[Sent] = []
        self.goal = 0
        self._topics = world.rng.sample(TOPICS, world.rng.randint(1, len(TOPICS)))
        self._probes: list[str] = []  # topics that somebody has just subscribed to
        self._qos = world.rng.choice([(1,), (1, 2)])

    @property
    def unacknowledged(self) -> list[Sent]:
        return [one for one in self.sent if not one.acknowledged_at]

    def ask(self, content: Core) -> None:
        rng = self.world.rng
        while len(self.sent) < self.goal and len(self.unacknowledged) < WINDOW:
            topic = self._probes.pop() if self._probes else rng.choice(self._topics)
            message = Message(self.name, len(self.sent) + 1, topic, rng.choice(self._qos))
            self.sent.append(Sent(message, self.world.events.now))
        for one in self.unacknowledged:
            content.publish(one.message, self.answered(lambda one=one: self._on_ack(one)))  # type: ignore[misc]

    def probe(self, text: str) -> None:
        """Publish at once to a topic that somebody has subscribed to."""
        topics = [topic for topic in TOPICS if matches(text, topic)]
        self._probes.append(self.world.rng.choice(topics))
        self.goal += 1
        self.retry_soon(0.001)

    def _on_ack(self, one: Sent) -> None:
        is_first = not one.acknowledged_at
        one.acknowledge(self.world.events.now)
        if is_first and not self.unacknowledged:
            self.retry_soon()


class Subscription:
    """A filter of a session, from when to when it certainly held."""

    __slots__ = ("acknowledged_at", "ended_at", "is_over", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.acknowledged_at = 0.0  # SUBACK has come
        self.ended_at = 0.0  # UNSUBSCRIBE was sent
        self.is_over = False  # UNSUBACK has come

    def acknowledge(self, now: float) -> None:
        self.acknowledged_at = self.acknowledged_at or now

    def end(self, now: float) -> None:
        self.ended_at = self.ended_at or now

    def on_over(self) -> None:
        self.is_over = True

    def holds(self, one: Sent) -> bool:
        """Tell whether a session with it must have this message."""
        is_before = 0 < self.acknowledged_at < one.sent_at
        return is_before and not self.ended_at and matches(self.text, one.message.topic)


class Session(Client):
    """A stored session, which subscribes and unsubscribes, one after the other."""

    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.history: list[Subscription] = []

    def change(self) -> None:
        """Subscribe to something else, or end a subscription."""
        rng = self.world.rng
        if self.current is not None:
            return
        held = [one for one in self.history if not one.ended_at]
        if held and rng.random() < 0.4:
            rng.choice(held).end(self.world.events.now)
        else:
            wanted = [text for text in FILTERS_ASKED if text not in [one.text for one in held]]
            if wanted:
                self.history.append(Subscription(rng.choice(wanted)))

    @property
    def current(self) -> Subscription | None:
        """The subscription that is not answered yet."""
        for one in self.history:
            if not one.acknowledged_at or (one.ended_at and not one.is_over):
                return one
        return None

    def ask(self, content: Core) -> None:
        one = self.current
        if one is None:
            return
        if one.ended_at:
            content.unsubscribe(self.name, one.text, self.answered(one.on_over))
        else:
            content.subscribe(self.name, one.text, self.answered(lambda: self._on_suback(one)))

    def _on_suback(self, one: Subscription) -> None:
        if not one.acknowledged_at:
            one.acknowledge(self.world.events.now)
            self.world.on_suback(one)


class MessagesWorld(FaultyWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, KEYS)
        self.cut_chance /= 2  # these hosts have more transactions than others
        self.is_troubled = True  # faults go on
        self.written: dict[tuple[int, int], set[frozenset[str]]] = {}  # filters, by number, group
        numbers = list(self.processes)
        self.publishers = [
            Publisher(self, f"p{index}", self.rng.choice(numbers)) for index in range(3)
        ]
        self.sessions = [Session(self, f"s{index}", self.rng.choice(numbers)) for index in range(4)]
        self._churn()

    def make_content(self, process: Process, number: int) -> Content:
        return WatchedCore(self, number)

    def on_suback(self, one: Subscription) -> None:
        if self.is_troubled:
            self.rng.choice(self.publishers).probe(one.text)

    # The play.

    def _churn(self) -> None:
        """Change subscriptions while messages are on their way."""
        self.events.after(self.rng.choice([0.05, 0.5, 3.0]), self._churn)
        if self.is_troubled:
            self.rng.choice(self.sessions).change()

    def play(self, faults: int = 12) -> None:
        events = self.events
        events.run_until(events.now + 5)
        for _ in range(faults):
            for publisher in self.publishers:
                publisher.goal += self.rng.randint(0, 12)
            events.run_until(events.now + self.rng.choice([0.0, 0.3, 1.0]))
            self.fault()
            events.run_until(events.now + self.rng.choice([0.01, 0.5, 3.0, 9.0]))
        self.cut_chance = 0.0
        self.is_troubled = False
        self.database.calm_down()
        events.run_until(events.now + 120)
        self.check()

    # What has to hold.

    def check(self) -> None:
        for number in self.processes:
            found = self.processes_of(number)
            check("one-owner", len(found) == 1, f"{number} has {len(found)} hosts")
            self._check_number(number, found[0].hosts[number])
        for publisher in self.publishers:
            check("rest", not publisher.unacknowledged, f"{publisher.name} still waits")
            check("rest", len(publisher.sent) == publisher.goal, f"{publisher.name} still sends")
        for session in self.sessions:
            check("rest", session.current is None, f"{session.name} still waits")
        check("deadlock", not self.database.deadlocks, f"{self.database.deadlocks} deadlocks")
        waiting = self.database.rows(OUTBOX)
        check("bounded", not waiting, f"{len(waiting)} rows wait in the outbox")
        places = len(self.database.rows(PLACES))
        check("bounded", places <= len(self.processes) ** 2, f"{places} places")

    def _check_number(self, number: int, host: Host) -> None:
        groups = [row for row in self.database.rows(GROUPS) if row["number"] == number]
        check("bounded", len(groups) < 10, f"{len(groups)} groups of {number} are not folded")
        content = host.content
        assert isinstance(content, Core)
        self._check_digest(content.exchange.digest)
        for session in self.sessions:
            if session.number == number:
                self._check_session(session, content.state.queues.get(session.name, []))

    def _check_digest(self, digest: Digest) -> None:
        versions = {row["number"]: row for row in self.database.rows(VERSIONS)}
        for number in digest.numbers:
            row = versions[number]
            if (digest.epoch(number), digest.version(number)) != (row["epoch"], row["filters"]):
                continue  # nobody has published since it changed
            rows = [row for row in self.database.rows(FILTERS) if row["number"] == number]
            stored = {row["filter"] for row in rows if row["reach"] != NOBODY}
            known = digest.filters(number)
            check("digest", known == stored, f"{known} are known of {number}, {stored} stored")
        removed = sum(row["reach"] == NOBODY for row in self.database.rows(FILTERS))
        limit = len(self.processes) * (len(FILTERS_ASKED) + core.REMOVED_MAX)
        check("bounded", removed <= limit, f"{removed} rows of filters that are gone")

    def _check_session(self, session: Session, queue: list[Message]) -> None:
        for publisher in self.publishers:
            values = [one for one in queue if one.publisher == publisher.name]
            twice = [one.value for one in values if one.qos == 2]
            check("once", len(set(twice)) == len(twice), f"{publisher.name}: {twice}")
            for topic in TOPICS:
                for qos in (1, 2):
                    found = [one.value for one in values if (one.topic, one.qos) == (topic, qos)]
                    firsts = list(dict.fromkeys(found))
                    text = f"{session.name} has {found} of {publisher.name} on {topic}"
                    check("order", firsts == sorted(firsts), text)
            if not self.database.is_synchronous:
                continue
            has = {one.value for one in values}
            for one in publisher.sent:
                is_due = any(held.holds(one) for held in session.history)
                text = f"{session.name} has not {one.message.fields()}, sent at {one.sent_at:.3f}"
                check("lost", not is_due or one.message.value in has, text)


class WatchedCore(Core):
    """A core whose world sees which filters it wrote, and what it receives."""

    def __init__(self, world: MessagesWorld, number: int) -> None:
        super().__init__(number)
        self._world = world

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        texts = frozenset(text for _, text in self._subscriptions)
        self._world.written.setdefault((self.number, group), set()).add(texts)
        return super().commit(writes, group, blob)

    def examine_parcel(self, parcel: Parcel) -> None:
        """Each message was routed by the filters that the parcel is stamped with."""
        found = self._world.written[self.number, parcel.filters]
        for blob in parcel.messages:
            message = Message(*json.loads(blob))
            is_wanted = any(matches(text, message.topic) for texts in found for text in texts)
            check("stamp", is_wanted, f"{message.fields()} came, stamped {parcel.filters}")


def play(seed: int) -> MessagesWorld:
    world = MessagesWorld(seed)
    world.play()
    return world

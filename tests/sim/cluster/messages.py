"""A world in which messages cross: publishers, sessions, faults, and what has to hold.

Sessions subscribe and unsubscribe on one number while publishers publish on others. Each publisher
sends 1, 2, 3 and so on, several at a time, and all that was not acknowledged again. Some sessions
are stored, others end with their connections. When nothing is wrong any more, messages are sent
whose delay is examined.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from mqtt_broker.cluster import tables
from mqtt_broker.cluster.digest import NOBODY, Digest
from mqtt_broker.cluster.exchange import POLL_S
from mqtt_broker.cluster.host import LOOK_S, Content, Host
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.peers import SILENT_S, SUBACK_WAIT_S
from mqtt_broker.cluster.statements import Transaction
from mqtt_broker.cluster.tables import FILTERS, GROUPS, OUTBOX, PLACES, VERSIONS
from mqtt_broker.topics.names import matches
from tests.sim.cluster import core
from tests.sim.cluster.bus import AWAY, WHOLE
from tests.sim.cluster.bus_world import BusWorld
from tests.sim.cluster.core import Core, Message
from tests.sim.cluster.faults import ASYNCHRONOUS
from tests.sim.cluster.message_clients import (
    FILTERS_ASKED,
    TOPICS,
    Publisher,
    Sent,
    Session,
    Subscriber,
    Subscription,
    Visitor,
)
from tests.sim.cluster.oracles import check
from tests.sim.cluster.process import Process

KEYS: Final = {**tables.KEYS, **core.KEYS}
PROBE: Final = "probe/"  # topics of messages whose delay is examined
PROBES_S: Final = 12.0
ROUND_TRIPS_S: Final = 0.3  # of both, with one that is refused
COMMITS: Final = 4  # that a host does at most until a group is committed: beat, fold, another group


class Probe:
    """A message to a subscriber of another number, sent when nothing is wrong."""

    def __init__(self, sent: Sent, publisher: Publisher, visitor: Visitor) -> None:
        self.sent = sent
        self.publisher = publisher
        self.visitor = visitor

    @property
    def delay_s(self) -> float | None:
        """How long it took; None: it has not come."""
        for at, message in self.visitor.received:
            if message.fields() == self.sent.message.fields():
                return at - self.sent.sent_at
        return None


class MessagesWorld(BusWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, KEYS)
        self.cut_chance /= 2  # these hosts have more transactions than others
        self.written: dict[tuple[int, int], set[frozenset[str]]] = {}  # filters, by number, group
        numbers = list(self.processes)
        self.publishers = [
            Publisher(self, f"p{index}", self.rng.choice(numbers)) for index in range(3)
        ]
        self.sessions = [Session(self, f"s{index}", self.rng.choice(numbers)) for index in range(4)]
        self.visitors = [Visitor(self, f"v{index}", self.rng.choice(numbers)) for index in range(3)]
        self.probes: list[Probe] = []
        self.reads = 0  # transactions that only read
        self._churn()

    def make_content(self, process: Process, number: int) -> Content:
        return WatchedCore(self, process, number)

    def on_suback(self, subscriber: Subscriber, one: Subscription) -> None:
        if self.is_troubled:
            self.rng.choice(self.publishers).probe(one.text)
        elif isinstance(subscriber, Visitor) and one.text.startswith(PROBE):
            for publisher in self.publishers:
                self._probe(publisher, subscriber, one.text)

    # Faults.

    def fault(self) -> None:
        if self.rng.random() < 0.1 and self.database.is_up:
            self._lose_a_host_and_its_commits()
        else:
            super().fault()

    def _lose_a_host_and_its_commits(self) -> None:
        """Fail over while a host dies: what others have had from it may be lost with it."""
        self.kill(self.rng.choice(list(self.processes.values())))
        self.database.stop()
        self.database.fail_over()

    # The play.

    def _churn(self) -> None:
        """Change subscriptions while messages are on their way."""
        self.events.after(self.rng.choice([0.05, 0.5, 3.0]), self._churn)
        if self.is_troubled:
            self.rng.choice([*self.sessions, *self.visitors]).change()

    def play(self, faults: int = 12) -> None:
        self._trouble_all(self.publishers, faults)
        events = self.events
        events.run_until(events.now + 120)
        for visitor in self.visitors:
            visitor.history.append(Subscription(PROBE + visitor.name, events.now))
            visitor.retry_soon(0.001)
        events.run_until(events.now + PROBES_S)
        self.check()
        self._check_probes()

    def _host(self, number: int) -> Host:
        """Return the host of a number, when nothing is wrong."""
        return self._process(number).hosts[number]

    def _process(self, number: int) -> Process:
        """Return the process that hosts a number, when nothing is wrong."""
        found = self.processes_of(number)
        check("one-owner", len(found) == 1, f"{number} has {len(found)} hosts")
        return found[0]

    def _probe(self, publisher: Publisher, visitor: Visitor, topic: str) -> None:
        """Publish to a topic as soon as it is subscribed to."""
        host = self._host(publisher.number)
        assert isinstance(host.content, Core)
        for qos in (0, 1):
            publisher.goal += 1
            sent = publisher.send(host.content, topic, qos)
            self.probes.append(Probe(sent, publisher, visitor))
        publisher.ask(host.content)
        self._process(publisher.number).wake(publisher.number)

    # What has to hold.

    def check(self) -> None:
        for number in self.processes:
            self._check_number(number, self._host(number))
        for publisher in self.publishers:
            check("rest", not publisher.unacknowledged, f"{publisher.name} still waits")
            check("rest", len(publisher.sent) == publisher.goal, f"{publisher.name} still sends")
        for session in [*self.sessions, *self.visitors]:
            check("rest", session.current is None, f"{session.name} still waits")
        for visitor in self.visitors:
            messages = [message for _, message in visitor.received]
            check("rest", visitor.is_connected, f"{visitor.name} is not connected")
            self._check_received(visitor, messages)
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
                self._check_received(session, content.state.queues.get(session.name, []))

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

    def _check_received(self, session: Subscriber, received: list[Message]) -> None:
        for publisher in self.publishers:
            values = [one for one in received if one.publisher == publisher.name]
            twice = [one.value for one in values if one.qos != 1]
            check("once", len(set(twice)) == len(twice), f"{publisher.name}: {twice}")
            for topic in TOPICS:
                for qos in (0, 1, 2):
                    found = [one.value for one in values if (one.topic, one.qos) == (topic, qos)]
                    firsts = list(dict.fromkeys(found))
                    text = f"{session.name} has {found} of {publisher.name} on {topic}"
                    check("order", firsts == sorted(firsts), text)
            has = {one.value for one in values}
            for one in publisher.sent:
                is_due = any(self._holds(held, one) for held in session.history)
                text = f"{session.name} has not {one.message.fields()}, sent at {one.sent_at:.3f}"
                check("lost", not is_due or one.message.value in has, text)

    def _holds(self, held: Subscription, one: Sent) -> bool:
        """Tell whether a session must have a message, for one of its subscriptions.

        Only what came before a fail-over may be lost, if replication is asynchronous.
        """
        since = 0.0 if self.database.is_synchronous else self.database.failed_over_at
        return held.acknowledged_at > since < one.sent_at and held.holds(one)

    def _check_probes(self) -> None:
        """Check that messages cross in time, and those of QoS 0 at all, if the bus is whole."""
        for visitor in self.visitors:
            one = visitor.history[-1]
            suback_s = one.acknowledged_at - one.asked_at
            limit_s = COMMITS * self.database.standby_delay_s_max + SUBACK_WAIT_S + LOOK_S
            check("late", suback_s <= limit_s, f"SUBACK came to {visitor.name} after {suback_s} s")
        for probe in self.probes:
            message, visitor = probe.sent.message, probe.visitor
            is_near = self._process(probe.publisher.number) is self._process(visitor.number)
            text = f"{visitor.name} got {message.fields()} after {probe.delay_s} s"
            if message.qos == 0 and self._is_prompt and not is_near:
                check("crosses", probe.delay_s is not None, text)
            if message.qos == 1:
                limit_s = self._delay_s_max(is_polled=is_near or self.bus.quality is AWAY)
                is_late = probe.delay_s is None or probe.delay_s > limit_s
                check("late", not is_late, f"{text}, not {limit_s}")

    @property
    def _is_prompt(self) -> bool:
        """Tell whether the others know a filter before SUBACK has waited long enough."""
        is_quick = 4 * self.database.standby_delay_s_max <= SUBACK_WAIT_S
        return is_quick and self.bus.quality is WHOLE

    def _delay_s_max(self, *, is_polled: bool) -> float:
        """Return how long a message may take: the commits of two hosts, and what the bus loses."""
        commits_s = 2 * COMMITS * self.database.standby_delay_s_max + ROUND_TRIPS_S
        if is_polled:
            return commits_s + POLL_S + LOOK_S
        return commits_s if self.bus.quality is WHOLE else commits_s + SILENT_S + POLL_S + LOOK_S


class WatchedCore(Core):
    """A core whose world sees which filters it wrote, and what it receives."""

    def __init__(self, world: MessagesWorld, process: Process, number: int) -> None:
        super().__init__(number, partial(world.bus_of(process).send, number))
        self._world = world

    def read(self, now: float) -> Transaction[object] | None:
        found = super().read(now)
        self._world.reads += found is not None
        return found

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        texts = frozenset(self.filters)
        self._world.written.setdefault((self.number, group), set()).add(texts)
        return super().commit(writes, group, blob)

    def examine_parcel(self, parcel: Parcel) -> None:
        """Each message was routed by the filters that the parcel is stamped with."""
        found = self._world.written[self.number, parcel.filters]
        for blob in parcel.messages:
            message = Message(*json.loads(blob))
            is_wanted = any(matches(text, message.topic) for texts in found for text in texts)
            check("stamp", is_wanted, f"{message.fields()} came, stamped {parcel.filters}")


def play_asynchronous(seed: int) -> MessagesWorld:
    return play(seed * ASYNCHRONOUS)


def play(seed: int) -> MessagesWorld:
    world = MessagesWorld(seed)
    world.play()
    return world

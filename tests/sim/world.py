"""A broker, its clients and the network between them, all drawn from one seed.

Nothing here knows the real time: the next event is the earliest of those that were planned
and of the broker's own deadlines. The same seed plays the same events again.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import Any, Final

from mqtt_broker.codec.constants import V5, V31, V311
from mqtt_broker.codec.packets import SubscriptionRequest
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.topics.shared import STRATEGIES
from sessions.messages.work import Work
from tests.core.recount import check_bytes
from tests.sim.client import Client
from tests.sim.model import Model
from tests.sim.wire import Wire

START: Final = 1_000.0
TOPICS: Final = ("m/a", "m/a/b", "m/b", "m/b/c", "m/will")
FILTERS: Final = ("m/a", "m/#", "m/+", "m/a/#", "+/b", "m/b/c", "r/#", "r/a", "#")
RETAINED: Final = ("r/a", "r/b")
GROUPS: Final = ("$share/g/s/#", "$share/g/s/a", "$share/h/s/a")
EVENTS_MAX: Final = 200_000


class World:
    client_class: type[Client] = Client

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = START
        self.ids_max = self.rng.choice([200, 65_535])
        self.is_draining = False
        self.is_stopped = False  # the broker's process does nothing; time goes on
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self._ready: list[Wire] = []
        self._turn_planned = self._work_planned = False
        self._wires = 0
        rng = self.rng
        self.settings = Settings(
            sys_interval_s=0,
            receive_maximum=rng.choice([1, 3, 20]),
            inflight_max=rng.choice([1, 4, 65_535]),
            outbox_bytes_max=rng.choice([1024, 4096, 4 << 20]),
            outbox_total_bytes_max=rng.choice([2048, 16_384, 256 << 20]),
            stalled_reader_s=rng.choice([5, 120]),
            topic_alias_maximum=rng.choice([0, 2, 10]),
            shared_strategy=rng.choice(list(STRATEGIES)),
            connect_timeout_s=2.0,
            retained_sweep_s=7,
            **_more_limits(seed),
        )
        self.work = Work()
        self.broker = Broker(
            self.settings, now=START, rng=random.Random(rng.random()), work=self.work
        )
        self.model = Model(self)
        self.clients: dict[str, Client] = {}
        for number in range(rng.randint(2, 7)):
            name = f"c{number}"
            self.clients[name] = self.client_class(self, name, rng.choice([V5, V5, V311, V31]))
            self._choose_subscriptions(self.clients[name])

    def _choose_subscriptions(self, client: Client) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            texts = [rng.choice(GROUPS)]
        else:
            texts = rng.sample(FILTERS[:-1], rng.randint(0, 4))
        for text in texts:
            self._choose_options(client, text)

    def _choose_options(self, client: Client, text: str) -> None:
        rng = self.rng
        request = SubscriptionRequest(text, rng.randrange(3))
        if client.version == V5:
            request.no_local = not text.startswith("$share") and rng.random() < 0.2
            request.retain_as_published = not text.startswith("$share") and rng.random() < 0.3
            request.retain_handling = rng.randrange(3)
            client.identifiers[text] = rng.choice([0, 0, 1, 300])
        client.wants[text] = request

    # Time.

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self._events, (self.now + seconds, self.order, action))

    def run_until(self, end: float) -> None:
        for _ in range(EVENTS_MAX):
            planned = self._events[0][0] if self._events else end + 1
            due = math.inf if self.is_stopped else self.broker.timers.next()
            if min(planned, due) > end:
                self.now = max(self.now, end)
                return
            if due <= planned:
                self.now = max(self.now, due)
                self.model.tick()
                self.broker.tick(self.now)
                self.end_turn()
            else:
                self.now, _, action = heapq.heappop(self._events)
                action()
        raise AssertionError("the simulation does not come to rest")

    # Connections.

    def wire(self, client: Client) -> Wire:
        self._wires += 1
        return Wire(self, client, self._wires)

    def ready(self, wire: Wire) -> None:
        if wire not in self._ready:
            self._ready.append(wire)
        self.turn_soon()

    def turn_soon(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self.after(self.rng.choice([0.0, 0.001]), self._turn)

    def _turn(self) -> None:
        """Serve what is ready, in any order, then write."""
        self._turn_planned = False
        ready, self._ready = self._ready, []
        self.rng.shuffle(ready)
        for wire in ready:
            if wire.is_paused or wire.is_closed or wire.is_lost or not wire.arrived:
                continue
            data = wire.take()
            self.model.on_heard(wire, data)
            dispatch.receive(wire.connection, data, self.now)
        self.end_turn()

    def end_turn(self) -> None:
        self.broker.flush(self.now)
        if self.broker.has_more:
            self.work_soon()

    def work_soon(self) -> None:
        """Give the agenda its part of another turn."""
        if not self._work_planned:
            self._work_planned = True
            self.after(self.rng.choice([0.0, 0.001]), self._work)

    def _work(self) -> None:
        self._work_planned = False
        if not self.is_stopped:
            self.broker.work(self.now)
            self.end_turn()

    def lose_soon(self, wire: Wire) -> None:
        """A link that the broker closed reports its end, as sockets do."""
        self.after(self.rng.random() * 0.2, lambda: self.lose(wire))

    def lose(self, wire: Wire) -> None:
        if wire.is_lost:
            return
        while wire.arrived and not wire.is_closed and not wire.is_paused:
            data = wire.take()
            self.model.on_heard(wire, data)
            dispatch.receive(wire.connection, data, self.now)
        wire.is_lost = True
        self.model.end(wire)
        wire.is_closed = True
        wire.connection.lost(self.now)
        self.end_turn()

    # The play.

    def play(self, actions: int = 150) -> None:
        for client in self.clients.values():
            self.after(self.rng.random(), client._return)
        for _ in range(actions):
            self.run_until(self.now + self.rng.choice([0.0, 0.05, 0.3, 1.0]))
            self._act(self.rng.choice(list(self.clients.values())))
        self._drain()
        self.model.check_complete()
        self._end()

    def _act(self, client: Client) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            topic = rng.choice([*TOPICS, "s/a", "s/b"])
            size = rng.choice([0, 0, 20, 500])
            qos = rng.randrange(3)
            for _ in range(rng.choice([1, 1, 3, 12])):
                client.publish(topic, qos, size=size)
        elif kind < 0.7:
            client.publish(rng.choice(RETAINED), rng.randrange(3), retain=True)
        elif kind < 0.8:
            client.vanish()
        elif kind < 0.85:
            client.leave()
        elif kind < 0.9 and client.wants:
            client.unsubscribe(rng.choice(list(client.wants)))
        elif client.is_online and not any(t.startswith("$share") for t in client.wants):
            text = rng.choice(FILTERS[:-1])
            self._choose_options(client, text)
            client.subscribe(text)

    def _drain(self) -> None:
        """The network heals, everybody comes and reads: what is owed has to arrive."""
        self.is_draining = True
        for client in self.clients.values():
            client.will_delay = None
        self.run_until(self.now + 400)
        for client in self.clients.values():
            assert client.is_online, f"{client.name} cannot come back"
            assert not client.waiting, f"{client.name} cannot send"
            assert not client.unacked, f"{client.name}: no answer to {list(client.unacked)}"
            assert not client.released, f"{client.name}: no PUBCOMP for {list(client.released)}"
            assert not client.received, f"{client.name}: no PUBREL for {client.received}"
            assert not client.asked, f"{client.name}: no answer to {client.asked}"

    def _end(self) -> None:
        """Everybody goes for good, and nothing may be left."""
        for client in self.clients.values():
            client.is_stopped = True
            client.vanish()
        self.run_until(self.now + 10)
        for client in self.clients.values():
            client.clean, client.expiry = True, 0
            client.wants.clear()
            client.connect()
        self.run_until(self.now + 10)
        for client in self.clients.values():
            client.leave()
        self.run_until(self.now + 5_000)
        self._check_empty()

    def _check_empty(self) -> None:
        broker = self.broker
        assert not broker.links and not broker.connections and not len(broker.sessions)
        assert (
            not broker.subscriptions.groups
            and broker.routes.count == broker.routes.shared_count == 0
        )
        assert broker.routes.bytes == 0 and broker.routes.trie.root.is_empty()
        assert not any(
            route.targets or route.groups for route in broker.routes.cache.results.values()
        )
        budget = broker.backlog
        assert (budget.queued_messages, budget.queued_bytes) == (0, 0)
        assert (budget.inflight_bytes, budget.owed_bytes, budget.starved) == (0, 0, {})
        assert budget.large.largest() is None
        assert (
            broker.outboxes.waiting_bytes == 0
            and not broker.outboxes.dirty
            and not broker.backpressure.paused
        )
        assert {m.envelope.topic for m in broker.retained.values()} >= {
            topic for topic, said in self.model.retained.items() if not said.may_expire
        }
        check_bytes(broker)


def _more_limits(seed: int) -> dict[str, Any]:
    """Draw limits that came later: a seed goes on to mean what it meant for everything else."""
    rng = random.Random(f"limits {seed}")
    return {
        "inflight_bytes_max": rng.choice([1024, 10_000, 64 << 20]),
        "inflight_total_bytes_max": rng.choice([4_000, 100_000, 256 << 20]),
    }

"""The same world with a store beneath, in which the broker dies again and again.

A crash takes everything that was not committed, and whatever the kernels had not sent; the
clients live on and come back. The oracle is what they know themselves: what was acknowledged
to its publisher has to reach every client whose subscription was acknowledged before it was
first sent, at QoS 2 once; and no session that was acknowledged may be gone.

    python -m tests.sim.crash --seeds 1000 --start 0
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING, Any

from mqtt_broker.codec.constants import PUBACK, PUBREC, V31, V311
from mqtt_broker.codec.packets import (
    Connack,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.restore import items_of, restore
from mqtt_broker.topics.names import matches, split_share
from sessions.journal import Journal, Owner
from tests.sim.client import Client, Sent
from tests.sim.model import Model
from tests.sim.world import World
from tests.store.memory_store import MemoryStore, Page

if TYPE_CHECKING:
    from tests.sim.wire import Wire

FOREVER = 0xFFFF_FFFF


class Ledger(Client):
    """A client that writes down what it was promised."""

    def __init__(self, world: World, name: str, version: int) -> None:
        super().__init__(world, name, V311 if version == V31 else version)
        self.expiry = FOREVER  # nobody's session ends, nothing is too large, nothing expires
        self.is_persistent = True
        self.clean = False
        self.packet_bytes_max = 0
        self.will_delay = None
        self.sent_at: dict[bytes, tuple[float, str, int]] = {}  # first time, topic, QoS
        self.acknowledged: dict[bytes, float] = {}
        self.promised: dict[str, tuple[float, SubscriptionRequest]] = {}  # since SUBACK
        self.has_session = False
        self.order: dict[tuple[str, str, int], list[bytes]] = {}  # publisher, topic, QoS

    def _on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack) and self.has_session:
            assert packet.session_present, f"{self.name}: its session is gone"
        if isinstance(packet, Suback):
            request = self.asked[packet.packet_id]
            assert isinstance(request, Subscribe)
            for one in request.requests:
                if one is self.wants.get(one.filter):  # else it has asked for another since
                    self.promised[one.filter] = self.world.now, one
                self.has_session = True
        super()._on_packet(packet)

    def _on_publish(self, packet: Publish) -> None:
        before = dict(self.got)
        super()._on_publish(packet)
        for topic, payload, qos in self.got:
            if (topic, payload, qos) not in before and topic[:2] in ("m/", "s/"):
                name = payload.split()[0].decode()
                self.order.setdefault((name, topic, qos), []).append(payload)

    def _encode(self, packet_id: int, sent: Sent, *, dup: bool) -> bytes:
        sent.expiry = -1
        self.sent_at.setdefault(sent.payload, (self.world.now, sent.topic, sent.qos))
        return super()._encode(packet_id, sent, dup=dup)

    def _on_ack(self, packet_type: int, packet_id: int, reason: int) -> None:
        if packet_type in (PUBACK, PUBREC) and packet_id in self.unacked:
            self.acknowledged.setdefault(self.unacked[packet_id].payload, self.world.now)
        super()._on_ack(packet_type, packet_id, reason)

    def subscribe(self, text: str) -> None:
        self.promised.pop(text, None)  # until the answer it may be so or so
        super().subscribe(text)

    def unsubscribe(self, text: str) -> None:
        pass  # what it was promised stands


class Nobody(Model):
    """The oracles of a world without crashes stay silent."""

    def on_heard(self, wire: Wire, data: bytes) -> None:
        pass

    def on_written(self, wire: Wire, data: bytes) -> None:
        pass

    def end(self, wire: Wire) -> None:
        pass


class CrashWorld(World):
    client_class = Ledger

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.model = Nobody(self)
        self.wires: list[Wire] = []
        self.store = MemoryStore()
        self.crashes = 0
        self._lingers = False
        self._life = 0
        self.has_parts = seed % 3 == 0  # groups that are too large for one blob
        self.commit_delay_s = self.rng.choice([0.0, 0.005, 0.2])
        self._live()

    def _live(self) -> None:
        """A broker that begins with what the store has."""
        self._life += 1
        self._lingers = False
        found = self.store.snapshot()
        self.journal = Journal(
            self._submit,
            number=found.last_number,
            last_mid=found.last_mid,
            last_sid=found.last_sid,
        )
        if self.has_parts:
            self.journal.part_bytes_max = 300
        self.broker = Broker(
            self.settings,
            now=self.now,
            rng=random.Random(self.rng.random()),
            journal=self.journal,
        )
        life = self._life
        self.store.start(
            lambda number: self._told(life, self.broker.on_committed, number),
            lambda number: self._told(life, self.broker.on_folded, number),
            lambda state: None,
        )
        restore(self.broker, found, self.now)
        self.end_turn()

    def _told(self, life: int, act: Any, number: int) -> None:
        if life == self._life:
            act(number, self.now)
            self.end_turn()

    # What the server does around the core.

    def end_turn(self) -> None:
        super().end_turn()
        if len(self.journal) and not self._lingers:
            self._lingers = True
            self._later(0.002, self._linger)
        while self.journal.wanted:
            self._ask(self.journal.wanted.pop())

    def _later(self, seconds: float, act: Any) -> None:
        """Unless the broker dies before."""
        life = self._life
        self.after(seconds, lambda: act() if life == self._life else None)

    def _linger(self) -> None:
        self._lingers = False
        self.journal.flush(self.now)
        self.end_turn()

    def _submit(self, number: int, blob: bytes) -> None:
        self.store.submit(number, blob, self.now)
        self._later(self.rng.random() * self.commit_delay_s, self.store.commit)
        if self.rng.random() < 0.5:
            self._later(self.rng.random() * 2, self.store.fold)

    def _ask(self, owner: Owner) -> None:
        life = self._life

        def on_page(page: Page) -> None:
            if life == self._life:
                owner.on_page(items_of(self.broker, page), self.now)
                self.end_turn()

        self.store.page(owner.sid, owner.page_after, self.rng.choice([1, 3, 100]), 1 << 20, on_page)
        self._later(self.rng.random() * 0.1, self.store.answer)

    def wire(self, client: Client) -> Wire:
        wire = super().wire(client)
        self.wires.append(wire)
        return wire

    def crash(self) -> None:
        """Nothing of the process is left; what its kernel has still goes out."""
        self.crashes += 1
        for wire in self.wires:
            if not wire.is_lost:
                wire.is_closed = wire.is_lost = True
                wire.backlog.clear()
                wire.arrived.clear()
                wire._read_soon()
        self.wires.clear()
        self._ready.clear()
        self.store = self.store.crash()
        self._live()

    # The play.

    def _act(self, client: Client) -> None:
        if self.rng.random() < 0.08:
            self.crash()
        elif self.rng.random() < 0.05:
            for session in self.broker.sessions:
                session.evict(self.journal.folded, 0)
            for group in self.broker.groups.values():
                group.evict(self.journal.folded, 0)
        else:
            super()._act(client)

    def play(self, actions: int = 150) -> None:
        for client in self.clients.values():
            self.after(self.rng.random(), client._return)
        for _ in range(actions):
            self.run_until(self.now + self.rng.choice([0.0, 0.05, 0.3, 1.0]))
            self._act(self.rng.choice(list(self.clients.values())))
        self._drain()
        self.check()

    def check(self) -> None:
        ledgers = [client for client in self.clients.values() if isinstance(client, Ledger)]
        for publisher in ledgers:
            for payload in publisher.acknowledged:
                at, topic, qos = publisher.sent_at[payload]
                if payload:
                    self._check_message(ledgers, publisher, payload, at, topic, qos)
        for client in ledgers:
            for key, payloads in client.order.items():
                if key[1].startswith("m/") and key[2]:
                    self._check_order(client, key, payloads)

    def _check_order(
        self, client: Ledger, key: tuple[str, str, int], payloads: list[bytes]
    ) -> None:
        """First deliveries, of what was first sent when the client was subscribed."""
        name, topic, _ = key
        publisher = self.clients[name]
        assert isinstance(publisher, Ledger)
        begun = [since for text, (since, _) in client.promised.items() if matches(text, topic)]
        serials = [
            int(payload.split()[1])
            for payload in payloads
            if publisher.sent_at[payload][0] > max(begun, default=self.now)
        ]
        assert serials == sorted(serials), f"{client.name}: {key} out of order"

    def _check_message(
        self,
        ledgers: list[Ledger],
        publisher: Ledger,
        payload: bytes,
        at: float,
        topic: str,
        qos: int,
    ) -> None:
        promised = False  # to a group: any member may have got it
        total = 0
        for client in ledgers:
            counts = [client.got[topic, payload, level] for level in (0, 1, 2)]
            asked = [
                wanted.qos
                for text, (since, wanted) in client.promised.items()
                if since < at and split_share(text) is None and matches(text, topic)
                if not (wanted.no_local and client is publisher)
            ]
            best = min(qos, max(asked, default=0))
            if best:
                assert sum(counts) > 0, f"{client.name} never got {payload!r} ({topic}, {best})"
            if topic.startswith("m/"):
                assert counts[2] <= 1, f"{client.name} got {payload!r} {counts[2]} times at QoS 2"
            for text, (since, _) in client.promised.items():
                shared = split_share(text)
                if shared is not None and matches(shared[1], topic) and since < at:
                    promised = True
            total += sum(counts)
        if promised and not self._may_be_dropped(ledgers):
            assert total > 0, f"no member ever got {payload!r}"

    def _may_be_dropped(self, ledgers: list[Ledger]) -> bool:
        """A member at QoS 0 is given what nobody repeats."""
        return any(
            not wanted.qos
            for client in ledgers
            for text, wanted in client.wants.items()
            if text.startswith("$share")
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    crashes = 0
    for seed in range(args.start, args.start + args.seeds):
        try:
            world = CrashWorld(seed)
            world.play()
            crashes += world.crashes
        except BaseException:
            sys.stderr.write(f"seed {seed}:\n")
            raise
    sys.stdout.write(f"{args.seeds} seeds, {crashes} crashes, nothing lost\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

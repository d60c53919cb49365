"""A client that writes down what it was promised, and whose sessions come and go."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBREC, V5, V31, V311
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqtt_broker.codec.properties import Properties
from mqtt_broker.topics.names import split_share
from tests.sim.client import Client, Sent

if TYPE_CHECKING:
    from tests.sim.crash import CrashWorld
    from tests.sim.wire import Wire

FOREVER = 0xFFFF_FFFF
UNAVAILABLE = (3, 0x88)  # to 3.1.1 and to 5: what CONNACK says could not be stored in time
WATCHER = "watcher"
# What a world is about says which clients it has.
KINDS = {
    "all": ("keeper", "keeper", "fleeting", "changing", "changing"),
    "groups": ("keeper", "fleeting", "fleeting"),
    "sessions": ("keeper", "changing", "changing"),
}


class Ledger(Client):
    """A keeper has one session for ever, a fleeting client none; others change from connect to
    connect."""

    def __init__(self, world: CrashWorld, name: str, version: int) -> None:
        super().__init__(world, name, V311 if version == V31 else version)
        self.crash_world = world
        rng = world.rng
        self.kind = rng.choice(KINDS[world.theme])
        self.packet_bytes_max = 0  # nothing is too large
        self.will_delay = rng.choice([None, 0, 2, 20])
        self.has_status = self.will_delay is not None and rng.random() < 0.6
        self.sent_at: dict[bytes, tuple[float, str, int]] = {}  # first time, topic, QoS
        self.acknowledged: dict[bytes, float] = {}
        self.promised: dict[str, tuple[float, SubscriptionRequest]] = {}  # since SUBACK
        self.order: dict[tuple[str, str, int], list[bytes]] = {}  # publisher, topic, QoS
        self.shared_qos: set[tuple[str, int]] = set()  # what it ever asked groups for
        self.generation = 0  # of its session
        self.counts: Counter[tuple[int, bytes]] = Counter()  # at QoS 2, by generation
        self.got_at: dict[bytes, float] = {}
        self.online_after: dict[str, int] = {}  # by client: the newest connection that said so
        self._connects = 0
        self._asked_at = 0.0
        self._begun_at = math.inf  # CONNECT of the session's first connection
        self._is_sure = True  # which session the broker has for it

    # Connections.

    def connect(self) -> None:
        self._choose()
        self._connects += 1
        self._asked_at = self.world.now
        self._is_sure = False
        self.is_fresh = False
        self.left_at = math.inf  # what it knows of its session's end stands in `clean`
        super().connect()

    def _choose(self) -> None:
        rng = self.world.rng
        if self.world.is_draining or self.kind == "keeper":
            self.clean, self.expiry = False, FOREVER
        elif self.kind == "fleeting":
            self.clean, self.expiry = self.version < V5 or rng.random() < 0.5, 0
        else:
            self.clean = rng.random() < 0.35
            self.expiry = rng.choice([0, 2, 8, 60, 3_600, FOREVER])
            if self.version < V5:
                self.expiry = 0 if self.clean else FOREVER
        if not self._is_sure and self.kind != "keeper":
            # A CONNACK that was lost may have said that the session is a new one.
            self.clean = True
            if self.version < V5:
                self.expiry = 0
        if self.clean and self.kind == "changing" and rng.random() < 0.5 and self.wants:
            self.wants.clear()
            self.crash_world.choose_subscriptions(self)

    def _return(self) -> None:
        if self.world.is_stopped:
            self.crash_world.when_it_serves(self._return)
        else:
            super()._return()

    def _will(self) -> Will | None:
        if self.will_delay is None or self.world.is_draining:
            return None
        found = Properties()
        if self.will_delay and self.version == V5:
            found[prop.WILL_DELAY_INTERVAL] = self.will_delay
        payload = f"offline {self.name} {self._connects}".encode()
        if self.has_status:
            return Will(f"status/{self.name}", payload, 2, True, found)
        return Will(f"will/{self.name}", payload, self.world.rng.choice([1, 2]), False, found)

    def vanish(self) -> None:
        wire = self.wire
        super().vanish()
        if wire is not None and not self.crash_world.promises.has_heard(wire):
            wire.on_its_way.clear()  # a CONNECT that comes after the next would end its session
            wire.arrived.clear()

    def leave(self) -> None:
        if self.wire is None or not self.is_online:
            return
        rng = self.world.rng
        found = Properties()
        if self.kind == "changing" and self.version == V5 and self.expiry and rng.random() < 0.4:
            found[prop.SESSION_EXPIRY_INTERVAL] = rng.choice([0, 2, 60, FOREVER])
        reason = 4 if self.version == V5 and rng.random() < 0.2 else 0  # 4: with the will
        wire = self.wire
        wire.send(encode_from_client(self.version, Disconnect(reason, found)))
        wire.finish()
        self.on_end(wire)

    def on_end(self, wire: Wire) -> None:
        super().on_end(wire)
        self.left_at = math.inf

    # What arrives.

    def _on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack) and packet.reason in UNAVAILABLE:
            return  # the store is away, and the broker will close
        if isinstance(packet, Suback):
            request = self.asked[packet.packet_id]
            assert isinstance(request, Subscribe)
            for one in request.requests:
                if one is self.wants.get(one.filter):  # else it has asked for another since
                    self.promised[one.filter] = self.world.now, one
        super()._on_packet(packet)

    def _on_connack(self, packet: Connack) -> None:
        assert not (packet.session_present and self.clean), "Session Present after Clean Start"
        self._is_sure = True
        if not packet.session_present:
            self.generation += 1
            self._begun_at = self._asked_at
            self.promised.clear()
            self.order.clear()
            if self.world.rng.random() < 0.5:
                self._last_id = 0  # as many clients do
        super()._on_connack(packet)
        if packet.session_present:
            for text in [text for text in self.wants if text not in self.promised]:
                self.subscribe(text)
        if self.has_status and not self.world.is_draining:
            payload = f"online {self.name} {self._connects}".encode()
            self.waiting.append(Sent(f"status/{self.name}", payload, 2, True, -1))
            self._pump()

    def on_message(self, topic: str, payload: bytes, qos: int) -> None:
        is_first = not self.counts[self.generation, payload]
        super().on_message(topic, payload, qos)
        self.got_at.setdefault(payload, self.world.now)
        if qos == 2 and not topic.startswith("r/"):  # what is retained comes with each SUBSCRIBE
            self.counts[self.generation, payload] += 1
        word, name, *_ = [*payload.decode().split(), "", ""]
        if topic.startswith("status/") and self.name == WATCHER:
            self._on_status(word, name, int(payload.split()[2]))
        if topic[:2] in ("m/", "s/") and payload:
            if is_first or qos < 2:
                self.order.setdefault((word, topic, qos), []).append(payload)
            if topic.startswith("m/"):
                self._check_new(word, payload)

    def _on_status(self, word: str, name: str, connection: int) -> None:
        if word == "online":
            self.online_after[name] = max(connection, self.online_after.get(name, 0))
        else:
            self.crash_world.oracles.check(
                "will-first",
                self.online_after.get(name, 0) <= connection,
                f"{name}: the will of connection {connection} came after connection "
                f"{self.online_after.get(name)} had said that it is online",
            )

    def _check_new(self, name: str, payload: bytes) -> None:
        """A session that was begun anew has nothing of before."""
        publisher = self.world.clients[name]
        assert isinstance(publisher, Ledger)
        self.crash_world.oracles.check(
            "state-gone",
            publisher.acknowledged.get(payload, math.inf) >= self._begun_at
            or self._begun_at == math.inf,
            f"{self.name} got {payload!r}, which was in the session it had ended",
        )

    # What it sends.

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
        if split_share(text) is not None:
            self.shared_qos.add((text, self.wants[text].qos))
        super().subscribe(text)

    def unsubscribe(self, text: str) -> None:
        pass  # what it was promised stands

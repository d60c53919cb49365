"""A broker core with peers whose links are lists: what a socket would do, without one.

    world = World(receive_maximum=5)
    one = world.client("one", version=5)
    one.subscribe("a/#", qos=1)
    assert one.publishes() == [...]

`Peer.is_slow` makes a link that takes everything and delivers nothing until `read`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_from_client, encode_publish
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.limits.settings import Settings
from sessions.messages.work import Work

START = 1000.0


class Peer:
    """One end of one connection; the link and the client's decoder in one."""

    def __init__(self, world: World, version: int) -> None:
        self.world = world
        self.version = version
        self.peer = "192.0.2.1:1"
        self.is_slow = False
        self.is_closed = False
        self.is_paused = False
        self.is_lost = False
        self.waiting = bytearray()  # written to a slow link, not yet read
        self.received: list[Packet | Violation] = []
        self.decoder = Decoder(from_server=True, version=version)
        self.connection: Connection = world.broker.accept(self, world.now)

    # What the core calls.

    def write(self, data: bytes) -> int:
        if self.is_closed:
            return 0
        if self.is_slow:
            self.waiting += data
            return len(self.waiting)
        self.received += self.decoder.feed(data)
        return 0

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    # What a test does.

    def send(self, *packets: bytes) -> None:
        """One chunk, and the end of the turn."""
        dispatch.receive(self.connection, b"".join(packets), self.world.now)
        self.world.settle()

    def drop(self) -> None:
        """The network is gone."""
        self.is_closed = True
        if not self.is_lost:
            self.is_lost = True
            self.connection.lost(self.world.now)
        self.world.settle()

    def read(self, count: int = 1 << 30) -> None:
        """Read so much of what waits at a slow link."""
        taken = bytes(self.waiting[:count])
        del self.waiting[:count]
        self.received += self.decoder.feed(taken)
        self.connection.on_written(len(self.waiting), self.world.now)
        self.world.settle()

    def take(self) -> list[Any]:
        """Everything received since the last time."""
        taken, self.received = self.received, []
        return taken

    def publishes(self) -> list[Publish]:
        return [packet for packet in self.take() if isinstance(packet, Publish)]

    def payloads(self) -> list[bytes]:
        return [payload for packet in self.publishes() for payload in packet.payloads()]

    def subscribe(self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any) -> None:
        self.send(subscribe(self.version, *filters, qos=qos, identifier=identifier, **options))


class World:
    """A broker, a clock and the peers."""

    def __init__(
        self,
        *,
        access: Access | None = None,
        checks: PayloadChecks | None = None,
        log: Callable[[str], None] = lambda line: None,
        work: Work | None = None,
        **settings: Any,
    ) -> None:
        self.now = START
        self.broker = Broker(
            Settings(**{"sys_interval_s": 0, "recorder_bytes_max": 1 << 20, **settings}),
            now=START,
            rng=random.Random(1),
            access=access,
            log=log,
            checks=checks,
            work=work,
        )
        self.peers: list[Peer] = []

    def peer(self, version: int = V5) -> Peer:
        peer = Peer(self, version)
        self.peers.append(peer)
        return peer

    def client(self, client_id: str, version: int = V5, **fields: Any) -> Peer:
        """A peer past its CONNACK."""
        peer = self.peer(version)
        peer.send(connect(client_id, version, **fields))
        if not peer.is_slow:
            if not peer.received:
                self.admit()
            answer = peer.received.pop(0)
            assert isinstance(answer, Connack) and answer.reason == 0, answer
        return peer

    def admit(self) -> None:
        """Bring about what a CONNACK waits for."""

    def settle(self) -> None:
        """End the turn; whose link was closed is told that it is lost, as a socket would."""
        while True:
            self.broker.flush(self.now)
            while self.broker.has_more:
                self.broker.work(self.now)
                self.broker.flush(self.now)
            closed = [peer for peer in self.peers if peer.is_closed and not peer.is_lost]
            if not closed:
                return
            for peer in closed:
                peer.is_lost = True
                peer.connection.lost(self.now)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.broker.tick(self.now)) <= end:
            self.settle()
            self.now = max(self.now, deadline)
        self.now = end
        self.settle()

    @property
    def timers(self) -> int:
        return len(self.broker.timers)


def connect(
    client_id: str,
    version: int = V5,
    *,
    clean: bool = True,
    keep_alive: int = 0,
    expiry: int | None = None,
    receive_maximum: int | None = None,
    packet_bytes_max: int | None = None,
    alias_maximum: int | None = None,
    method: str | None = None,
    will: Will | None = None,
) -> bytes:
    found = Properties()
    if version == V5:
        for key, value in (
            (prop.SESSION_EXPIRY_INTERVAL, expiry),
            (prop.RECEIVE_MAXIMUM, receive_maximum),
            (prop.MAXIMUM_PACKET_SIZE, packet_bytes_max),
            (prop.TOPIC_ALIAS_MAXIMUM, alias_maximum),
            (prop.AUTHENTICATION_METHOD, method),
        ):
            if value is not None:
                found[key] = value
    packet = Connect(version, client_id, clean, keep_alive, found, will)
    return encode_from_client(version, packet)


def subscribe(
    version: int, *filters: str, qos: int = 0, identifier: int = 0, **options: Any
) -> bytes:
    found = (
        Properties({prop.SUBSCRIPTION_IDENTIFIER: [identifier]}) if identifier else NO_PROPERTIES
    )
    requests = [SubscriptionRequest(text, qos, **options) for text in filters]
    return encode_from_client(version, Subscribe(1, requests, found))


def unsubscribe(version: int, *filters: str) -> bytes:
    return encode_from_client(version, Unsubscribe(1, list(filters)))


def publish(
    topic: str,
    payload: bytes = b"",
    *,
    version: int = V5,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    properties: dict[int, Any] | None = None,
) -> bytes:
    found = Properties(properties) if properties else NO_PROPERTIES
    return encode_publish(
        version, topic, payload, qos=qos, retain=retain, packet_id=packet_id, properties=found
    )


def disconnect(version: int = V5, reason: int = 0) -> bytes:
    return encode_from_client(version, Disconnect(reason))


__all__ = [
    "START", "V5", "V311", "Peer", "World", "connect", "disconnect", "publish", "subscribe",
    "unsubscribe",
]  # fmt: skip

"""A broker core with a telemetry log, a store, and MQTT clients: no threads, no sockets.

    world = Replays(tmp_path, partitions=2)
    world.put(b"1", b"2")
    one = world.client("one")
    one.subscribe(STREAM, qos=1)
    assert payloads(one) == [b"1", b"2"]

What a thread would read is read at the end of a turn, or when a test says so (`holds_reads`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, V5
from mqtt_broker.codec.encode import encode_ack, encode_from_client
from mqtt_broker.codec.packets import Publish, Suback, Subscribe, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.message_log import StreamSubscriptions, TopicWriter
from mqtt_broker.core.limits.settings import Settings as CoreSettings
from mqtt_broker.core.restore import restore
from mqtt_broker.server.services.streams import replay_host
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.replay.context import ReplayLimits
from mqtt_broker.streams.replay.service import ReplayService
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from sessions.journal.journal import Journal
from sessions.messages.message import Message
from tests.core.peers import START, Peer
from tests.core.stored import StoredWorld
from tests.sessions.store.memory_store import MemoryStore

NAME = "telemetry"
STREAM = f"$stream/{NAME}"
START_US = 1_700_000_000_000_000
ERROR = f"{STREAM}/$error"


class Got(NamedTuple):
    """What a client got of a record."""

    packet_id: int
    partition: int
    offset: int
    payload: bytes
    dup: bool


class ReadOnlyLog(NamedTuple):
    """A message log that is read, and that nothing published goes to."""

    subscriptions: StreamSubscriptions

    def find(self, topic: str) -> TopicWriter | None:
        return None


class Replays(StoredWorld):
    def __init__(
        self,
        path: Path,
        *,
        partitions: int = 1,
        stream: dict[str, Any] | None = None,
        limits: ReplayLimits | None = None,
        access: Access | None = None,
        skips_damage: bool = False,
        **settings: Any,
    ) -> None:
        self.now = START
        self.peers = []
        self.store = MemoryStore()
        self.core_settings = CoreSettings(**{"sys_interval_s": 0, **settings})
        self.access = access
        self.lines: list[str] = []
        self.dead_letters: list[tuple[str, Message, str]] = []
        self.limits = limits or ReplayLimits()
        self.skips_damage = skips_damage
        self.reads: list[Callable[[], None]] = []
        self.holds_reads = False
        self.number = 0
        self.now_us = START_US
        self.log = Log.open(path, report=self.lines.append)
        self.log.create(StreamSettings(NAME, partitions=partitions, **(stream or {})))
        self.writer = LogWriter(self.log)
        self._live()

    def close(self) -> None:
        self.log.close()

    def _live(self) -> None:
        found = self.store.snapshot()
        self.reads.clear()
        self.journal = Journal(
            self._submit,
            number=found.last_number,
            last_message=found.last_mid,
            last_session=found.last_sid,
        )
        self.broker = Broker(
            self.core_settings,
            now=self.now,
            rng=random.Random(1),
            journal=self.journal,
            access=self.access,
            log=self.lines.append,
        )
        self.store.start(
            lambda number: self.broker.on_committed(number, self.now),
            lambda number: self.broker.on_folded(number, self.now),
            lambda state: None,
        )
        self.replay = ReplayService(
            self.log,
            replay_host(self.broker),
            self._read,
            lambda: self.now,
            cursors=found.cursors,
            limits=self.limits,
            skips_damage=lambda name: self.skips_damage,
            dead_letters=self,
        )
        self.broker.attach_log(ReadOnlyLog(self.replay))
        restore(self.broker, found, self.now)
        self.replay.on_restored()

    def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
        """Take a dead letter."""
        self.dead_letters.append((reason, message, client_id))

    # Threads.

    def _read(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.reads.append(lambda: done(work()))

    def read_once(self, at: int = 0) -> None:
        """One thread is done."""
        self.reads.pop(at)()
        super().settle()

    def settle(self) -> None:
        """End the turn; groups whose members changed are due in the next one."""
        super().settle()
        self.broker.tick(self.now)
        super().settle()
        while self.reads and not self.holds_reads:
            self.read_once()

    # The log.

    def put(
        self, *payloads: bytes, topic: str = "t/1", client_id: str = "device", **more: Any
    ) -> None:
        """One batch a partition it goes to, committed; readers are told."""
        stream = self.log.streams[NAME]
        taken = self.writer.append(stream, topic, client_id, payloads, self.now_us, **more)
        assert taken == len(payloads)
        self.flush_log()

    def flush_log(self) -> None:
        self.number += 1
        self.writer.assign(self.number)
        self.writer.committed(self.writer.write(self.number))
        self.replay.on_committed([NAME], self.now)
        self.settle()

    @property
    def ends(self) -> tuple[int, ...]:
        return self.log.streams[NAME].committed().ends

    def position(self, owner: str) -> dict[int, int]:
        """What the store has of somebody's place."""
        self.fold()
        rows = self.store.snapshot().cursors
        return {row.partition: row.offset for row in rows if row.owner == owner}


def subscribe(
    peer: Peer, text: str = STREAM, start: str | None = None, qos: int = 0, **more: Any
) -> int:
    """SUBSCRIBE with `stream-offset`; the code of SUBACK. What came with it stays."""
    suback = ask(peer, text, start, qos, **more)
    return suback.reasons[0]


def ask(
    peer: Peer,
    text: str,
    start: str | None = None,
    qos: int = 0,
    *,
    identifier: int = 0,
    **options: Any,
) -> Suback:
    found = Properties()
    if start is not None:
        found[prop.USER_PROPERTY] = [("stream-offset", start)]
    if identifier:
        found[prop.SUBSCRIPTION_IDENTIFIER] = [identifier]
    packet = Subscribe(7, [SubscriptionRequest(text, qos, **options)], found or NO_PROPERTIES)
    peer.send(encode_from_client(peer.version, packet))
    world = peer.world
    if isinstance(world, StoredWorld):
        world.commit()
    subacks = [packet for packet in peer.received if isinstance(packet, Suback)]
    assert len(subacks) == 1
    peer.received.remove(subacks[0])
    return subacks[0]


def got(peer: Peer) -> list[Got]:
    """The records that came since the last time."""
    found: list[Got] = []
    for packet in peer.publishes():
        user = dict(packet.properties.user)
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            found.append(
                Got(
                    packet_id,
                    int(user.get("stream-partition", -1)),
                    int(user.get("stream-offset", -1)),
                    payload,
                    packet.dup,
                )
            )
    return found


def numbers(first: int, last: int) -> list[bytes]:
    """Payloads to tell apart."""
    return [b"%d" % number for number in range(first, last)]


def payloads(peer: Peer) -> list[bytes]:
    return [one.payload for one in got(peer)]


def acknowledge(peer: Peer, *records: Got, reason: int = 0) -> None:
    peer.send(*[encode_ack(PUBACK, one.packet_id, reason) for one in records])


def drain(peer: Peer) -> list[Got]:
    """Read and acknowledge until nothing more comes."""
    found: list[Got] = []
    while new := got(peer):
        found += new
        if new[0].packet_id:
            acknowledge(peer, *new)
    return found


__all__ = [
    "ERROR",
    "NAME",
    "START_US",
    "STREAM",
    "V5",
    "Got",
    "Peer",
    "Publish",
    "ReplayLimits",
    "Replays",
    "acknowledge",
    "ask",
    "drain",
    "got",
    "numbers",
    "payloads",
    "subscribe",
]  # fmt: skip

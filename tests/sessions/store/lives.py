"""A broker core on a real store, driven by a test: what the server does, without a loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBREC
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Publish, Suback, Will
from mqtt_broker.codec.properties import Properties, encode_properties
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.restore import items_of, restore
from sessions.journal.journal import Journal, StoredQueue
from sessions.journal.rows import StreamRow
from sessions.store.store import Store
from tests.core.peers import V5, V311, Peer, World, publish, subscribe
from tests.sessions.store.memory_store import Page

FOREVER = 0xFFFF_FFFF
TIMEOUT_S = 20.0


class Life(World):
    """From the start of a broker to its end; what its store's threads say is said in `settle`."""

    def __init__(self, store: Store, now: float = 2_000.0, **settings: Any) -> None:
        self.now = now
        self.peers = []
        self.store = store
        self.lines: list[str] = []
        self._news: list[Callable[[], None]] = []
        found = store.snapshot()
        self.journal = Journal(
            lambda number, blob: store.submit(number, blob, self.now),
            number=found.last_number,
            last_message=found.last_mid,
            last_session=found.last_sid,
        )
        self.broker = Broker(
            Settings(**{"sys_interval_s": 0, **settings}),
            now=now,
            rng=random.Random(1),
            journal=self.journal,
            log=self.lines.append,
        )
        restore(self.broker, found, now)
        store.start(
            lambda number: self._news.append(lambda: self.broker.on_committed(number, self.now)),
            lambda number: self._news.append(lambda: self.broker.on_folded(number, self.now)),
            lambda state: self.lines.append(f"state {state}"),
        )

    def admit(self) -> None:
        self.commit()

    def commit(self) -> None:
        self.journal.flush(self.now)
        assert self.store.flush(TIMEOUT_S), self.lines
        self.settle()

    def settle(self) -> None:
        while self._news:
            self._news.pop(0)()
        super().settle()

    def page(self) -> None:
        while self.journal.pages_wanted:
            self._ask(self.journal.pages_wanted.pop())
            self.commit()

    def _ask(self, owner: StoredQueue) -> None:
        pages: list[Page] = []
        self.store.page(owner.session_number, owner.page_after, 100, 1 << 20, pages.append)
        while not pages:
            self.store.flush(0.001)
        owner.on_page(items_of(self.broker, pages[0]), self.now)

    def end(self, *, is_folded: bool = True) -> None:
        self.commit()
        if is_folded:
            assert self.store.stop(TIMEOUT_S), self.lines
        else:
            self.store.abandon()


def kept(
    world: World, name: str, *filters: str, version: int = V5, identifier: int = 0, **options: Any
) -> Peer:
    peer = world.client(name, version, clean=False, expiry=FOREVER, **options)
    for text in filters:
        peer.send(subscribe(version, text, qos=2, identifier=identifier))
    return peer


SECTION = Properties({prop.WILL_DELAY_INTERVAL: 500, prop.MESSAGE_EXPIRY_INTERVAL: FOREVER})


def live_through_everything(life: Life) -> None:
    """Every table gets rows of every shape."""
    will = Will("will/topic", b"gone", 1, True, SECTION, encode_properties(SECTION))
    kept(life, "away", "a/#", "+/b", identifier=7, will=will).drop()
    kept(life, "old", "a/+", version=V311).drop()
    here = kept(life, "here", "a/#", receive_maximum=6)
    member = kept(life, "member", "$share/group/a/#")
    life.commit()
    member.drop()
    publisher = kept(life, "publisher", "nothing")
    for packet_id in range(1, 21):
        publisher.send(
            publish(
                f"a/{packet_id % 3}",
                b"message %d" % packet_id,
                qos=1 + packet_id % 2,
                packet_id=packet_id,
                retain=packet_id < 5,
                properties={prop.CONTENT_TYPE: "text", prop.MESSAGE_EXPIRY_INTERVAL: FOREVER},
            )
        )
    life.commit()
    under_way = here.publishes()
    for packet in under_way[:4]:
        kind = PUBACK if packet.qos == 1 else PUBREC
        here.send(*[encode_ack(kind, packet_id) for packet_id in packet.packet_ids()])
    life.journal.on_stream(StreamRow("telemetry", "epoch", "t/#", "{}", 5.0))
    life.journal.on_cursor("group:g", "telemetry", "epoch", [(0, 5), (3, 9)])
    life.journal.on_cursor("client:gone $stream/telemetry", "telemetry", "epoch", [(0, 5)])
    life.commit()


def serve(life: Life) -> None:
    """Everybody comes back and is served, and new clients are."""
    for name, version in (("away", V5), ("old", V311), ("here", V5), ("member", V5)):
        peer = kept(life, name, "served/#", version=version)
        for _ in range(8):
            life.page()
            life.commit()
            for packet in peer.take():
                if isinstance(packet, Publish) and packet.qos:
                    kind = PUBACK if packet.qos == 1 else PUBREC
                    peer.send(*[encode_ack(kind, i) for i in packet.packet_ids()])
    new = life.client("new", clean=True)
    new.send(subscribe(V5, "served/#", qos=1), publish("served/x", b"now", qos=1, retain=True))
    life.commit()
    found = new.take()
    assert [p.reason for p in found if isinstance(p, Ack)] == [0]
    assert sum(isinstance(p, Suback) for p in found) == 1
    assert b"now" in [p.payload for p in found if isinstance(p, Publish)]
    assert not life.journal.refused

"""A broker with a tiny share of work does what one with a large share does, in more turns.

The same script is played against both; after each action the agenda is finished. Every client has
to receive the same packets: in the same order from each publisher, and each answer once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBREL
from mqtt_broker.codec.packets import Ack, Connack, Publish, Suback, Unsuback, Will
from sessions.messages.work import SHARE_UNITS, Work
from tests.core.peers import Peer, World, disconnect, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld
from tests.property_examples import examples

CLIENTS: Final = 5
FILTERS: Final = ("a", "b", "#", "+", "a/#", "$share/g/a", "$share/h/#")
TOPICS: Final = ("a", "b", "a/b")
SHARED: Final = {"$share/g/a": 1, "$share/h/#": 2}  # with an identifier
Action = tuple[str, int, int, int]  # what, which client, and two numbers for the rest


class Play:
    """One broker, its clients, and what each of them has received."""

    def __init__(self, make: Callable[..., World], share: int) -> None:
        # Round robin is the only strategy that does not depend on when acknowledgements come.
        self.world = make(work=Work(share, 2 * share))
        self.peers: list[Peer | None] = [None] * CLIENTS
        self.received: list[list[Any]] = [[] for _ in range(CLIENTS)]
        self.serial = 0

    def act(self, what: str, client: int, first: int, second: int) -> None:
        peer = self.peers[client]
        if what == "connect":
            self._collect()
            will = Will("a", b"will of %d" % client, first % 3) if second % 2 else None
            self.peers[client] = self.world.client(
                f"c{client}", clean=first % 4 == 0, expiry=second % 3 * 50, will=will
            )
        elif what == "wait":
            self.world.wait(first)
        elif peer is None or peer.is_closed:
            return
        elif what == "subscribe":
            found = {FILTERS[(first + n) % len(FILTERS)] for n in range(1 + second % 4)}
            own = sorted(text for text in found if text not in SHARED)
            if own:
                peer.send(subscribe(peer.version, *own, qos=second % 3))
            for text in sorted(found & SHARED.keys()):
                peer.send(subscribe(peer.version, text, qos=second % 3, identifier=SHARED[text]))
        elif what == "unsubscribe":
            peer.send(unsubscribe(peer.version, FILTERS[first % len(FILTERS)], "b"))
        elif what == "publish":
            peer.send(*[self._message(first + n, second) for n in range(1 + second % 5)])
        elif what == "disconnect":
            peer.send(disconnect(reason=4 * (first % 2)))
        elif what == "drop":
            peer.drop()
        self._answer()

    def _message(self, first: int, second: int) -> bytes:
        self.serial += 1
        payload = b"%d" % self.serial + b"." * (first % 3)
        qos = second % 3
        found = {prop.CONTENT_TYPE: "t"} if first % 5 == 0 else None
        return publish(
            TOPICS[first % len(TOPICS)], payload, qos=qos, packet_id=1 + self.serial % 20,
            retain=second % 7 == 0, properties=found,
        )  # fmt: skip

    def _answer(self) -> None:
        """Commit, and let every client acknowledge what it got, until all are quiet."""
        for _ in range(20):
            if isinstance(self.world, StoredWorld):
                self.world.commit()
            is_quiet = True
            for client, peer in enumerate(self.peers):
                if peer is None:
                    continue
                for packet in peer.take():
                    self.received[client].append(packet)
                    for answer in answers(packet):
                        peer.send(answer)
                        is_quiet = False
            if is_quiet:
                return
        raise AssertionError("no rest")

    def _collect(self) -> None:
        self._answer()


def answers(packet: Any) -> list[bytes]:
    if isinstance(packet, Publish) and packet.qos:
        kind = 0x40 if packet.qos == 1 else 0x50
        return [bytes((kind, 2)) + i.to_bytes(2, "big") for i in packet.packet_ids()]
    if isinstance(packet, Ack) and packet.packet_type in (5, 6):
        kind = 0x62 if packet.packet_type == 5 else 0x70
        return [bytes((kind, 2)) + i.to_bytes(2, "big") for i in packet.packet_ids]
    return []


def told(packets: list[Any]) -> dict[object, list[Any]]:
    """Return what a client was told, in order: the messages, and the answers of each kind.

    Messages of each shared subscription have an order of their own: what waited for a member comes
    to one that joins beside its retained messages. So ids of the broker's own may differ.
    """
    found: dict[object, list[Any]] = {}
    for packet in packets:
        if isinstance(packet, Publish):
            found.setdefault(("PUBLISH", *packet.properties.subscription_ids), []).extend(
                (packet.topic, payload, packet.qos, packet.retain) for payload in packet.payloads()
            )
        elif isinstance(packet, Connack):
            found.setdefault("CONNACK", []).append(packet.session_present)
        elif isinstance(packet, Suback | Unsuback):
            found.setdefault(type(packet), []).append(packet.reasons)
        elif isinstance(packet, Ack):
            found.setdefault(packet.packet_type, []).extend(
                (0 if packet.packet_type == PUBREL else packet_id, packet.reason)
                for packet_id in packet.packet_ids
            )
    return found


actions = st.tuples(
    st.sampled_from(
        ["connect", "subscribe", "subscribe", "unsubscribe", "publish", "publish", "publish",
         "disconnect", "drop", "wait"]
    ),
    st.integers(0, CLIENTS - 1),
    st.integers(0, 200),
    st.integers(0, 200),
)  # fmt: skip


@pytest.mark.parametrize("make", [World, StoredWorld])
@given(st.lists(actions, max_size=40), st.sampled_from([1, 15, 60, 500]))
@examples(150)
def test_slices_do_not_matter(make: Callable[..., World], script: list[Action], share: int) -> None:
    small, large = Play(make, share), Play(make, SHARE_UNITS)
    for client in range(CLIENTS):
        script = [("connect", client, 1, 1), ("subscribe", client, client, 2), *script]
    for action in script:
        small.act(*action)
        large.act(*action)
        for client in range(CLIENTS):
            assert told(small.received[client]) == told(large.received[client])
    broker = small.world.broker
    assert not broker.has_work and not broker.state.lifecycle.unfinished
    assert broker.backlog.queued_messages == large.world.broker.backlog.queued_messages
    assert broker.routes.count == large.world.broker.routes.count
    found = {m.envelope.topic: m.payload for m in broker.retained.values()}
    assert found == {m.envelope.topic: m.payload for m in large.world.broker.retained.values()}

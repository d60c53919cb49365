"""Every call within a flush fails once: nothing acknowledged is lost, all is acknowledged at last.

For each kind of error and each n there is one life of the same broker in which the n-th call of
packing, sealing, handing over or releasing raises. What was acknowledged by then has to be there
after a crash; what was not is acknowledged later, or refused with a reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Publish, Suback
from mqtt_broker.core.clients import ack_queue
from sessions import outbound
from sessions.journal import journal, packing, records, transaction
from sessions.journal.transaction import PendingCall
from tests.core.peers import V5, V311, Peer, publish, subscribe
from tests.core.stored import StoredWorld
from tests.sessions.store.memory_store import MemoryStore

EXPIRY = 0xFFFF_FFFF
CALLS_MAX = 400
# What flush calls, beside what Python does by itself.
CALLS: tuple[tuple[Any, str], ...] = (
    (packing, "pack"),
    (transaction.PublishTransaction, "pack"),
    (transaction.PublishTransaction, "pending"),
    (records, "encode_stored"),
    (records, "encode_delivered"),
    (records, "encode_retained"),
    (records, "encode_ids"),
    (records, "encode_sent"),
    (records, "encode_done"),
    (records, "seal"),
    (MemoryStore, "submit"),
    (journal.Journal, "_take_in"),
    (journal.Journal, "_hand_over"),
    (ack_queue.AckQueue, "release_ready"),
    (outbound.Outbound, "send_run"),
    (outbound.Outbound, "resend_window"),
)


class Fault:
    def __init__(self, nth: int, error: type[Exception], *, lasts: int = 1) -> None:
        self.nth = nth
        self.error = error
        self.lasts = lasts
        self.calls = 0
        self.is_armed = self.is_over = False

    def __call__(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.is_armed and not self.is_over:
                self.calls += 1
                if self.nth <= self.calls < self.nth + self.lasts:
                    raise self.error("a fault")
            return act(*args, **options)

        return call


@contextmanager
def faulty(fault: Fault) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, fault(getattr(owner, name)))
        yield


class Life(StoredWorld):
    """A broker whose mistakes are collected, and which tries again as the server does."""

    def __init__(self, fault: Fault, **settings: Any) -> None:
        self.bugs: list[Exception] = []
        self.fault = fault
        super().__init__(**settings)

    def _live(self) -> None:
        super()._live()
        self.broker.runtime.on_bug = lambda connection, data, error: self.bugs.append(error)
        self.journal.report_to(self.broker.runtime.log, self.bugs.append)
        self.journal.part_bytes_max = 200

    def pack(self) -> None:
        was, self.fault.is_armed = self.fault.is_armed, True
        for _ in range(50):
            try:
                self.journal.flush(self.now)
                break
            except Exception as error:
                self.bugs.append(error)
        else:
            raise AssertionError("it never comes to an end")
        self.settle()
        self.fault.is_armed = was

    def commit(self) -> None:
        self.pack()
        self.fault.is_armed = True
        self.store.commit()
        self.fault.is_armed = False
        self.settle()
        if len(self.journal) or self.journal.is_unfinished:
            self.commit()


def kept(world: StoredWorld, name: str, text: str, qos: int, version: int = V5) -> Peer:
    peer = world.client(name, version, clean=False, expiry=EXPIRY)
    peer.send(subscribe(version, text, qos=qos))
    return peer


def live(fault: Fault) -> tuple[Life, set[bytes], set[bytes], set[bytes]]:
    """What was published, acknowledged, and refused."""
    world = Life(fault)
    kept(world, "away", "a/#", 2, V311).drop()
    here = kept(world, "here", "a/#", 2)
    kept(world, "member", "$share/g/a/#", 1).drop()
    world.commit()
    here.take()
    publishers = [world.client(f"p{number}", clean=False, expiry=EXPIRY) for number in range(3)]
    old = world.client("old", V311, clean=False)
    sent: dict[tuple[str, int], bytes] = {}
    acked: set[bytes] = set()
    refused: set[bytes] = set()

    def listen(name: str, peer: Peer) -> None:
        for packet in peer.take():
            if isinstance(packet, Ack) and packet.packet_type in (PUBACK, PUBREC):
                for packet_id in packet.packet_ids:
                    (acked if packet.reason < 0x80 else refused).add(sent[name, packet_id])
                    if packet.packet_type == PUBREC and packet.reason < 0x80:
                        peer.send(encode_ack(PUBREL, packet_id))
            elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
                peer.send(*[encode_ack(PUBCOMP, i) for i in packet.packet_ids])
            elif isinstance(packet, Publish) and packet.qos:
                kind = PUBACK if packet.qos == 1 else PUBREC
                if name != "here" or packet.packet_ids()[0] % 2:
                    peer.send(*[encode_ack(kind, i) for i in packet.packet_ids()])

    for turn in range(3):
        for number, publisher in enumerate([*publishers, old]):
            name = "old" if publisher is old else f"p{number}"
            if publisher.is_closed:
                continue
            for qos in (1, 2):
                packet_id = 10 * turn + qos
                payload = b"%s %d at %d" % (name.encode(), packet_id, qos) + b"x" * (40 * turn)
                sent[name, packet_id] = payload
                publisher.send(
                    publish(
                        f"a/{name}", payload, qos=qos, packet_id=packet_id, retain=turn == 1,
                        version=publisher.version,
                    )
                )  # fmt: skip
        world.commit()
        for number, publisher in enumerate(publishers):
            listen(f"p{number}", publisher)
        listen("old", old)
        listen("here", here)
    world.commit()
    for number, publisher in enumerate(publishers):
        listen(f"p{number}", publisher)
    listen("old", old)
    world.commit()
    assert all(isinstance(p, Ack | Publish | Suback) for p in here.take())
    if old.is_closed:
        refused |= {payload for (name, _), payload in sent.items() if name == "old"} - acked
    for number, publisher in enumerate(publishers):
        if publisher.is_closed:  # an error of ours, whose price is this connection
            mine = {payload for (name, _), payload in sent.items() if name == f"p{number}"}
            refused |= mine - acked
    assert set(sent.values()) == acked | refused, set(sent.values()) - acked - refused
    return world, set(sent.values()), acked, refused


def check(world: Life, acked: set[bytes]) -> None:
    """After a crash, everybody who was away gets what was acknowledged."""
    world.fault.is_over = True
    world.restart()
    away = world.client("away", V311, clean=False)
    got: set[bytes] = set()
    for _ in range(60):
        world.page()
        world.commit()
        for packet in away.take():
            if isinstance(packet, Publish):
                got |= set(packet.payloads())
                kind = PUBACK if packet.qos == 1 else PUBREC
                away.send(*[encode_ack(kind, i) for i in packet.packet_ids()])
            elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
                away.send(*[encode_ack(PUBCOMP, i) for i in packet.packet_ids])
    assert acked <= got, acked - got


@pytest.mark.parametrize(
    ("error", "lasts", "step"),
    [
        (MemoryError, 1, 3),
        (struct.error, 1, 3),
        (ValueError, 3, 3),
        *(
            pytest.param(error, lasts, 1, marks=pytest.mark.slow)
            for error, lasts in (
                (MemoryError, 1), (struct.error, 1), (ValueError, 3),
                (MemoryError, 3), (ValueError, 1), (OverflowError, 1),
            )
        ),
    ],
)  # fmt: skip
def test_the_nth_call_fails(error: type[Exception], lasts: int, step: int) -> None:
    refusals = 0
    for nth in range(1, CALLS_MAX, step):
        fault = Fault(nth, error, lasts=lasts)
        with faulty(fault):
            world, _, acked, refused = live(fault)
            check(world, acked)
        refusals += len(refused)
        if fault.calls < nth:
            assert not refused and not world.bugs
            break
        assert world.bugs or refused or error is MemoryError, f"call {nth}: nobody noticed"
    else:
        pytest.fail("it never came to an end")
    assert nth > 60
    assert refusals or error is MemoryError


def test_one_that_never_fits_in_memory_is_refused_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are not kept waiting by it for ever."""
    world = StoredWorld()
    kept(world, "away", "a", 1).drop()
    world.commit()
    one, two = world.client("one"), world.client("two")
    pack = transaction.PublishTransaction.pack

    def fail(txn: transaction.PublishTransaction) -> list[bytes]:
        if txn.messages[0].payload == b"too much":
            raise MemoryError
        return pack(txn)

    monkeypatch.setattr(transaction.PublishTransaction, "pack", fail)
    one.send(publish("a", b"too much", qos=1, retain=True))
    two.send(publish("a", b"enough", qos=1))
    with pytest.raises(MemoryError):
        world.commit()
    world.now += journal.STUCK_S
    with pytest.raises(MemoryError):
        world.commit()
    world.commit()
    assert [(p.packet_ids, p.reason) for p in one.take()] == [([1], 0x80)]
    assert [(p.packet_ids, p.reason) for p in two.take()] == [([1], 0)]
    assert world.journal.refused == 1


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that no record can hold."""
    encode = records.encode_stored

    def fail(*args: Any) -> bytes:
        if args[-1][0] == b"poison":
            raise struct.error("argument out of range")
        return encode(*args)

    monkeypatch.setattr(records, "encode_stored", fail)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_cannot_be_packed_is_refused_alone(qos: int) -> None:
    world = StoredWorld()
    here = kept(world, "here", "a", 2)
    kept(world, "away", "a", 2).drop()
    world.commit()
    here.take()
    one = world.client("one", clean=False, expiry=EXPIRY)
    two, old = world.client("two"), world.client("old", V311)
    one.send(publish("a", b"poison", qos=qos, packet_id=7))
    two.send(publish("a", b"good", qos=qos, packet_id=7))
    old.send(publish("a", b"poison", qos=qos, packet_id=7, version=V311))
    world.commit()
    kind = PUBACK if qos == 1 else PUBREC
    answers = [(p.packet_type, p.packet_ids, p.reason) for p in [*one.take(), *two.take()]]
    assert answers == [(kind, [7], 0x80), (kind, [7], 0)]
    assert (old.take(), old.is_closed) == ([], True)
    assert world.journal.refused == 2
    if qos == 2:  # nobody gets what its publisher was told is not taken, and the id is free
        assert here.payloads() == [b"good"]
        one.send(publish("a", b"another", qos=2, packet_id=7))
        world.commit()
        assert [(p.packet_ids, p.reason) for p in one.take()] == [([7], 0)]
    world.restart()
    assert world.broker.backlog.queued_messages == 1 + (qos == 2)


@pytest.mark.usefixtures("poison")
def test_a_retained_message_that_cannot_be_packed_is_not_there_after_a_crash() -> None:
    world = StoredWorld()
    publisher = world.client("p")
    for payload in (b"good", b"poison"):
        publisher.send(publish("a", payload, qos=1, retain=True))
        world.commit()
    assert [p.reason for p in publisher.take()] == [0x10, 0x80]
    world.commit()
    world.restart()
    assert not len(world.broker.retained)


def test_a_large_group_is_committed_in_parts_and_as_one() -> None:
    world = StoredWorld()
    kept(world, "away", "a", 1).drop()
    world.commit()
    world.journal.part_bytes_max = 1000
    before = world.journal.number
    publisher = world.client("p")
    publisher.send(*[publish("a", bytes(100), qos=1, packet_id=i) for i in range(1, 101)])
    for packet_id in range(101, 151):
        publisher.send(publish("a", bytes(packet_id), qos=1, packet_id=packet_id))
    world.commit()
    assert world.journal.number > before + 5
    assert sum(len(p.packet_ids) for p in publisher.take()) == 150
    world.restart()
    assert world.broker.backlog.queued_messages == 150


def test_one_that_fails_when_it_is_released_does_not_keep_the_others() -> None:
    world = StoredWorld()
    kept(world, "away", "a", 1).drop()
    world.commit()
    bugs: list[Exception] = []
    world.journal.report_to(world.broker.runtime.log, bugs.append)

    def fail(now: float) -> None:
        raise ZeroDivisionError

    publisher = world.client("p")
    for packet_id in (1, 2, 3):
        world.journal.wait(PendingCall(fail))
        publisher.send(publish("a", b"x", qos=1, packet_id=packet_id))
    world.commit()
    assert [i for p in publisher.take() for i in p.packet_ids] == [1, 2, 3]
    assert len(bugs) == 3

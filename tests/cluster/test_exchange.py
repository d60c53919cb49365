"""A number and the others: what a batch needs before its messages are acknowledged."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

import pytest

from mqtt_broker.cluster.digest import STORED
from mqtt_broker.cluster.exchange import HEARD_POLL_S, POLL_S, Batch, Exchange
from mqtt_broker.cluster.frames import bodies, layout
from mqtt_broker.cluster.frames.bodies import Hint, decode
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.statements import Expect, Insert, Stale, Statement
from mqtt_broker.cluster.tables import OUTBOX
from tests.cluster.steps import play

WRITES = Writes(1, "e", 1)


def versions(filters: int = 5) -> list[dict[str, Any]]:
    return [{"number": 2, "epoch": "e2", "filters": filters, "filters_from": 0}]


class Bus:
    """The frames that were sent: kind, number and body."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, Any]] = []
        self.is_up = True

    def send(self, kind: int, to: int, body: bytes) -> bool:
        if self.is_up:
            self.frames.append((kind, to, decode(kind, memoryview(body))))
        return self.is_up

    def bodies(self, kind: int) -> list[Any]:
        return [body for one, _, body in self.frames if one == kind]


def exchange(*texts: str, bus: Bus | None = None) -> Exchange:
    """An exchange of number 1 that is open, and knows these filters of number 2."""
    found = Exchange(1, "e", (bus or Bus()).send)
    play(found.load(), [[[], [], [], [], []]])
    rows = [{"number": 2, "filter": text, "reach": STORED, "group": 1} for text in texts]
    found.digest.on_rows(versions(), [], versions())
    found.digest.on_rows(versions(), rows, versions())
    found.filters.write(1)
    found.filters.on_committed(1)
    return found


def name(transaction: Any) -> str:
    if transaction is None:
        return ""
    assert isinstance(transaction, GeneratorType)
    return transaction.__name__


def statements(found: Exchange, batch: Batch) -> list[Statement]:
    batches, _ = play(found.commit(WRITES, 2, batch), [[]])
    return batches[0]


def batch(*topics: str, blob: bytes = b"", received: list[Parcel] | None = None) -> Batch:
    return Batch(blob, [(topic, b"m") for topic in topics], received or [])


def test_a_group_is_compared_unless_its_filters_were_just_read() -> None:
    found, one = exchange("a"), batch("a")
    sent = statements(found, one)
    assert any(isinstance(each, Expect) for each in sent)
    assert sum(isinstance(each, Insert) and each.table == OUTBOX for each in sent) == 1
    one.on_filters_read()
    assert not any(isinstance(each, Expect) for each in statements(found, one))


def test_a_refused_group_is_routed_again() -> None:
    found, one = exchange(), batch("a", blob=b"x")
    transaction = found.commit(WRITES, 2, one)
    next(transaction)
    with pytest.raises(Stale):
        transaction.throw(Stale("no"))
    reads = found.read(one, 0.0)
    assert reads is not None and name(reads) == "_learn" and one.parcels == []
    row = {"number": 2, "filter": "a", "reach": STORED, "group": 6}
    play(reads, [[versions(6), [row], versions(6), []]])
    assert one.has_read
    statements(found, one)
    assert [parcel.receiver for parcel in one.parcels] == [2]


def test_what_matches_nowhere_is_compared_alone() -> None:
    found, one = exchange(), batch("a")
    found.route(one)
    assert not found.is_group(one)
    reads = found.read(one, 0.0)
    assert reads is not None and name(reads) == "_compare"
    play(reads, [[[], []]])
    assert one.has_read and name(found.read(one, 0.0)) == "read_parcels"


@pytest.mark.parametrize(
    "one", [batch("a"), batch("b", blob=b"x"), batch(received=[Parcel(2, 1, 1, 0, [b"m"])])]
)
def test_what_has_something_to_write_is_a_group(one: Batch) -> None:
    found = exchange("a")
    found.route(one)
    assert found.is_group(one)


def test_a_change_of_filters_is_a_group() -> None:
    found, one = exchange(), batch("b")
    found.filters.set("x", STORED)
    assert found.is_group(one)
    statements(found, one)
    found.on_committed(2, one)
    assert not found.is_group(one)
    assert (1, "e", 2) in found.digest.expectation().rows


def test_the_outbox_is_polled_and_read_when_something_is_missing() -> None:
    found = exchange()
    assert name(found.read(None, 0.0)) == "read_parcels"
    assert found.read(None, POLL_S / 2) is None
    found.inbox.on_parcel(Parcel(2, 1, 9, 0, [b"m"]))
    reads = found.read(None, POLL_S / 2)
    assert reads is not None
    play(reads, [[[Parcel(2, 1, 1, 0, [b"m"]).row()], []]])
    assert found.read(None, POLL_S / 2) is None and len(found.inbox.take()) == 1
    assert name(found.read(None, 2 * POLL_S)) == "read_parcels"


def test_a_batch_is_done_before_the_outbox_is_read_again() -> None:
    found, one = exchange(), batch(blob=b"x")
    assert name(found.read(one, 0.0)) == "read_parcels"
    found.inbox.missing.add(2)
    assert found.read(one, POLL_S) is None
    found.on_committed(2, one)
    assert name(found.read(one, POLL_S)) == "read_parcels"


def frame(kind: int, body: Any, epoch: str = "e2") -> Frame:
    return Frame(kind, 2, epoch, 1, body)


def committed(found: Exchange, one: Batch, group: int = 2) -> None:
    play(found.commit(WRITES, group, one), [[]])
    found.on_committed(group, one)


def test_parcels_are_sent_when_they_are_committed() -> None:
    bus = Bus()
    found, one = exchange("a", bus=bus), batch("a")
    play(found.commit(WRITES, 2, one), [[]])
    assert not bus.frames
    found.on_committed(2, one)
    [sent] = bus.bodies(layout.OUTBOX)
    assert (sent.turn, sent.filters, sent.first, sent.entries) == (1, 5, 1, [b"m"])


def test_a_message_that_no_frame_can_hold_is_not_sent() -> None:
    bus = Bus()
    found = exchange("a", bus=bus)
    committed(found, Batch(b"", [("a", bytes(layout.FRAME_BYTES_MAX))], []))
    assert not bus.frames
    found.tell(0.0)
    assert bus.bodies(layout.HINT)[0].outbox == 1


def test_a_parcel_that_came_over_the_bus_is_received() -> None:
    found = exchange()
    assert found.on_frame(frame(layout.OUTBOX, bodies.Outbox(9, 5, 1, [b"x"])), 0.0) == []
    [parcel] = found.inbox.take()
    assert (parcel.sender, parcel.receiver, parcel.filters) == (2, 1, 5)
    assert (parcel.epoch, parcel.turn) == ("e2", 9)


def refused(found: Exchange, one: Batch) -> list[Any]:
    """Let the commit of a batch fail; return what it expected of the outbox."""
    transaction = found.commit(WRITES, 2, one)
    expected = [each for each in next(transaction) if isinstance(each, Expect)]
    with pytest.raises(Stale):
        transaction.throw(Stale("no"))
    return [row for each in expected if each.table == OUTBOX for row in each.rows]


def test_parcels_that_are_gone_are_taken_out_of_the_batch_and_read() -> None:
    found = exchange()
    found.on_frame(frame(layout.OUTBOX, bodies.Outbox(9, 5, 1, [b"x"])), 0.0)
    one = batch(blob=b"x", received=found.inbox.take())
    found.on_frame(frame(layout.OUTBOX, bodies.Outbox(10, 5, 2, [b"y"])), 0.0)
    assert refused(found, one) == [(1, 1, "e2", 9)]
    assert found.digest.is_behind and one.received  # the filters may be the reason
    one.on_filters_read()
    refused(found, one)
    assert one.is_stale and found.inbox.missing == {2}
    assert not one.received and not found.inbox.take()
    one.set_blob(b"")
    assert not any(isinstance(each, Expect) for each in statements(found, one))


def test_a_number_that_is_heard_is_read_seldom_and_when_it_says_so() -> None:
    found = exchange()
    assert name(found.read(None, 0.0)) == "read_parcels"
    for now in (0.1, 1.1, 2.1):
        found.on_frame(frame(layout.HINT, Hint(1, 5, 0)), now)
        assert found.read(None, now + POLL_S) is None
    found.on_frame(frame(layout.HINT, Hint(1, 5, 0, outbox=1)), 3.0)
    reads = found.read(None, 3.0)
    assert reads is not None and name(reads) == "read_parcels"
    play(reads, [[[], []]])
    assert found.read(None, 3.0 + POLL_S) is None
    found.on_frame(frame(layout.HINT, Hint(1, 5, 0)), 8.0)
    assert name(found.read(None, 3.0 + HEARD_POLL_S)) == "read_parcels"


def test_a_hint_of_other_filters_has_them_read() -> None:
    found = exchange()
    found.on_frame(frame(layout.HINT, Hint(1, 6, 0)), 0.0)
    assert name(found.read(None, 0.0)) == "_learn"


def test_messages_at_qos_0_leave_with_the_turn_and_are_counted_when_they_cannot() -> None:
    bus = Bus()
    found = exchange("a", bus=bus)
    for topic in ("a", "b", "a"):
        found.publish(topic, topic.encode())
    assert not bus.frames
    found.flush()
    assert bus.frames == [(layout.MESSAGES, 2, [b"a", b"a"])]
    assert found.on_frame(frame(layout.MESSAGES, [b"x", b"y"]), 0.0) == [b"x", b"y"]
    bus.is_up = False
    found.publish("a", b"lost")
    found.flush()
    assert found.messages.dropped == 1


def test_a_hint_says_where_the_number_stands() -> None:
    bus = Bus()
    found, one = exchange("a", bus=bus), batch("a", "a", blob=b"x")
    found.filters.set("mine", STORED)
    committed(found, one, 7)
    found.tell(0.0)
    [hint] = bus.bodies(layout.HINT)
    assert (hint.committed, hint.filters, hint.outbox, hint.known) == (7, 7, 2, 5)

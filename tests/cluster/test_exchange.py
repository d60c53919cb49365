"""A number and the others: what a batch needs before its messages are acknowledged."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

import pytest

from mqtt_broker.cluster.digest import STORED
from mqtt_broker.cluster.exchange import POLL_S, Batch, Exchange
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.statements import Expect, Insert, Stale, Statement
from mqtt_broker.cluster.tables import OUTBOX
from tests.cluster.steps import play

WRITES = Writes(1, "e", 1)


def versions(filters: int = 5) -> list[dict[str, Any]]:
    return [{"number": 2, "epoch": "e2", "filters": filters, "filters_from": 0}]


def exchange(*texts: str) -> Exchange:
    """An exchange of number 1 that is open, and knows these filters of number 2."""
    found = Exchange(1, "e")
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
    play(reads, [[versions(6), [row], versions(6)], [[]]])
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
    assert name(found.read(None, POLL_S)) == "read_parcels"


def test_a_batch_is_done_before_the_outbox_is_read_again() -> None:
    found, one = exchange(), batch(blob=b"x")
    assert name(found.read(one, 0.0)) == "read_parcels"
    found.inbox.missing.add(2)
    assert found.read(one, POLL_S) is None
    found.on_committed(2, one)
    assert name(found.read(one, POLL_S)) == "read_parcels"

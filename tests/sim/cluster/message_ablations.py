"""Rules for messages that cross, taken out."""

from __future__ import annotations

from typing import Any

from mqtt_broker.cluster import exchange
from mqtt_broker.cluster.digest import NOTHING, Digest
from mqtt_broker.cluster.exchange import Batch, Exchange
from mqtt_broker.cluster.inbox import Inbox
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Outbox, Parcel, parcel_of, write_parcels
from mqtt_broker.cluster.own_filters import OwnFilters
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    Expect,
    Insert,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import OUTBOX, PLACES, VERSIONS
from tests.sim.cluster import core, messages
from tests.sim.cluster.ablation import Replace, ablation


def register() -> None:
    """Import this module, and the rules are registered."""


# Filters, and acknowledgements that nobody is missed by.


@ablation(messages.play)
def compare_with_the_group() -> list[Replace]:
    """The transaction of a group compares the filters by which it was routed."""

    def commit(self: Exchange, writes: Writes, group: int, batch: Batch) -> Transaction[None]:
        batch.on_filters_read()
        return original(self, writes, group, batch)

    original = Exchange.commit
    return [(Exchange, "commit", commit)]


@ablation(messages.play)
def compare_without_a_group() -> list[Replace]:
    """A message that matched nowhere is acknowledged after a comparison, too."""

    def _compare(self: Exchange, batch: Batch) -> Transaction[None]:
        batch.on_filters_read()
        yield [Commit()]

    return [(Exchange, "_compare", _compare)]


@ablation(messages.play)
def read_after_publish() -> list[Replace]:
    """The comparison is sent after the PUBLISH came, not before."""

    def read(self: Exchange, batch: Batch | None, now: float) -> Transaction[None] | None:
        transaction = original(self, batch, now)
        if transaction is None and batch is not None and not self.digest.is_behind:
            batch.on_filters_read()  # an earlier read has to do
        return transaction

    original = Exchange.read
    return [(Exchange, "read", read)]


@ablation(messages.play)
def route_again() -> list[Replace]:
    """A batch is routed again by filters that are read after it was refused."""

    def route(self: Exchange, batch: Batch) -> None:
        if not batch.has_read or not batch.parcels:
            original(self, batch)

    original = Exchange.route
    return [(Exchange, "route", route)]


@ablation(messages.play)
def retract() -> list[Replace]:
    """Routing again takes back what is not wanted any more."""

    def route(self: Exchange, batch: Batch) -> None:
        before = {parcel.receiver: parcel for parcel in batch.parcels}
        original(self, batch)
        now = {parcel.receiver: parcel for parcel in batch.parcels}
        for receiver, parcel in before.items():
            if receiver not in now and receiver in self.digest.numbers:
                stamp = self.digest.version(receiver)
                kept = Parcel(parcel.sender, receiver, parcel.first, stamp, parcel.messages)
                batch.parcels.append(kept)

    original = Exchange.route
    return [(Exchange, "route", route)]


@ablation(messages.play)
def filters_by_epoch() -> list[Replace]:
    """Filters are compared by epoch and version: a version may be lost, and given again."""

    def expectation(self: Digest) -> Expect:
        found = original(self)
        rows = [(number, version) for number, _, version in found.rows]
        return Expect(VERSIONS, ("number", "filters"), rows)

    def has_changes_since(self: Digest, number: int, before: Any, after: Any) -> bool:
        known = self._numbers.get(number)
        if known is None:
            return False
        known.epoch = after["epoch"]
        return known.version == NOTHING or after["filters_from"] <= known.version

    original = Digest.expectation
    return [
        (Digest, "expectation", expectation),
        (Digest, "has_changes_since", has_changes_since),
    ]


@ablation(messages.play)
def changes_are_all_there() -> list[Replace]:
    """A digest from before rows were deleted is read whole."""

    def has_changes_since(self: Digest, number: int, before: Any, after: Any) -> bool:
        return original(self, number, before, {**after, "filters_from": NOTHING})

    original = Digest.has_changes_since
    return [(Digest, "has_changes_since", has_changes_since)]


@ablation(messages.play)
def version_with_the_filters() -> list[Replace]:
    """The version of filters is changed by the transaction that changes them."""

    def write(self: Any, group: int) -> list[Statement]:
        statements = original(self, group)
        return statements[:-1] if self._is_open else statements

    original = OwnFilters.write
    return [(OwnFilters, "write", write)]


@ablation(messages.play)
def versions_are_read_first() -> list[Replace]:
    """Filters are at least of the version that was read before them."""

    def reads(self: Digest) -> list[Statement]:
        select, newer, again = original(self)
        return [newer, select, again]

    def on_rows(self: Digest, changed: Any, before: Any, after: Any) -> bool:
        return original_on_rows(self, before, changed, after)

    original, original_on_rows = Digest.reads, Digest.on_rows
    return [(Digest, "reads", reads), (Digest, "on_rows", on_rows)]


@ablation(messages.play)
def suback_after_commit() -> list[Replace]:
    """SUBACK follows the commit by which the others can see the filter."""

    def subscribe(self: core.Core, session: str, text: str, reply: core.Reply) -> None:
        original(self, session, text, reply)
        reply()

    original = core.Core.subscribe
    return [(core.Core, "subscribe", subscribe)]


# The outbox, and places.


@ablation(messages.play)
def outbox_in_the_group() -> list[Replace]:
    """Messages for other numbers are committed with the group."""

    def commit(self: Exchange, writes: Writes, group: int, batch: Batch) -> Transaction[None]:
        with_parcels = original(self, writes, group, batch)
        statements = next(with_parcels)
        parcels = write_parcels(batch.parcels)
        rest = [one for one in statements if not (isinstance(one, Insert) and one.table == OUTBOX)]
        yield rest
        if parcels:
            yield [*parcels, Commit()]

    original = Exchange.commit
    return [(Exchange, "commit", commit)]


@ablation(messages.play)
def place_in_own_group() -> list[Replace]:
    """A place moves in the transaction of the group that holds the messages."""

    def read_parcels(inbox: Inbox, number: int, senders: list[int]) -> Transaction[None]:
        reads: list[Statement] = [
            Select(OUTBOX, {"receiver": number, "sender": sender}) for sender in senders
        ]
        found = yield [*reads, Select(PLACES)]
        for sender, rows in zip(senders, found, strict=False):
            inbox.on_rows(sender, rows)
        parcels = [parcel_of(row) for rows in found[: len(senders)] for row in rows]
        yield [*write(inbox, parcels), Commit()]

    write = Inbox.write
    return [
        (exchange, "read_parcels", read_parcels),
        (Inbox, "write", lambda self, parcels: []),
    ]


@ablation(messages.play)
def numbers_go_on() -> list[Replace]:
    """The next host of a sender gives no number that was given before."""

    def on_loaded(self: Outbox, waiting: Any, places: Any) -> None:
        original(self, waiting, [])

    original = Outbox.on_loaded
    return [(Outbox, "on_loaded", on_loaded)]


@ablation(messages.play)
def read_rows_are_deleted() -> list[Replace]:
    """Rows that were read are deleted from the outbox."""

    def write(self: Inbox, parcels: list[Parcel]) -> list[Statement]:
        return [one for one in original(self, parcels) if not isinstance(one, Delete)]

    original = Inbox.write
    return [(Inbox, "write", write)]

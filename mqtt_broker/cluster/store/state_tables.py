"""The state of a number's broker in the tables: folds, loads and pages as statements.

`fold` writes what `sessions.store.table_updates` writes for a single broker, from the same net
changes. Only the statements differ: here they are known before the first of them is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mqtt_broker.cluster.statements import Named, Row, Rows, Statement
from sessions.journal.net_changes import Changes, PacketIdChanges
from sessions.journal.number_range import range_of
from sessions.journal.records import Stored
from sessions.journal.rows import DeliveryRow, MessageRow
from sessions.journal.snapshot import Snapshot
from sessions.journal.value_ranges import count
from sessions.store import schema
from sessions.store.checksums import checksums
from sessions.store.state_loader import (
    backlog,
    both_rows,
    message_row,
    session_row,
    share_row,
    subscription_row,
)
from sessions.store.table_updates import session_values, subscription_values

_ENDS_WITH = ("sessions", "shares", "subscriptions", "releases", "received")
_SESSION = schema.names(schema.sessions)
_SUBSCRIPTION = schema.names(schema.subscriptions)
_DELIVERY = (
    "sid", "n", "mid", "count", "qos", "retain", "subscription_ids", "share", "packet_id", "size",
)  # fmt: skip
_MESSAGES = (
    "mid", "count", "topic", "qos", "retain", "section", "payloads", "size", "publisher",
    "received_at", "expiry_interval", "refs", "crcs",
)  # fmt: skip
_SCOPE = ("sessions", "subscriptions", "windows", "lent", "backlogs", "releases", "received")
_OF_NUMBER = ("shares", "retained", "newest")


def fold(changes: Changes) -> list[Statement]:
    """Return the statements that write a net change."""
    assert not (changes.streams or changes.streams_gone), "no number has streams"
    new, old = changes.split(changes.references([]))
    found = [
        # References are added before others are dropped: no message goes between.
        _named("refer", ("first", "last", "step"), [(mid, end - 1, by) for mid, end, by in old]),
        _named("drop_deliveries", ("sid", "first", "last"), _finished(changes)),
        _named("end_deliveries", ("sid",), [(sid,) for sid in sorted(changes.ended)]),
        _named("unretain", ("mid",), [(mid,) for mid in sorted(changes.unretained)]),
    ]
    for table in _ENDS_WITH:
        found.append(_named(f"end_{table}", ("sid",), [(sid,) for sid in sorted(changes.ended)]))
    found.append(_store(new))
    found.append(_named("deliver", _DELIVERY, _deliveries(changes)))
    found.append(_named("number_sent", ("sid", "n", "packet_id"), _sent(changes)))
    found += _packet_ids("releases", changes.releases)
    found += _packet_ids("received", changes.received)
    gone = [
        (sid, schema.digest(text))
        for sid, filters in changes.subscriptions.items()
        for text, row in filters.items()
        if row is None
    ]
    found.append(_named("unsubscribe", ("sid", "filter_digest"), gone))
    subscribed = [
        subscription_values(row)
        for filters in changes.subscriptions.values()
        for row in filters.values()
        if row is not None
    ]
    found.append(_named("write_subscriptions", _SUBSCRIPTION, subscribed))
    rows = [session_values(row) for row in changes.sessions.values()]
    found.append(_named("write_sessions", _SESSION, rows))
    shares = [(row.sid, row.filter) for row in changes.shares.values()]
    found.append(_named("write_shares", ("sid", "filter"), shares))
    found.append(_named("retain", ("mid",), [(mid,) for mid in sorted(changes.retained)]))
    found.append(_named("leave", ("sid", "base"), list(changes.left.items())))
    return [one for one in found if one is not None]


def _named(name: str, columns: tuple[str, ...], rows: list[Any]) -> Named | None:
    """Return a statement that takes the columns of rows as lists; None: there are no rows."""
    if not rows:
        return None
    return Named(name, dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))


def _finished(changes: Changes) -> list[tuple[int, int, int]]:
    return [
        (sid, n, end - 1)
        for sid, deliveries in changes.deliveries.items()
        for n, end in deliveries.finished
    ]


def _store(new: list[tuple[Stored, int, int, int]]) -> Named | None:
    """Store messages: those of one record are a row, which the database divides."""
    rows = []
    for record, first, end, references in new:
        payloads = record.payloads[first:end]
        rows.append(
            (
                record.mid + first, end - first, record.topic, record.qos, record.retain,
                record.section, b"".join(payloads), len(payloads[0]), record.publisher,
                record.received_at, record.expiry_interval, references,
                checksums(record.topic, record.section, payloads),
            )
        )  # fmt: skip
    return _named("store", _MESSAGES, rows)


def _deliveries(changes: Changes) -> list[tuple[Any, ...]]:
    """Return runs of deliveries; those with packet ids one by one."""
    found: list[tuple[Any, ...]] = []
    for sid, deliveries in changes.deliveries.items():
        for run in deliveries.runs:
            form = run.form
            about = (
                form.qos, form.retain, ",".join(map(str, form.subscription_ids)), form.share,
            )  # fmt: skip
            if not form.packet_ids and not deliveries.sent:
                found.append((sid, run.n, run.mid, run.end - run.n, *about, 0, form.size))
                continue
            for n in range(run.n, run.end):
                packet_id = deliveries.packet_id(run, n)
                found.append((sid, n, run.mid + n - run.n, 1, *about, packet_id, form.size))
    return found


def _sent(changes: Changes) -> list[tuple[int, int, int]]:
    return [
        (sid, n, packet_id)
        for sid, deliveries in changes.deliveries.items()
        for n, packet_id in deliveries.sent_before()
    ]


def _packet_ids(table: str, spaces: dict[int, PacketIdChanges]) -> list[Named | None]:
    closed = [(sid, one) for sid, space in spaces.items() for one in sorted(space.closed)]
    opened = [
        (sid, one, place) for sid, space in spaces.items() for one, place in space.opened.items()
    ]
    return [
        _named(f"close_{table}", ("sid", "packet_id"), closed),
        _named(f"open_{table}", ("sid", "packet_id", "place"), opened),
    ]


# Reading.


def select_number(number: int) -> list[Statement]:
    """Return the statements that read all that a number has."""
    own = range_of(number)
    values: Row = {"number": number, "first": own.first, "end": own.end}
    return [Named(name, values) for name in (*_SCOPE, *_OF_NUMBER)]


def select_clients(number: int, clients: list[str]) -> list[Statement]:
    """Return the statements that read the sessions of clients, if the number owns them."""
    return [Named(f"{name}_of", {"number": number, "clients": clients}) for name in _SCOPE]


def select_page(sid: int, after: int, messages_max: int, bytes_max: int) -> Statement:
    """Return the statement that reads queued deliveries after a place."""
    values: Row = {
        "sid": sid, "after": after, "messages_max": messages_max, "bytes_max": bytes_max,
    }  # fmt: skip
    return Named("page", values)


class Loaded:
    """Rows that were read, as a snapshot; and the next place of a packet id in the tables."""

    def __init__(self, found: list[Rows], number: int) -> None:
        sessions, subscriptions, windows, lent, backlogs, releases, received = found[: len(_SCOPE)]
        # What belongs to the number itself, if it was read.
        shares, retained, newest = found[len(_SCOPE) :] or ([], [], [{"mid": 0, "sid": 0}])
        own = range_of(number)
        healed: dict[str, int] = {}
        self.next_place = 1 + max([row["place"] for row in (*releases, *received)], default=0)
        self.snapshot = Snapshot(
            sessions=_made(sessions, session_row, healed),
            subscriptions=_made(subscriptions, subscription_row, healed),
            shares=_made(shares, share_row, healed),
            windows=_made(windows, both_rows, healed),
            releases=_by_session(releases),
            received=_by_session(received),
            backlogs=_made(backlogs, backlog, healed),
            retained=_made(retained, message_row, healed),
            streams=[],
            cursors=[],
            stream_ends={},
            last_number=0,
            last_mid=own.newest(newest[0]["mid"]),
            last_sid=own.newest(newest[0]["sid"]),
            alive_at=0.0,  # whoever loads lets the delays of connected clients begin
            healed=healed,
            shared=_made(lent, both_rows, healed),
        )


def _made(rows: Rows, make: Any, healed: dict[str, int]) -> list[Any]:
    found = []
    for row in rows:
        try:
            found.append(make(list(row.values())))
        except (TypeError, ValueError):
            count(healed, "row with values of wrong types")
    return found


def _by_session(rows: Iterable[Row]) -> list[tuple[int, list[Any]]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row["sid"], []).append(row["packet_id"])
    return list(found.items())


def page_of(rows: Rows) -> list[tuple[DeliveryRow, MessageRow]]:
    """Return a page as rows; those with values of wrong types are left out."""
    return _made(rows, both_rows, {})

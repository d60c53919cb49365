"""Restore the broker from the store: sessions, subscriptions, windows, retained messages.

    restore   everything but what waits, which is paged in when it is wanted
    items_of  a page of what waits, as a session's queue takes it

Time went on while the broker was away. A client that was connected then lost its connection
some time after the last sign of life: its will and its session's expiry count from the latest
moment that can have been, and what came due meanwhile happens now.

Nothing that was read is believed: values that cannot be are put right
(`sessions.journal.value_ranges`), and of rows that contradict each other one stands, by the rules
in docs/DURABILITY.md. What goes is taken out of the store as well, counted, and said in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBLISH, WILL
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, decode_properties
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients import wills
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.topics.names import filter_problem, split_share
from qos import PACKET_ID_MAX
from sessions.journal.rows import DeliveryRow, MessageRow, SessionRow, SubscriptionRow, WillRow
from sessions.journal.snapshot import Snapshot
from sessions.journal.transaction import Delivery
from sessions.journal.value_ranges import count, listed, valid_rows
from sessions.messages.message import DeliveryOptions, Envelope, Message
from sessions.session import Session, Subscription

# A broker that lives has shown it since, even where the disk is slow: see `Snapshot.alive_at`.
SIGN_OF_LIFE_S: Final = 60.0


def restore(broker: Broker, snapshot: Snapshot, now: float) -> None:
    """Give a broker what the store has: all of it at the start, or sessions that come to it."""
    _restore(broker.state, snapshot, now)


def _restore(broker: BrokerState, snapshot: Snapshot, now: float) -> None:
    sessions: dict[int, Session] = {}
    online: dict[int, Session] = {}
    repaired = broker.runtime.repaired
    before = sum(repaired.values())
    altered = snapshot.altered
    gone: set[int] = set()  # numbers in the store that belong to nothing any more
    broker.work.lift()  # what came due is done before anybody comes
    for row in valid_rows(snapshot.sessions, repaired, altered):
        older = broker.sessions.get(row.client_id)
        if older is not None:
            count(repaired, "session of a client that has a newer one")
            online.pop(older.session_number, None)
            del sessions[older.session_number]
            broker.sessions.remove(older, now)
        session = sessions[row.sid] = _session(broker, row)
        if row.is_online:
            online[row.sid] = session
    for found in valid_rows(snapshot.subscriptions, repaired):
        if found.sid in sessions:
            _subscribe(broker, sessions[found.sid], found, now)
        else:
            count(repaired, "subscription without its session")
            gone.add(found.sid)
    _restore_messages(broker, snapshot, sessions, gone, now)
    waiting = _waiting_shared(broker, snapshot, sessions, gone)
    for message_row in valid_rows(snapshot.retained, repaired, altered):
        _restore_retained(broker, message_row)
    _forget(broker, gone - sessions.keys())
    left_at = min(snapshot.alive_at + SIGN_OF_LIFE_S, now) if snapshot.alive_at else now
    if not left_at > 0:  # or no number at all
        left_at = now
    for session in online.values():
        _lost(session, left_at)
        left = broker.subscriptions.on_offline(session, now)  # as if it lost its connection here
        assert left is None, "there is time for all of it"
    for session, item in waiting:
        _hand_back(broker, session, item, now)
    for session in sessions.values():
        _catch_up(broker, session, now)
    for session in online.values():
        session.record()
    for what, number in snapshot.healed.items():
        count(repaired, what, number)
    if sum(repaired.values()) > before:
        said = "; ".join(f"{number} {what}" for what, number in sorted(repaired.items()))
        if altered:
            said += f" ({listed(altered)})"
        broker.log(f"store: repaired contradictions: {said}")


def _forget(broker: BrokerState, sids: set[int]) -> None:
    journal = broker.journal
    if journal is not None:
        for sid in sorted(sids):
            journal.on_end(sid)


def _subscribe(broker: BrokerState, session: Session, row: SubscriptionRow, now: float) -> None:
    """Put a subscription in force, or take it out of the store when its filter is invalid."""
    subscription = Subscription(
        session,
        row.filter,
        row.qos,
        row.no_local,
        row.retain_as_published,
        row.retain_handling,
        row.identifier,
    )
    try:
        if not _is_filter(row.filter):
            raise ValueError("not a Topic Filter")
        broker.subscriptions.put_in_force(subscription, now)
    except Exception as error:  # whatever it is, the broker starts without it
        count(broker.runtime.repaired, "subscription with an invalid Topic Filter")
        broker.log(f"{session.client_id}: subscription {row.filter[:80]!r} is dropped: {error}")
        session.subscriptions.pop(row.filter, None)
        if broker.journal is not None:
            broker.journal.on_unsubscribed(row.sid, row.filter)


def _is_filter(text: str) -> bool:
    shared = split_share(text)
    if shared is not None:
        name, text = shared
        if not name or "#" in name or "+" in name:
            return False
    return filter_problem(text) is None


def _restore_retained(broker: BrokerState, row: MessageRow) -> None:
    """Keep the newest retained message of a topic."""
    message = _message(broker, row)
    older = broker.retained.restore(message)
    journal = broker.journal
    if older is not None:
        count(broker.runtime.repaired, "retained message of a topic that has a newer one")
        if journal is not None:
            journal.on_retained_gone(older.message_number)
    if journal is not None:
        journal.skip_numbers(message=row.mid)


def _session(broker: BrokerState, row: SessionRow) -> Session:
    session = broker.sessions.create(row.client_id, row.created_at)
    delay = 0
    if row.will is not None:
        delay = _properties(broker, row.will).number(prop.WILL_DELAY_INTERVAL)
    session.restore(row, delay)
    if broker.journal is not None:
        broker.journal.skip_numbers(session=row.sid)
    return session


def _properties(broker: BrokerState, row: MessageRow | WillRow) -> Properties:
    """Decode its section, which was checked when it came, as a PUBLISH's or as a will's.

    One that says nothing after all is as good as none.
    """
    section = row.section
    if not section:
        return NO_PROPERTIES
    for packet in (PUBLISH, WILL):
        with suppress(Violation):
            properties, end = decode_properties(section, 0, len(section), packet)
            if end == len(section):
                return properties
    count(broker.runtime.repaired, "message or will with invalid properties")
    row.section = b""
    return NO_PROPERTIES


def _message(broker: BrokerState, row: MessageRow) -> Message:
    properties = _properties(broker, row)
    envelope = Envelope(
        row.topic,
        row.qos,
        row.retain,
        properties,
        row.section,
        len(row.payload),
        row.publisher,
        row.received_at,
    )
    envelope.forget_properties()
    message = Message(envelope, row.payload)
    message.message_number = row.mid
    return message


def _restore_messages(
    broker: BrokerState,
    snapshot: Snapshot,
    sessions: dict[int, Session],
    gone: set[int],
    now: float,
) -> None:
    repaired = broker.runtime.repaired
    again: list[tuple[Session, Delivery, int]] = []  # whose packet id cannot be
    for delivery, message_row in _pairs(broker, snapshot.windows, snapshot.altered):
        owner = sessions.get(delivery.sid)
        if owner is None:
            count(repaired, "message in flight without a session")
            gone.add(delivery.sid)
            continue
        item = _item(broker, delivery, message_row)
        qos = delivery.qos or 1
        if not delivery.packet_id or delivery.packet_id in owner.outbound.window.unacked:
            again.append((owner, item, qos))
        else:
            owner.outbound.window.restore(delivery.packet_id, item, qos)
        owner.outbound.restore_place(delivery.n)
    _restore_ids(broker, snapshot, sessions, gone)
    for owner, item, qos in again:
        count(repaired, "message in flight with an invalid packet id")
        owner.outbound.renumber(item, qos)
    shares, abandoned = _shares(broker, snapshot, sessions, gone)
    for backlog in valid_rows(snapshot.backlogs, repaired):
        name = shares.pop(backlog.sid, None)
        owner = sessions.get(backlog.sid)
        if name is not None and backlog.sid not in gone:
            broker.subscriptions.groups[name].restore(
                backlog.sid, backlog.messages, backlog.bytes, backlog.n_last
            )
        elif owner is not None:
            owner.outbound.restore_queue(backlog.messages, backlog.bytes, backlog.n_last)
        else:
            if backlog.sid in abandoned:
                broker.backlog.drop("no_member", backlog.messages)
            elif backlog.sid not in gone:
                count(repaired, "queue without a session")
            gone.add(backlog.sid)
    for sid, name in shares.items():
        if sid not in gone:
            broker.subscriptions.groups[name].restore(sid, 0, 0, 0)


def _restore_ids(
    broker: BrokerState, snapshot: Snapshot, sessions: dict[int, Session], gone: set[int]
) -> None:
    """Restore packet ids without messages: those released, and those that came in."""
    for rows, what in ((snapshot.releases, "released"), (snapshot.received, "received")):
        for sid, packet_ids in rows:
            owner = sessions.get(sid)
            if owner is None:
                count(broker.runtime.repaired, f"{what} packet ids without a session")
                gone.add(sid)
                continue
            for packet_id in packet_ids:
                if type(packet_id) is not int or not 0 < packet_id <= PACKET_ID_MAX:
                    count(broker.runtime.repaired, f"{what} packet id that is invalid")
                elif what == "received":
                    owner.inbound.ids.add(packet_id)
                    if owner.inbound.over_quota():
                        owner.fit_ids()
                elif packet_id in owner.outbound.window.unacked:
                    # Either the message or the end of it: a message twice is less than none.
                    count(
                        broker.runtime.repaired,
                        "released packet id of a message in flight",
                    )
                    if broker.journal is not None:
                        broker.journal.on_completed(sid, [packet_id])
                else:
                    owner.outbound.window.restore_released(packet_id)


def _shares(
    broker: BrokerState, snapshot: Snapshot, sessions: dict[int, Session], gone: set[int]
) -> tuple[dict[int, str], set[int]]:
    """Find shared subscriptions with messages of their own, by number: each group's newest.

    Beside them those without a member: the last ones were connected when the broker died, and
    their sessions ended with that.
    """
    abandoned: set[int] = set()
    shares: dict[int, str] = {}
    newest: dict[str, int] = {}
    for row in valid_rows(snapshot.shares, broker.runtime.repaired):
        if row.sid in sessions:
            count(broker.runtime.repaired, "shared subscription with the number of a session")
        elif row.filter not in broker.subscriptions.groups:
            abandoned.add(row.sid)
            gone.add(row.sid)
        else:
            older = newest.get(row.filter)
            if older is not None:
                count(broker.runtime.repaired, "shared subscription that has a newer queue")
                gone.add(older)
                del shares[older]
            shares[row.sid] = row.filter
            newest[row.filter] = row.sid
            if broker.journal is not None:
                broker.journal.skip_numbers(session=row.sid)
    return shares, abandoned


def _pairs(
    broker: BrokerState, rows: Iterable[tuple[DeliveryRow, MessageRow]], altered: list[str]
) -> Iterator[tuple[DeliveryRow, MessageRow]]:
    for delivery, message in rows:
        if len(list(valid_rows((delivery, message), broker.runtime.repaired, altered))) == 2:
            yield delivery, message
            if broker.journal is not None:
                broker.journal.skip_numbers(message=message.mid)


def _waiting_shared(
    broker: BrokerState, snapshot: Snapshot, sessions: dict[int, Session], gone: set[int]
) -> list[tuple[Session, Delivery]]:
    """Collect messages of shared subscriptions that waited for one member."""
    waiting: list[tuple[Session, Delivery]] = []
    for delivery, message_row in _pairs(broker, snapshot.shared, snapshot.altered):
        owner = sessions.get(delivery.sid)
        if owner is None:
            count(broker.runtime.repaired, "shared message without a session")
            gone.add(delivery.sid)
            continue
        owner.outbound.restore_place(delivery.n)
        waiting.append((owner, _item(broker, delivery, message_row)))
    return waiting


def _hand_back(broker: BrokerState, session: Session, item: Delivery, now: float) -> None:
    """Give what waited for a member to its group; to the member, if it has left that since."""
    message, options, _, _ = item
    if isinstance(options.group, SharedGroup):
        if not options.group.hand_over(session.session_number, item, now):
            broker.backlog.drop("no_member")
        return
    journal = broker.journal
    assert journal is not None
    journal.on_done(session.session_number, [item], now)
    copy = Message(message.envelope, message.payload)
    txn = journal.begin([copy], awaits_commit=journal.awaits_commit)
    try:
        session.outbound.deliver(
            [copy], DeliveryOptions(options.qos, options.retain, options.subscription_ids), txn, now
        )
    finally:
        journal.add(txn)


def _item(broker: BrokerState, delivery: DeliveryRow, row: MessageRow) -> Delivery:
    group = broker.subscriptions.groups.get(delivery.share) if delivery.share else None
    options = DeliveryOptions(delivery.qos or 1, delivery.retain, delivery.subscription_ids, group)
    return _message(broker, row), options, delivery.n, None


def items_of(broker: Broker, page: Iterable[tuple[DeliveryRow, MessageRow]]) -> list[Delivery]:
    """Read a page. What cannot be read is left out: the queue finds that it has fewer."""
    state = broker.state
    repaired = state.runtime.repaired
    before = sum(repaired.values())
    altered: list[str] = []
    items = [_item(state, delivery, row) for delivery, row in _pairs(state, page, altered)]
    more = sum(repaired.values()) - before
    if more:
        which = f" ({listed(altered)})" if altered else ""
        state.log(
            f"store: repaired or left out {more} queued messages with impossible values{which}"
        )
    return items


def _lost(session: Session, left_at: float) -> None:
    """End the connection of a session: it died with the broker's process."""
    session.disconnected(left_at)
    if session.will is not None:
        session.delay_will(left_at + wills.delay(session))


def _catch_up(broker: BrokerState, session: Session, now: float) -> None:
    """Do what came due, and arm the timers of what did not."""
    if session.expires_at <= now:
        broker.lifecycle.expire(session, now)  # which sends its will
        return
    if session.will is not None and session.will_at <= now:
        broker.lifecycle.send_will(session, now)
    elif session.will is not None:
        broker.lifecycle.watch_will(session)
    if session.expires_at != float("inf"):
        broker.lifecycle.watch_expiry(session)

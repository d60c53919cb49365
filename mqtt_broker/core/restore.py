"""The broker as the store remembers it: sessions, subscriptions, windows, retained messages.

    restore   everything but what waits, which is paged in when it is wanted
    items_of  a page of what waits, as a session's queue takes it

Time went on while the broker was away. A client that was connected then lost its connection
some time after the last sign of life: its will and its session's expiry count from the latest
moment that can have been, and what came due meanwhile happens now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.constants import PUBLISH, WILL
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, decode_properties
from mqtt_broker.core import connect, subscribe, wills
from sessions.journal import Item
from sessions.message import Envelope, Grant, Message
from sessions.queue import Queue
from sessions.rows import DeliveryRow, MessageRow, SessionRow, WillRow
from sessions.session import Session, Subscription
from sessions.snapshot import Snapshot

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker

# A broker that lives has shown it since, even where the disk is slow: see `Snapshot.alive_at`.
SIGN_OF_LIFE_S: Final = 60.0
_FINGERPRINT_UNKNOWN: Final = -1  # whatever comes again under the id is taken for the same


def restore(broker: Broker, snapshot: Snapshot, now: float) -> None:
    sessions: dict[int, Session] = {}
    online: list[Session] = []
    for row in snapshot.sessions:
        session = sessions[row.sid] = _session(broker, row)
        if row.is_online:
            online.append(session)
    for found in snapshot.subscriptions:
        session = sessions[found.sid]
        subscription = Subscription(
            session,
            found.filter,
            found.qos,
            found.no_local,
            found.retain_as_published,
            found.retain_handling,
            found.identifier,
        )
        subscribe.put_in_force(broker, subscription, now)
    shares = {row.sid: row.filter for row in snapshot.shares}
    _restore_messages(broker, snapshot, sessions, shares)
    for message_row in snapshot.retained:
        message = _message(message_row)
        broker.retained.put(message_row.topic, message)
        broker.retained_bytes += message.envelope.size
        broker.count_retained(message.envelope.publisher, 1)
    left_at = min(snapshot.alive_at + SIGN_OF_LIFE_S, now) if snapshot.alive_at else now
    for session in online:
        _lost(session, left_at)
        broker.move_shared(session, now)  # as if it had lost its connection here
    for session in sessions.values():
        _catch_up(broker, session, now)
    for session in online:
        session.record()


def _session(broker: Broker, row: SessionRow) -> Session:
    session = broker.sessions.create(row.client_id, row.created_at)
    session.sid = row.sid
    session.username = row.username
    session.version = row.version
    session.expiry_interval = session.recorded_expiry = row.expiry_interval
    session.expires_at = row.expires_at
    session.will_at = row.will_at
    if row.will is not None:
        session.will = _will(row.will)
    return session


def _will(row: WillRow) -> Will:
    properties = _properties(row.section)
    return Will(row.topic, row.payload, row.qos, row.retain, properties, row.section)


def _properties(section: bytes) -> Properties:
    """What the section says; it was checked when it came, as a PUBLISH's or as a will's."""
    if not section:
        return NO_PROPERTIES
    try:
        return decode_properties(section, 0, len(section), PUBLISH)[0]
    except Violation:
        return decode_properties(section, 0, len(section), WILL)[0]


def _message(row: MessageRow) -> Message:
    envelope = Envelope(
        row.topic,
        row.qos,
        row.retain,
        _properties(row.section),
        row.section,
        len(row.payload),
        row.publisher,
        row.received_at,
    )
    message = Message(envelope, row.payload)
    message.mid = row.mid
    return message


def _restore_messages(
    broker: Broker, snapshot: Snapshot, sessions: dict[int, Session], shares: dict[int, str]
) -> None:
    for delivery, message_row in snapshot.windows:
        session = sessions[delivery.sid]
        item = _item(broker, delivery, message_row)
        session.window.restore(delivery.packet_id, item, delivery.qos)
        session.order = max(session.order, delivery.n)
    for sid, packet_ids in snapshot.releases:
        for packet_id in packet_ids:
            sessions[sid].window.restore_released(packet_id)
    for sid, packet_ids in snapshot.received:
        sessions[sid].receiver.ids.update(dict.fromkeys(packet_ids, _FINGERPRINT_UNKNOWN))
    for backlog in snapshot.backlogs:
        if backlog.sid in shares:
            group = broker.groups.get(shares.pop(backlog.sid))
            if group is not None:
                group.restore(backlog.sid, backlog.messages, backlog.bytes, backlog.n_last)
            else:
                _end_group(broker, backlog.sid, backlog.messages)
            continue
        session = sessions[backlog.sid]
        session.queue = Queue()
        session.queue.restore(backlog.messages, backlog.bytes, backlog.n_last)
        session.order = max(session.order, backlog.n_last)
        broker.budget.queued_messages += backlog.messages
        broker.budget.queued_bytes += backlog.bytes
    for sid, name in shares.items():
        if name in broker.groups:
            broker.groups[name].restore(sid, 0, 0, 0)
        else:
            _end_group(broker, sid, 0)


def _end_group(broker: Broker, sid: int, messages: int) -> None:
    """Its members were connected when the broker died, and their sessions ended with that."""
    assert broker.journal is not None
    if messages:
        broker.budget.drop("no_member", messages)
    broker.journal.on_end(sid, [], 0.0)


def _item(broker: Broker, delivery: DeliveryRow, row: MessageRow) -> Item:
    group = broker.groups.get(delivery.share) if delivery.share else None
    grant = Grant(delivery.qos, delivery.retain, delivery.subscription_ids, group)
    return _message(row), grant, delivery.n, None


def items_of(broker: Broker, page: Iterable[tuple[DeliveryRow, MessageRow]]) -> list[Item]:
    return [_item(broker, delivery, row) for delivery, row in page]


def _lost(session: Session, left_at: float) -> None:
    """Its connection ended with the broker's process."""
    session.expires_at = left_at + session.expiry_interval
    if session.never_expires:
        session.expires_at = float("inf")
    if session.will is not None:
        session.will_at = left_at + wills.delay(session)


def _catch_up(broker: Broker, session: Session, now: float) -> None:
    """What came due, and the timers of what did not."""
    if session.expires_at <= now:
        connect.expire(broker, session, now)  # which sends its will
        return
    if session.will is not None and session.will_at <= now:
        wills.send(broker, session, now)
    elif session.will is not None:
        wills.watch(broker, session)
    if session.expires_at != float("inf"):
        connect.watch_expiry(broker, session)

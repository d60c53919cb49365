"""Clients that may come in, and wait until the store has what their CONNACK says.

Session Present 0 says that an earlier session of the client is over: if a crash brought it back,
the client would find packet ids in use that it has forgotten, and what it publishes under one of
them would be taken for a repetition. And a session that is carried on for longer or shorter than
before is told so by a CONNACK that does not name another interval. Both wait for the disk; the
many that do not end or change a stored session wait for nothing.

A connection that waits is WAITING, as for a late verdict: it is not read, what the same read
brought is kept, and the connect timeout holds. When the store is ready, everything is looked at
anew: another connection of the client may have come, rules may have changed. There is one of each
client at most, the last that came, so a store that is away for long makes nothing grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Connect
from mqtt_broker.core.clients import states
from mqtt_broker.core.interfaces.access import Allow

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.core.clients.connection import Connection


def admit_ready(broker: Broker, now: float) -> None:
    """The store has more on disk: go on with those that waited for it."""
    for client_id, connection in list(broker.arriving.items()):
        verdict = connection.admitted_by
        if verdict is None or not broker.sessions.is_on_disk(client_id):
            continue
        connection.admitted_by = None
        try:
            _go_on(connection, verdict, now)
        except Exception as error:  # ours: it costs this client, and not those behind it
            connection.on_error(error, b"", now)


def _go_on(connection: Connection, verdict: Allow, now: float) -> None:
    connection.link.resume_reading()
    guard = verdict.guard
    has_expired = 0 < verdict.expires_at <= now
    if has_expired or (guard is not None and not guard.is_welcome):
        connection.refuse(now, reasons.NOT_AUTHORIZED)
    else:
        connection.resume(verdict, now)


def end_earlier(connection: Connection, packet: Connect, now: float) -> None:
    """Take the client's session over from other connections, and end it on Clean Start.

    [MQTT-3.1.4-3], [MQTT-3.1.2-4], [MQTT-3.1.4-4]
    """
    broker = connection.broker
    client_id = packet.client_id
    other = broker.arriving.get(client_id)
    if other is not None and other is not connection:
        other.end(now, say=False, why="taken over before CONNACK")
    old = broker.connections.get(client_id)
    if old is not None:
        old.end(now, reasons.SESSION_TAKEN_OVER)
    session = broker.sessions.get(client_id)  # [MQTT-3.1.3-2]
    if session is not None and packet.clean_start:
        broker.end_session(session, now)


def must_wait(
    connection: Connection, packet: Connect, verdict: Allow, expiry_interval: int, now: float
) -> bool:
    """Whether CONNACK waits for the store; then `admit` is called again when that is ready."""
    broker = connection.broker
    journal = broker.journal
    if journal is None or not journal.awaits_commit:
        return False
    client_id = packet.client_id
    session = broker.sessions.get(client_id)
    if (
        session is not None
        and session.session_number
        and session.recorded_expiry != expiry_interval
    ):
        session.record_return(expiry_interval, packet.will)
        broker.sessions.mark(client_id)
    if broker.sessions.is_on_disk(client_id):
        if broker.arriving.get(client_id) is connection:
            del broker.arriving[client_id]
        return False
    broker.arriving[client_id] = connection
    connection.state = states.WAITING
    connection.link.pause_reading()
    connection.admitted_by = verdict
    return True


def give_up(broker: Broker, connection: Connection) -> None:
    """The connection is gone: its session is what it was."""
    connection.admitted_by = None
    packet = connection.connect
    if packet is None or broker.arriving.get(packet.client_id) is not connection:
        return
    del broker.arriving[packet.client_id]
    session = broker.sessions.get(packet.client_id)
    if session is not None and session.recorded_expiry != session.expiry_interval:
        session.record()
        broker.sessions.mark(packet.client_id)

"""Let clients wait until the store has what their CONNACK says.

Session Present 0 says that an earlier session of the client is over: if a crash brought it back,
the client would find packet ids in use that it has forgotten, and what it publishes under one of
them would be taken for a repetition. And a session that is carried on for longer or shorter than
before is told so by a CONNACK that does not name another interval. Both wait for the disk; the
many that do not end or change a stored session wait for nothing. So does, for the agenda, a client
whose earlier connection has sent more than one turn could act upon: what it sends now comes behind.

While the store is so far behind that it takes nothing more, clients whose session or will would be
stored wait as well: each CONNECT is a record of up to half a megabyte.

A connection that waits is WAITING, as for a late verdict: it is not read, what the same read
brought is kept, and the connect timeout holds. When the store is ready, everything is looked at
anew: another connection of the client may have come, rules may have changed. At most one of each
client waits, the last that came, so a store that is away for long makes nothing grow.
"""

from __future__ import annotations

from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Connect
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.access import Allow


def is_ready(broker: BrokerState, client_id: str) -> bool:
    """Tell whether a client of this id may be let in now."""
    journal = broker.journal
    owners = broker.owners
    return (
        (owners is None or owners.is_claimed(client_id))
        and not _is_unfinished(broker, client_id)
        and broker.sessions.is_on_disk(client_id)
        and (journal is None or not journal.is_overfull)
    )


def _is_unfinished(broker: BrokerState, client_id: str) -> bool:
    """Tell whether an earlier connection of the client has left something to do."""
    old = broker.clients.connections.get(client_id)
    return (old is not None and old.is_held) or client_id in broker.lifecycle.unfinished


def is_claimed(connection: Connection, packet: Connect, verdict: Allow, now: float) -> bool:
    """Tell whether the client is this broker's; else CONNACK waits until it is.

    What is remembered of its session says nothing before: another broker may have it by now.
    """
    broker = connection.broker
    handshake = connection.handshake
    assert handshake is not None
    if broker.owners is None or handshake.has_claimed:
        return True
    client_id = packet.client_id
    _end_other(connection, client_id, now)
    handshake.claim()
    broker.owners.claim(client_id)
    _wait(connection, client_id, verdict)
    return False


def _end_other(connection: Connection, client_id: str, now: float) -> None:
    """End another connection of the client that waits for its CONNACK."""
    other = connection.broker.clients.arriving.get(client_id)
    if other is not None and other is not connection:
        other.end(now, say=False, why="taken over before CONNACK")


def end_earlier(connection: Connection, packet: Connect, verdict: Allow, now: float) -> bool:
    """Take the client's session over from other connections, and end it on Clean Start.

    [MQTT-3.1.4-3], [MQTT-3.1.2-4], [MQTT-3.1.4-4]
    False if that takes more than this turn, or what the other one sent does: then CONNACK waits
    for it, and `admit` is called again.
    """
    broker = connection.broker
    clients = broker.clients
    client_id = packet.client_id
    is_waiting = clients.arriving.get(client_id) is connection
    _end_other(connection, client_id, now)
    old = clients.connections.get(client_id)
    if old is not None and not old.is_held:
        old.record_takeover(connection.link.peer, now, clean_start=packet.clean_start)
        old.end(now, reasons.SESSION_TAKEN_OVER)
    session = broker.sessions.get(client_id)  # [MQTT-3.1.3-2]
    if session is not None and packet.clean_start and not _is_unfinished(broker, client_id):
        broker.lifecycle.end(session, now)
    if _is_unfinished(broker, client_id):
        _wait(connection, client_id, verdict)
        return False
    if is_waiting:
        del clients.arriving[client_id]
    return True


def must_wait(
    connection: Connection, packet: Connect, verdict: Allow, expiry_interval: int
) -> bool:
    """Tell whether CONNACK waits for the store; then `admit` is called again when it is ready."""
    broker = connection.broker
    journal = broker.journal
    if journal is None:
        return False
    client_id = packet.client_id
    if journal.is_overfull and (expiry_interval or packet.will is not None):
        _wait(connection, client_id, verdict)  # what would be recorded of it waits with it
        return True
    if not journal.awaits_commit:
        return False
    session = broker.sessions.get(client_id)
    if (
        session is not None
        and session.session_number
        and session.recorded_expiry != expiry_interval
    ):
        session.record_return(expiry_interval, packet.will)
        broker.sessions.mark(client_id)
    if broker.sessions.is_on_disk(client_id):
        return False
    _wait(connection, client_id, verdict)
    return True


def _wait(connection: Connection, client_id: str, verdict: Allow) -> None:
    handshake = connection.handshake
    assert handshake is not None
    connection.broker.clients.arriving[client_id] = connection
    handshake.wait_for_store(verdict)
    connection.wait_unread()

"""The clients of a broker in a test: who is connected, and what is done to them."""

from __future__ import annotations

from dataclasses import dataclass

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.runtime.backpressure import STOPPING
from mqtt_broker.in_process import PEER
from mqtt_broker.server.server import Server


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client that is connected."""

    client_id: str
    username: str | None
    version: int  # of MQTT, as CONNECT says it: 5, 4 (3.1.1) or 3 (3.1)
    keep_alive: int  # seconds; 0: none
    peer: str  # its address
    subscriptions: tuple[str, ...]  # Topic Filters


class NotConnected(AssertionError):
    """A client is not connected, or was not in time; the text has those that are."""


class NotSubscribed(AssertionError):
    """Error of a wait for a subscription that did not come; the text lists those there are."""


def connected(server: Server) -> list[ConnectedClient]:
    """Return the connected clients, without those of this process."""
    return [
        ConnectedClient(
            client_id,
            one.username,
            one.version,
            one.server_keep_alive,
            one.link.peer,
            tuple(one.session.subscriptions),
        )
        for client_id, one in server.broker.connections.items()
        if one.link.peer != PEER
    ]


def shortfall(server: Server, wanted: tuple[str, ...], seconds: float) -> NotConnected:
    """Make the error of clients that are not connected in time."""
    found = [one.client_id for one in connected(server)]
    missing = [one for one in wanted if one not in found]
    return NotConnected(
        f"not connected within {seconds:g} s: {', '.join(map(repr, missing))}; {_those(found)}"
    )


def has_subscription(server: Server, topic_filter: str, client_id: str) -> bool:
    """Tell whether a connected client, or this one, has subscribed to the Topic Filter."""
    return any(
        topic_filter in one.subscriptions
        for one in connected(server)
        if client_id in ("", one.client_id)
    )


def not_subscribed(
    server: Server, topic_filter: str, client_id: str, seconds: float
) -> NotSubscribed:
    """Make the error of a subscription that is not there in time."""
    who = f"client {client_id!r} has not" if client_id else "nobody has"
    found = [
        f"{one.client_id!r} to {text!r}" for one in connected(server) for text in one.subscriptions
    ]
    return NotSubscribed(
        f"{who} subscribed to {topic_filter!r} within {seconds:g} s; "
        f"subscribed: {', '.join(found) or 'nobody'}"
    )


def find(server: Server, client_id: str) -> Connection:
    """Return the connection of a client; NotConnected if it has none."""
    connection = server.broker.connections.get(client_id)
    if connection is None:
        found = [one.client_id for one in connected(server)]
        raise NotConnected(f"no client {client_id!r} is connected; {_those(found)}")
    return connection


def _those(client_ids: list[str]) -> str:
    return f"connected: {', '.join(map(repr, client_ids)) or 'nobody'}"


def kick(server: Server, client_id: str, reason: int) -> None:
    """Disconnect a client with a reason code."""
    find(server, client_id)
    if not reasons.may_carry(DISCONNECT, reason):
        raise ValueError(f"invalid reason 0x{reason:02X}: no DISCONNECT has it")
    server.broker.kick(client_id, server.now(), reason)
    server.turn.end_now()


def drop(server: Server, client_id: str) -> None:
    """Break the connection of a client, as a network does: it is told nothing."""
    connection = find(server, client_id)
    connection.link.abort()
    connection.lost(server.now())
    server.turn.end_now()


def delay(server: Server, client_id: str, seconds: float) -> None:
    """Read nothing from a client for so long: what it sends is acted upon afterwards."""
    connection = find(server, client_id)
    connection.pause(STOPPING)
    server.loop.call_later(seconds, connection.resume, STOPPING)


def advance(server: Server, seconds: float, silent: frozenset[str]) -> None:
    """Move the clock ahead. Clients that are not `silent` count as heard from in the meantime."""
    if seconds < 0:
        raise ValueError(f"invalid seconds {seconds:g}: the clock goes forward alone")
    for client_id in silent:
        find(server, client_id)
    until = server.now() + seconds
    for client_id, connection in server.broker.connections.items():
        if client_id not in silent:
            connection.count_as_heard(until)
    server.turn.advance(float(seconds))

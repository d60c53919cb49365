"""Act on AUTH: exchanges until CONNACK, and re-authentication after it."""

from __future__ import annotations

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import AUTH, DISCONNECT
from mqtt_broker.codec.encode import encode_auth
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Auth, Connect
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.clients.connection import ACTIVE, Connection
from mqtt_broker.core.interfaces.access import (
    Allow,
    Challenge,
    ConnectRequest,
    Refuse,
    Reply,
    Verdict,
)
from mqtt_broker.core.limits.client_limits import as_told


def ask(connection: Connection, packet: Connect, data: bytes | None, reply: Reply) -> Verdict:
    """Ask the access about a CONNECT, or about an AUTH that begins a re-authentication."""
    handshake = connection.handshake
    assert handshake is not None
    handshake.ask(reply)
    link = connection.link
    is_again = connection.state == ACTIVE
    request = ConnectRequest(
        packet.client_id,
        connection.authorization.username if is_again else packet.username,
        packet.password,
        packet.version,
        link.peer,
        packet.properties.text(prop.AUTHENTICATION_METHOD),
        data,
        getattr(link, "certificate", None),  # links of embedders and tests need have neither
        getattr(link, "listener", ""),
        is_again,
        reply,
    )
    return connection.broker.authorizer.access.connect(request)


def send_auth(connection: Connection, packet: Connect, reason: int, data: bytes | None) -> None:
    method = packet.properties.text(prop.AUTHENTICATION_METHOD)
    assert method is not None, "only a client with a method is challenged"
    found = Properties({prop.AUTHENTICATION_METHOD: method})  # [MQTT-4.12.0-5]
    if data is not None:
        found[prop.AUTHENTICATION_DATA] = data
    connection.broker.counters.packets_sent[AUTH] += 1
    connection.send(encode_auth(reason, found))


def on_auth(connection: Connection, packet: Auth, reply: Reply) -> Verdict:
    """Take the next step of an exchange, or the first of a re-authentication."""
    connection.broker.counters.packets_received[AUTH] += 1
    handshake = connection.handshake
    connect = connection.reauthenticates_with if handshake is None else handshake.connect
    method = packet.properties.text(prop.AUTHENTICATION_METHOD)
    expected = None if connect is None else connect.properties.text(prop.AUTHENTICATION_METHOD)
    if connect is None or expected is None or method != expected:  # [MQTT-4.12.1-1]
        raise Violation(
            reasons.PROTOCOL_ERROR, "MQTT-4.12.1-1", "AUTH without the method of CONNECT"
        )
    data = packet.properties.binary(prop.AUTHENTICATION_DATA)
    if handshake is not None and handshake.is_undecided:
        raise Violation(
            reasons.PROTOCOL_ERROR, "MQTT-4.12.0-2", "AUTH before the response to the previous one"
        )
    proceed = None if handshake is None else handshake.proceed
    if packet.reason == reasons.CONTINUE_AUTHENTICATION and proceed is not None:
        return proceed(data)
    if packet.reason == reasons.REAUTHENTICATE and connection.state == ACTIVE:
        connection.open_handshake(connect)
        return ask(connection, connect, data, reply)
    raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.12.0-2", "unexpected AUTH")


def act_on_verdict(connection: Connection, verdict: Verdict, now: float) -> None:
    """Act on the answer to a re-authentication; the client goes on as it was meanwhile."""
    handshake = connection.handshake
    assert handshake is not None
    packet = handshake.connect
    assert packet is not None
    handshake.take_verdict(verdict)
    if isinstance(verdict, Allow):
        if verdict.is_bound and verdict.username != connection.authorization.username:
            connection.end(now, reasons.NOT_AUTHORIZED, why="re-authenticated as another user")
            return
        connection.close_handshake()
        session = connection.session
        limits = as_told(connection.meet_limits(verdict.limits), connection.limits)
        connection.authorize(session, verdict, limits)
        send_auth(connection, packet, reasons.SUCCESS, verdict.auth_data)
        connection.broker.authorizer.reauthorize_client(session.client_id, now)
    elif isinstance(verdict, Refuse):  # [MQTT-4.12.1-2]
        fits = reasons.may_carry(DISCONNECT, verdict.reason)
        connection.end(now, verdict.reason if fits else reasons.NOT_AUTHORIZED)
    elif isinstance(verdict, Challenge):
        send_auth(connection, packet, reasons.CONTINUE_AUTHENTICATION, verdict.data)

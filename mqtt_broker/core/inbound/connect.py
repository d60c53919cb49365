"""What CONNECT means, and AUTH with it.

    on_connect   check, ask the access door
    settle       its verdict: admit, refuse, exchange AUTH packets, or wait
    Reply        the way back for a verdict that comes later
    admit        take over, wait for the store if need be, find or make the session, CONNACK, resume

The verdict may come at once or later through `Broker.resume`; a connection that waits holds
the CONNECT and what followed it as data.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import AUTH, CONNACK, CONNECT, DISCONNECT, NEVER_EXPIRES, V5, V31
from mqtt_broker.codec.constants import RECEIVE_MAXIMUM_DEFAULT as RECEIVE_MAXIMUM
from mqtt_broker.codec.encode import encode_auth, encode_connack
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Auth, Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core import sys_topics
from mqtt_broker.core.clients import states, wills
from mqtt_broker.core.inbound import admission
from mqtt_broker.core.inbound.publish import is_ours
from mqtt_broker.core.inbound.subscribe import end_subscriptions
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Allow,
    AskingGuard,
    Challenge,
    ConnectRequest,
    Refuse,
    Verdict,
)
from mqtt_broker.core.limits import token_bucket
from mqtt_broker.core.limits.client_limits import ClientLimits, as_told
from mqtt_broker.topics.aliases import OutboundAliases
from mqtt_broker.topics.names import level_count
from sessions.messages.outbox import Outbox
from sessions.session import Session

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.core.clients.connection import Connection

KEEPALIVE_ANY = 65_535  # `max_keepalive` that asks for nothing
_CONNACK_BYTES_MIN = 5


class Reply:
    """Carries a late verdict to the connection that asked. Too late, or a second one: ignored."""

    __slots__ = ("_connection", "_question")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._question = connection.question

    @property
    def is_wanted(self) -> bool:
        connection = self._connection
        return connection.question == self._question and connection.state != states.CLOSED

    def __call__(self, verdict: Verdict, now: float) -> None:
        if self.is_wanted:
            self._connection.broker.resume(self._connection, verdict, now)


def _ask(connection: Connection, packet: Connect, data: bytes | None, *, again: bool) -> Verdict:
    """Ask the access door about a CONNECT, or about an AUTH that begins a re-authentication."""
    connection.question += 1
    link = connection.link
    request = ConnectRequest(
        packet.client_id,
        connection.username if again else packet.username,
        packet.password,
        packet.version,
        link.peer,
        packet.properties.text(prop.AUTHENTICATION_METHOD),
        data,
        getattr(link, "certificate", None),  # links of embedders and tests need have neither
        getattr(link, "listener", ""),
        again,
        Reply(connection),
    )
    return connection.broker.access.connect(request)


def on_connect(connection: Connection, packet: Connect, now: float) -> None:
    """What fails here, or at the access door, is refused and closed. [MQTT-3.1.4-2]"""
    broker = connection.broker
    settings = broker.settings
    broker.stats.packets_received[CONNECT] += 1
    broker.strangers.forget(connection)
    connection.connect = packet
    if 0 < packet.properties.number(prop.MAXIMUM_PACKET_SIZE) < _CONNACK_BYTES_MIN:
        # No CONNACK would fit, not even a refusal. [MQTT-3.1.2-24]
        raise Violation(
            reasons.PACKET_TOO_LARGE, "MQTT-3.1.2-24", "Maximum Packet Size 1 to 4", silent=True
        )
    if broker.is_shutting_down:
        connection.refuse(now, reasons.SERVER_UNAVAILABLE)
        return
    if not _name_client(connection, packet, now):
        return
    if _is_full(broker, packet.client_id):
        connection.refuse(now, reasons.SERVER_BUSY)
        return
    if packet.version < V5 and packet.keep_alive > settings.max_keepalive:
        # 3.1.1 cannot be told a shorter keep alive, only refused.
        connection.refuse(now, reasons.CLIENT_IDENTIFIER_NOT_VALID, v3_code=2)
        return
    if packet.will is not None:
        _check_will(broker, packet.will, connection.limits)
    data = packet.properties.binary(prop.AUTHENTICATION_DATA)
    settle(connection, _ask(connection, packet, data, again=False), now)


def _is_full(broker: Broker, client_id: str) -> bool:
    """Whether one client more would be too many; one that takes itself over is none more."""
    settings = broker.settings
    if client_id in broker.connections:
        return False
    if broker.clients_connected >= settings.connections_max:
        return True
    return broker.sessions.get(client_id) is None and len(broker.sessions) >= settings.sessions_max


def _name_client(connection: Connection, packet: Connect, now: float) -> bool:
    """Assign an identifier to a client that brings none; False when it was refused."""
    if packet.client_id:  # of any length and any characters. [MQTT-3.1.3-5]
        return True
    settings = connection.broker.settings
    if packet.version == V31 or (packet.version < V5 and not packet.clean_start):
        connection.refuse(now, reasons.CLIENT_IDENTIFIER_NOT_VALID)  # [MQTT3-3.1.3-8]
        return False
    if not settings.allow_zero_length_clientid:  # [MQTT-3.1.3-8]
        connection.refuse(now, reasons.CLIENT_IDENTIFIER_NOT_VALID, v3_code=2)
        return False
    number = connection.broker.rng.getrandbits(128)  # its own, by chance. [MQTT-3.1.3-6]
    packet.client_id = settings.auto_id_prefix + str(uuid.UUID(int=number, version=4))
    connection.aliases.limit = settings.topic_alias_maximum
    packet.properties = Properties(packet.properties)
    packet.properties[prop.ASSIGNED_CLIENT_IDENTIFIER] = packet.client_id  # [MQTT-3.1.3-7]
    return True


def _check_will(broker: Broker, will: Will, limits: ClientLimits) -> None:
    if will.qos > broker.settings.maximum_qos:  # [MQTT-3.2.2-12]
        raise Violation(reasons.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12", "will QoS")
    if will.retain and not limits.retain_available:  # [MQTT-3.2.2-13]
        raise Violation(reasons.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13", "retained will")
    if is_ours(will.topic):
        raise Violation(
            reasons.NOT_AUTHORIZED, "MQTT-4.7.2", "a will under the broker's own topics"
        )
    if level_count(will.topic) > limits.topic_levels_max:
        raise Violation(reasons.TOPIC_NAME_INVALID, "MQTT-4.7.3-3", "a will topic too deep")
    if will.properties.get(prop.PAYLOAD_FORMAT_INDICATOR) == 1:
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            raise Violation(
                reasons.PAYLOAD_FORMAT_INVALID, "MQTT-3.1.3.2.3", "a will payload that is not UTF-8"
            ) from None


def settle(connection: Connection, verdict: Verdict, now: float) -> None:
    """Act on the access door's answer to a CONNECT."""
    assert connection.connect is not None
    connection.proceed = None
    if verdict is PENDING:
        connection.is_undecided = True
        connection.state = states.WAITING
        connection.link.pause_reading()
    elif isinstance(verdict, Allow):
        admit(connection, connection.connect, verdict, now)
    elif isinstance(verdict, Refuse):
        # A failed exchange too. [MQTT-4.12.0-4]
        connection.refuse(now, verdict.reason, counted_as=verdict.counted_as)
    else:
        assert isinstance(verdict, Challenge)
        connection.state = states.WAITING
        connection.proceed = verdict.proceed
        _send_auth(connection, reasons.CONTINUE_AUTHENTICATION, verdict.data)


def _send_auth(connection: Connection, reason: int, data: bytes | None) -> None:
    assert connection.connect is not None
    method = connection.connect.properties.text(prop.AUTHENTICATION_METHOD)
    assert method is not None, "only a client with a method is challenged"
    found = Properties({prop.AUTHENTICATION_METHOD: method})  # [MQTT-4.12.0-5]
    if data is not None:
        found[prop.AUTHENTICATION_DATA] = data
    connection.broker.stats.packets_sent[AUTH] += 1
    connection.send(encode_auth(reason, found))


def on_auth(connection: Connection, packet: Auth, now: float) -> None:
    """The client's next word in an exchange, or the first of a re-authentication."""
    connection.broker.stats.packets_received[AUTH] += 1
    connect = connection.connect
    method = packet.properties.text(prop.AUTHENTICATION_METHOD)
    expected = None if connect is None else connect.properties.text(prop.AUTHENTICATION_METHOD)
    if connect is None or expected is None or method != expected:  # [MQTT-4.12.1-1]
        raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.12.1-1", "AUTH without its method")
    data = packet.properties.binary(prop.AUTHENTICATION_DATA)
    proceed = connection.proceed
    if connection.is_undecided:
        raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.12.0-2", "AUTH before its answer")
    if packet.reason == reasons.CONTINUE_AUTHENTICATION and proceed is not None:
        verdict: Verdict = proceed(data)
    elif packet.reason == reasons.REAUTHENTICATE and connection.state == states.ACTIVE:
        verdict = _ask(connection, connect, data, again=True)
    else:
        raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.12.0-2", "AUTH out of place")
    if connection.state == states.ACTIVE:
        settle_again(connection, verdict, now)
    else:
        settle(connection, verdict, now)


def settle_again(connection: Connection, verdict: Verdict, now: float) -> None:
    """The answer to a re-authentication; the client goes on as it was meanwhile."""
    connection.proceed = None
    if verdict is PENDING:
        connection.is_undecided = True
    elif isinstance(verdict, Allow):
        if verdict.is_bound and verdict.username != connection.username:
            connection.end(now, reasons.NOT_AUTHORIZED, why="re-authenticated as somebody else")
            return
        limits = as_told(_limits_of(connection, verdict), connection.limits)
        _let_in(connection, connection.session, verdict, limits)
        _send_auth(connection, reasons.SUCCESS, verdict.auth_data)
        connection.broker.recheck_client(connection.session.client_id, now)
    elif isinstance(verdict, Refuse):  # [MQTT-4.12.1-2]
        fits = reasons.may_carry(DISCONNECT, verdict.reason)
        connection.end(now, verdict.reason if fits else reasons.NOT_AUTHORIZED)
    elif isinstance(verdict, Challenge):
        connection.proceed = verdict.proceed
        _send_auth(connection, reasons.CONTINUE_AUTHENTICATION, verdict.data)


def admit(connection: Connection, packet: Connect, verdict: Allow, now: float) -> None:
    """The client is in: its session, CONNACK, and what it missed."""
    broker = connection.broker
    version = packet.version
    guard = verdict.guard
    if guard is None and broker.guarded:
        guard = AskingGuard(broker.access, packet.client_id, verdict.username)
    if packet.will is not None and guard is not None:
        if not guard.may_publish(packet.will.topic):
            broker.stats.refuse("will", "not_authorized")
            connection.refuse(now, reasons.NOT_AUTHORIZED)
            return
    if verdict.is_bound and not _is_its_own(broker, packet.client_id, verdict.username):
        connection.refuse(now, reasons.CLIENT_IDENTIFIER_NOT_VALID)
        return
    if _is_full(broker, packet.client_id):  # again: others came in while this one waited
        connection.refuse(now, reasons.SERVER_BUSY)
        return
    if verdict.connections_max and _has_enough(broker, packet.client_id, verdict):
        connection.refuse(now, reasons.QUOTA_EXCEEDED)
        return
    limits = _limits_of(connection, verdict)
    if packet.will is not None and verdict.limits is not None:
        _check_will(broker, packet.will, limits)  # again: now it is known who it is
    keep_alive = _keep_alive(broker, packet)
    properties = _connack_properties(broker, packet, keep_alive, verdict, limits)
    limit = packet.properties.number(prop.MAXIMUM_PACKET_SIZE)
    if limit and len(encode_connack(version, False, 0, properties)) > limit:
        connection.end(now, say=False, why="its Maximum Packet Size is below our CONNACK")
        return
    admission.end_earlier(connection, packet, now)
    expiry_interval = _expiry_interval(broker, packet)
    if admission.must_wait(connection, packet, verdict, expiry_interval, now):
        return
    session, present = _open_session(broker, packet, now)
    connection.session = session
    _let_in(connection, session, verdict, limits)
    inbound_maximum = limits.receive_maximum if version == V5 else RECEIVE_MAXIMUM
    session.connected(verdict.username, expiry_interval, packet.will, inbound_maximum)
    found = packet.properties
    alias_maximum = min(
        found.number(prop.TOPIC_ALIAS_MAXIMUM), broker.settings.topic_alias_outbound_max
    )
    connection.outbox = Outbox(
        version,
        connection,
        connection.link.write if connection.valve is None else connection.valve.write,
        broker.dirty,
        packet_bytes_max=limit,
        aliases=OutboundAliases(alias_maximum) if alias_maximum else None,  # [MQTT-3.1.2-27]
    )
    connection.state = states.ACTIVE
    connection.connected_at = now
    connection.watch_keep_alive(keep_alive, now)
    if present:
        broker.withdraw(session, now)  # what it may no longer have, before it gets any of it
    receive_maximum = found.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM)
    broker.attach(
        connection,
        min(receive_maximum, token_bucket.window_max(limits)),
        lambda: _on_overflow(connection, now),
    )
    broker.stats.packets_sent[CONNACK] += 1
    data = encode_connack(version, present and version != V31, 0, properties)  # [MQTT-3.1.4-5]
    connection.send(data)
    session.outbound.resume(now)
    session.record()  # after it: what is repeated need not wait for this
    session.record_will()
    broker.refresh_groups(session, now)
    _tell(connection, present, now)
    kept, connection.kept = connection.kept, []
    if kept:
        broker.strangers.forget(connection)
        connection.take(kept, now)


def _limits_of(connection: Connection, verdict: Allow) -> ClientLimits:
    """The strictest of all that hold: the settings', its listener's and its own."""
    allowance = connection.allowance
    return connection.broker.limits.met(
        None if allowance is None else allowance.limits, verdict.limits
    )


def _let_in(connection: Connection, session: Session, verdict: Allow, limits: ClientLimits) -> None:
    """Who it is, what it may do, and for how long."""
    broker = connection.broker
    connection.username = verdict.username
    connection.guard = verdict.guard
    if broker.guarded and connection.guard is None:
        connection.guard = AskingGuard(broker.access, session.client_id, verdict.username)
    if connection.guard is None:
        broker.guards.pop(session.client_id, None)
    else:
        broker.guards[session.client_id] = connection.guard
    connection.limits = limits
    connection.decoder.packet_bytes_max = limits.packet_bytes_max
    # Topics are looked into for a guard's sake, or for levels of which others may have more.
    is_open = connection.guard is None
    is_deep = limits.topic_levels_max == broker.limits.base.topic_levels_max
    connection.allowed = None if is_open and is_deep else set()
    session.outbound.limit_queue(broker.limits.bounds(limits))
    connection.watch_expiry(verdict.expires_at)
    allowance = connection.allowance
    token_bucket.limit(connection, limits, None if allowance is None else allowance.meter)


def _is_its_own(broker: Broker, client_id: str, username: str | None) -> bool:
    """Nobody takes what another user's client left, is connected with, or waits to be."""
    arriving = broker.arriving.get(client_id)
    admitted_by = None if arriving is None else arriving.admitted_by
    if admitted_by is not None and admitted_by.username not in (None, username):
        return False
    session = broker.sessions.get(client_id)
    return session is None or session.username in (None, username)


def _has_enough(broker: Broker, client_id: str, verdict: Allow) -> bool:
    """Whether its user has all the connections it may have; one it takes over does not count."""
    count = broker.users.get(verdict.username or "", 0)
    old = broker.connections.get(client_id)
    if old is not None and old.counted_as == verdict.username:
        count -= 1
    return count >= verdict.connections_max


def _open_session(broker: Broker, packet: Connect, now: float) -> tuple[Session, bool]:
    """Carry on what there is under this name, or begin."""
    session = broker.sessions.get(packet.client_id)
    if session is not None:  # [MQTT-3.1.2-5], [MQTT-3.2.2-3]
        return session, True
    return broker.sessions.create(packet.client_id, now), False  # [MQTT-3.1.2-6], [MQTT-3.2.2-2]


def _asked_expiry(packet: Connect) -> int:
    if packet.version < V5:
        return 0 if packet.clean_start else NEVER_EXPIRES
    return packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)


def _expiry_interval(broker: Broker, packet: Connect) -> int:
    return min(_asked_expiry(packet), broker.settings.session_expiry_s_max)


def _keep_alive(broker: Broker, packet: Connect) -> int:
    limit = broker.settings.max_keepalive
    if packet.version == V5 and limit < KEEPALIVE_ANY:
        return min(packet.keep_alive or limit, limit)
    return packet.keep_alive  # the client's own. [MQTT-3.2.2-22]


def _connack_properties(
    broker: Broker, packet: Connect, keep_alive: int, verdict: Allow, limits: ClientLimits
) -> Properties:
    """What an MQTT 5 client is told; in an order that older test suites compare by bytes."""
    found = Properties()
    if packet.version != V5:
        return found
    settings = broker.settings
    asked = packet.properties
    if _asked_expiry(packet) > settings.session_expiry_s_max:  # [MQTT-3.2.2.3.2]
        found[prop.SESSION_EXPIRY_INTERVAL] = settings.session_expiry_s_max
    if keep_alive != packet.keep_alive:  # [MQTT-3.2.2-21]
        found[prop.SERVER_KEEP_ALIVE] = keep_alive
    if settings.topic_alias_maximum:
        found[prop.TOPIC_ALIAS_MAXIMUM] = settings.topic_alias_maximum
    assigned = asked.text(prop.ASSIGNED_CLIENT_IDENTIFIER)
    if assigned is not None:  # [MQTT-3.2.2-16]
        found[prop.ASSIGNED_CLIENT_IDENTIFIER] = assigned
    if not limits.retain_available:
        found[prop.RETAIN_AVAILABLE] = 0
    found[prop.MAXIMUM_PACKET_SIZE] = limits.packet_bytes_max
    found[prop.RECEIVE_MAXIMUM] = limits.receive_maximum
    if settings.maximum_qos < 2:  # [MQTT-3.2.2-9]
        found[prop.MAXIMUM_QOS] = settings.maximum_qos
    if settings.response_information and asked.number(prop.REQUEST_RESPONSE_INFORMATION):
        found[prop.RESPONSE_INFORMATION] = settings.response_information  # [MQTT-3.1.2-28]
    method = asked.text(prop.AUTHENTICATION_METHOD)
    if method is not None:
        found[prop.AUTHENTICATION_METHOD] = method  # [MQTT-4.12.0-5]
        if verdict.auth_data is not None:
            found[prop.AUTHENTICATION_DATA] = verdict.auth_data
    return found


def _on_overflow(connection: Connection, now: float) -> None:
    """The queue is full and the policy is to disconnect. Not from inside a delivery: soon."""
    connection.broker.timers.at(
        now, lambda then: connection.end(then, reasons.QUOTA_EXCEEDED, why="queue full")
    )


def close_session(connection: Connection, now: float) -> None:
    """The connection is gone; what becomes of its session and its will."""
    broker = connection.broker
    session = connection.session
    broker.move_shared(session, now)  # first: its own will may be for a group it was in
    wills.schedule(broker, session, now)
    if not session.expiry_interval:  # [MQTT-3.1.2-23]
        broker.end_session(session, now)
    else:
        session.disconnected(now)
        if not session.never_expires:
            watch_expiry(broker, session)
    session.record()


def watch_expiry(broker: Broker, session: Session) -> None:
    session.expire_with(
        broker.timers.at(session.expires_at, lambda then: expire(broker, session, then))
    )


def expire(broker: Broker, session: Session, now: float) -> None:
    """It was kept while it had to be, and no longer. [MQTT-4.1.0-1], [MQTT-4.1.0-2]"""
    broker.stats.clients_expired += 1
    broker.end_session(session, now)


def forget_session(broker: Broker, session: Session, now: float) -> None:
    """The session ends: its will is due now, its subscriptions and messages go."""
    session.cancel_timers()
    if session.will_at:
        wills.send(broker, session, now)
    session.clear_will()
    if session.session_number:
        broker.sessions.mark(session.client_id)
    session.clear(now)  # in the store, what it had goes with it
    end_subscriptions(broker, session, now)
    broker.sessions.remove(session, now)
    broker.guards.pop(session.client_id, None)


def _tell(connection: Connection, present: bool, now: float) -> None:
    broker = connection.broker
    connect = connection.connect
    if broker.settings.client_events and connect is not None:
        body = json.dumps(
            {
                "peer": connection.link.peer,
                "username": connection.username,
                "version": connect.version,
                "clean_start": connect.clean_start,
                "session_present": present,
                "keep_alive": connection.server_keep_alive,
                "at": round(now, 3),
            }
        )
        sys_topics.publish_event(broker, connection.session.client_id, "connected", body, now)

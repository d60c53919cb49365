"""Act on CONNECT: check it, ask the access, and admit the client.

    on_connect      check, and ask whether the client may connect
    act_on_verdict  admit, refuse, exchange AUTH packets, or wait
    go_on           a CONNACK that waited for the store
    admit           take over, wait for the store if need be, find or make the session, CONNACK

The verdict may come at once or later; a connection that waits holds the CONNECT and what followed
it as data, in its handshake.
"""

from __future__ import annotations

import uuid

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNACK, CONNECT, NEVER_EXPIRES, V5, V31
from mqtt_broker.codec.constants import RECEIVE_MAXIMUM_DEFAULT as RECEIVE_MAXIMUM
from mqtt_broker.codec.encode import encode_connack
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.inbound import admission, auth
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Allow,
    Challenge,
    Guard,
    Refuse,
    Reply,
    Verdict,
)
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.runtime.backpressure import UNDECIDED
from mqtt_broker.topics.names import is_reserved, level_count
from sessions.messages.work import CONNECTED
from sessions.session import Session, state_bytes

KEEPALIVE_ANY = 65_535  # `max_keepalive` that asks for nothing
_CONNACK_BYTES_MIN = 5


def on_connect(connection: Connection, packet: Connect, reply: Reply, now: float) -> None:
    """Check a CONNECT and ask the access about it. What fails is refused. [MQTT-3.1.4-2]"""
    broker = connection.broker
    settings = broker.settings
    broker.counters.packets_received[CONNECT] += 1
    broker.work.spent += CONNECTED
    handshake = connection.handshake
    assert handshake is not None
    packet.forget_user_properties()
    if not handshake.begin(packet):
        connection.end_for_memory(now)
        return
    if 0 < packet.properties.number(prop.MAXIMUM_PACKET_SIZE) < _CONNACK_BYTES_MIN:
        # No CONNACK would fit, not even a refusal. [MQTT-3.1.2-24]
        raise Violation(
            reasons.PACKET_TOO_LARGE, "MQTT-3.1.2-24", "Maximum Packet Size 1 to 4", silent=True
        )
    if broker.clients.is_shutting_down:
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
    act_on_verdict(connection, auth.ask(connection, packet, data, reply), now)


def act_on_verdict(connection: Connection, verdict: Verdict, now: float) -> None:
    """Act on the answer to a CONNECT."""
    handshake = connection.handshake
    assert handshake is not None
    assert handshake.connect is not None
    handshake.take_verdict(verdict)
    if verdict is PENDING:
        connection.wait_unread()
    elif isinstance(verdict, Allow):
        admit(connection, handshake.connect, verdict, now)
    elif isinstance(verdict, Refuse):
        # A failed exchange too. [MQTT-4.12.0-4]
        connection.refuse(now, verdict.reason, counted_as=verdict.counted_as, detail=verdict.why)
    else:
        assert isinstance(verdict, Challenge)
        connection.wait()
        auth.send_auth(connection, handshake.connect, reasons.CONTINUE_AUTHENTICATION, verdict.data)


def go_on(connection: Connection, verdict: Allow, now: float) -> None:
    """Admit a client whose CONNACK waited for the store, if it still may come in."""
    connection.resume(UNDECIDED)
    guard = verdict.guard
    has_expired = 0 < verdict.expires_at <= now
    if has_expired or (guard is not None and not guard.is_welcome):
        connection.refuse(now, reasons.NOT_AUTHORIZED)
    else:
        act_on_verdict(connection, verdict, now)


def admit(connection: Connection, packet: Connect, verdict: Allow, now: float) -> None:
    """Find or make the client's session, send CONNACK, and what the client missed."""
    broker = connection.broker
    version = packet.version
    authorizer = broker.authorizer
    guard = authorizer.guard_for(verdict.guard, packet.client_id, verdict.username)
    limits = connection.meet_limits(verdict.limits)
    if packet.will is not None:
        refusal = _will_refusal(broker, packet.client_id, packet.will, guard, limits)
        if refusal:
            broker.counters.refuse("will", reasons.name(refusal))
            connection.refuse(now, refusal)
            return
    if verdict.is_bound and not _is_its_own(broker, packet.client_id, verdict.username):
        connection.refuse(now, reasons.CLIENT_IDENTIFIER_NOT_VALID)
        return
    if _is_full(broker, packet.client_id):  # again: others came in while this one waited
        connection.refuse(now, reasons.SERVER_BUSY)
        return
    if not _has_room_for_state(broker, packet, verdict.username):
        connection.refuse(now, reasons.QUOTA_EXCEEDED, counted_as="sessions_bytes")
        return
    if verdict.connections_max:
        others = broker.clients.connections_of(verdict.username or "", but=packet.client_id)
        if others >= verdict.connections_max:
            connection.refuse(now, reasons.QUOTA_EXCEEDED)
            return
    if packet.will is not None and verdict.limits is not None:
        _check_will(broker, packet.will, limits)  # again: now it is known who it is
    keep_alive = _keep_alive(broker, packet)
    properties = _connack_properties(broker, packet, keep_alive, verdict, limits)
    limit = packet.properties.number(prop.MAXIMUM_PACKET_SIZE)
    if limit and len(encode_connack(version, False, 0, properties)) > limit:
        connection.end(now, say=False, why="Maximum Packet Size smaller than the CONNACK")
        return
    if not admission.is_claimed(connection, packet, verdict, now):
        return
    if not admission.end_earlier(connection, packet, verdict, now):
        return
    expiry_interval = min(_asked_expiry(packet), broker.settings.session_expiry_s_max)
    if admission.must_wait(connection, packet, verdict, expiry_interval):
        return
    session, present = _open_session(broker, packet, now)
    connection.enter(packet, session, verdict, limits)
    inbound_maximum = limits.receive_maximum if version == V5 else RECEIVE_MAXIMUM
    session.connected(verdict.username, expiry_interval, packet.will, inbound_maximum)
    if present:
        authorizer.revoke(session, now)  # what it may no longer have, before it gets any of it
        authorizer.check_queue(session)
    receive_maximum = packet.properties.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM)
    connection.activate(receive_maximum, keep_alive, now)
    broker.counters.packets_sent[CONNACK] += 1
    data = encode_connack(version, present and version != V31, 0, properties)  # [MQTT-3.1.4-5]
    connection.send(data)
    broker.runtime.client_log.connected(
        packet.client_id,
        verdict.username,
        connection.link.peer,
        connection.listener,
        version,
        keep_alive,
        is_resumed=present,
    )
    session.outbound.resume(now)
    session.record()  # after it: what is repeated need not wait for this
    session.record_will()
    broker.subscriptions.on_online(session, now)
    if broker.events.is_wanted:
        _publish_event(connection, packet, present, now)


def _publish_event(connection: Connection, packet: Connect, present: bool, now: float) -> None:
    fields: dict[str, object] = {
        "peer": connection.link.peer,
        "username": connection.authorization.username,
        "version": packet.version,
        "clean_start": packet.clean_start,
        "session_present": present,
        "keep_alive": connection.server_keep_alive,
    }
    connection.broker.events.publish(connection.session.client_id, "connected", fields, now)


def _is_full(broker: BrokerState, client_id: str) -> bool:
    """Tell whether one client more would be too many. A client that takes itself over is not."""
    settings = broker.settings
    if client_id in broker.clients.connections:
        return False
    if len(broker.clients.connections) >= settings.connections_max:
        return True
    return broker.sessions.get(client_id) is None and len(broker.sessions) >= settings.sessions_max


def _has_room_for_state(broker: BrokerState, packet: Connect, username: str | None) -> bool:
    """Tell whether the names and the will of this client may be kept, in place of those it has."""
    session = broker.sessions.get(packet.client_id)
    own = 0 if session is None else session.state_bytes
    more = state_bytes(packet.client_id, username, packet.will) - own
    return broker.sessions.state.allows(own, more)


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
    # Its own, by chance [MQTT-3.1.3-6]: whoever guesses it may take the session over.
    number = connection.broker.runtime.id_rng.getrandbits(128)
    packet.client_id = settings.auto_id_prefix + str(uuid.UUID(int=number, version=4))
    packet.properties = Properties(packet.properties)
    packet.properties[prop.ASSIGNED_CLIENT_IDENTIFIER] = packet.client_id  # [MQTT-3.1.3-7]
    return True


def _check_will(broker: BrokerState, will: Will, limits: ClientLimits) -> None:
    if will.qos > broker.settings.maximum_qos:  # [MQTT-3.2.2-12]
        raise Violation(reasons.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12", "will QoS")
    if will.retain and not limits.retain_available:  # [MQTT-3.2.2-13]
        raise Violation(reasons.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13", "retained will")
    if is_reserved(will.topic):
        raise Violation(reasons.NOT_AUTHORIZED, "MQTT-4.7.2", "will to a reserved topic")
    if level_count(will.topic) > limits.topic_levels_max:
        raise Violation(
            reasons.TOPIC_NAME_INVALID, "MQTT-4.7.3-3", "Will Topic with too many levels"
        )
    if will.properties.get(prop.PAYLOAD_FORMAT_INDICATOR) == 1:
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            raise Violation(
                reasons.PAYLOAD_FORMAT_INVALID, "MQTT-3.1.3.2.3", "will payload that is not UTF-8"
            ) from None


def _will_refusal(
    broker: BrokerState, client_id: str, will: Will, guard: Guard | None, limits: ClientLimits
) -> int:
    """Return the reason code that refuses a will as it would refuse the message, or 0."""
    if guard is not None and not guard.may_publish(will.topic):
        return reasons.NOT_AUTHORIZED
    if broker.router.payload_problem(will.topic, will.payload):
        return reasons.PAYLOAD_FORMAT_INVALID
    own_max = limits.retained_messages_max
    if will.retain and will.payload and not broker.retained.allows(client_id, will.topic, own_max):
        return reasons.QUOTA_EXCEEDED
    return 0


def _is_its_own(broker: BrokerState, client_id: str, username: str | None) -> bool:
    """Tell whether no other user's client left this session, has it, or waits for it."""
    arriving = broker.clients.arriving.get(client_id)
    handshake = None if arriving is None else arriving.handshake
    admitted_by = None if handshake is None else handshake.admitted_by
    if admitted_by is not None and admitted_by.username not in (None, username):
        return False
    session = broker.sessions.get(client_id)
    return session is None or session.username in (None, username)


def _open_session(broker: BrokerState, packet: Connect, now: float) -> tuple[Session, bool]:
    """Find the session of this client id, or make one; True when there was one."""
    session = broker.sessions.get(packet.client_id)
    if session is not None:  # [MQTT-3.1.2-5], [MQTT-3.2.2-3]
        return session, True
    return broker.sessions.create(packet.client_id, now), False  # [MQTT-3.1.2-6], [MQTT-3.2.2-2]


def _asked_expiry(packet: Connect) -> int:
    if packet.version < V5:
        return 0 if packet.clean_start else NEVER_EXPIRES
    return packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)


def _keep_alive(broker: BrokerState, packet: Connect) -> int:
    limit = broker.settings.max_keepalive
    if packet.version == V5 and limit < KEEPALIVE_ANY:
        return min(packet.keep_alive or limit, limit)
    return packet.keep_alive  # the client's own. [MQTT-3.2.2-22]


def _connack_properties(
    broker: BrokerState, packet: Connect, keep_alive: int, verdict: Allow, limits: ClientLimits
) -> Properties:
    """Tell an MQTT 5 client its limits, in an order that older test suites compare by bytes."""
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

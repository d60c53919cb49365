"""DISCONNECT from a client, and the packet that tells a client why its connection ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT, V5
from mqtt_broker.codec.encode import encode_connack, encode_disconnect
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.core.clients.states import ACTIVE

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection


def on_disconnect(connection: Connection, packet: Disconnect, now: float) -> None:
    """End the connection as its client asks. With 0x00 its will is not sent. [MQTT-3.14.4-3]"""
    broker = connection.broker
    broker.stats.packets_received[DISCONNECT] += 1
    if not connection.has_session:
        connection.end(now, say=False, why="disconnected")
        return
    session = connection.session
    if prop.SESSION_EXPIRY_INTERVAL in packet.properties:
        interval = packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)
        connect = connection.connect
        assert connect is not None
        if interval and not connect.properties.number(prop.SESSION_EXPIRY_INTERVAL):
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.1.2-23", "Session Expiry raised from 0")
        session.set_expiry(min(interval, broker.settings.session_expiry_s_max))
        if session.session_number and session.expiry_interval != session.recorded_expiry:
            broker.sessions.mark(session.client_id)  # a CONNACK that carries it on relies on it
    if packet.reason == reasons.NORMAL_DISCONNECTION:
        session.clear_will()  # [MQTT-3.1.2-10]
    connection.end(now, say=False, why="disconnected")


def say_goodbye(connection: Connection, state: int, reason: int) -> None:
    """Send a code that is the packet's to carry [MQTT-3.2.2-8], [MQTT-3.14.2-1], and no text.

    We send no Reason String and no User Property of our own, here or elsewhere, whatever
    Request Problem Information says. [MQTT-3.1.2-29]
    """
    version = connection.version
    if state == ACTIVE:  # CONNACK 0x00 was sent. [MQTT-3.14.0-1]
        if version == V5:  # 3.1.1 gets the close alone. [MQTT3-4.8.0-1]
            connection.broker.stats.packets_sent[DISCONNECT] += 1
            connection.send(encode_disconnect(V5, reason))  # no properties. [MQTT-3.14.2-2]
    elif version == V5 or (not version and reason == reasons.UNSUPPORTED_PROTOCOL_VERSION):
        # To a level that is neither of 3.x nor 5, MQTT 5's form names the reason. [MQTT-3.1.2-2]
        connection.send(encode_connack(V5, False, reason))
    elif version:
        code = reasons.connack_v3(reason)
        if code is not None and reason != reasons.CLIENT_IDENTIFIER_NOT_VALID:
            connection.send(encode_connack(version, False, code))

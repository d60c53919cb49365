"""DISCONNECT from a client."""

from __future__ import annotations

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.core.clients.connection import Connection


def on_disconnect(connection: Connection, packet: Disconnect, now: float) -> None:
    """End the connection as its client asks. With 0x00 its will is not sent. [MQTT-3.14.4-3]"""
    broker = connection.broker
    broker.counters.packets_received[DISCONNECT] += 1
    if not connection.has_session:
        connection.end(now, say=False, why="disconnected")
        return
    session = connection.session
    if prop.SESSION_EXPIRY_INTERVAL in packet.properties:
        interval = packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)
        if interval and not connection.may_expire:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.1.2-23", "Session Expiry raised from 0")
        session.set_expiry(min(interval, broker.settings.session_expiry_s_max))
        if session.session_number and session.expiry_interval != session.recorded_expiry:
            broker.sessions.mark(session.client_id)  # a CONNACK that carries it on relies on it
    if packet.reason == reasons.NORMAL_DISCONNECTION:
        session.clear_will()  # [MQTT-3.1.2-10]
    connection.end(now, say=False, why="disconnected")

"""Act on acknowledgements: PUBACK, PUBREC, PUBREL, PUBCOMP, many at a time."""

from __future__ import annotations

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import ID_BYTES
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Ack
from mqtt_broker.core.clients.connection import Connection
from qos import WrongAck
from sessions.messages.work import ACKNOWLEDGED


def on_ack(connection: Connection, packet: Ack, now: float) -> None:
    packet_type = packet.packet_type
    broker = connection.broker
    broker.counters.packets_received[packet_type] += len(packet.packet_ids)
    broker.work.spent += ACKNOWLEDGED * len(packet.packet_ids)
    try:
        _act(connection, packet, now)
    except WrongAck:
        _act_singly(connection, packet, now)


def _act_singly(connection: Connection, packet: Ack, now: float) -> None:
    """Act on a run with a wrong one in it: those in front of it count, then the connection ends."""
    for packet_id in packet.packet_ids:
        try:
            _act(connection, Ack(packet.packet_type, [packet_id], packet.reason), now)
        except WrongAck as error:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.3.3-1", str(error)) from None


def _act(connection: Connection, packet: Ack, now: float) -> None:
    packet_type = packet.packet_type
    if packet_type == PUBACK:
        # Whatever its reason code, the exchange is over [MQTT-4.3.2-1]: the message is neither
        # repeated [MQTT-4.4.0-2] nor given to another member of a share. [MQTT-4.8.2-6]
        # To a consumer group of the log it says that the record was not done.
        connection.session.outbound.on_puback(packet.packet_ids, now, packet.reason)
    elif packet_type == PUBREC:
        _on_pubrec(connection, packet, now)
    elif packet_type == PUBREL:
        _on_pubrel(connection, packet, now)
    else:
        connection.session.outbound.on_pubcomp(packet.packet_ids, now)


def _on_pubrec(connection: Connection, packet: Ack, now: float) -> None:
    """Release messages that the peer owns now. [MQTT-4.3.3-5]

    An id that nobody knows is released too: after a lost session that ends the peer's wait.
    """
    session = connection.session
    if packet.reason >= 0x80:  # [MQTT-4.3.3-4], [MQTT-4.4.0-2], [MQTT-4.8.2-6]
        session.outbound.on_pubrec_error(packet.packet_ids, now)
        return
    must_wait = session.outbound.on_pubrec(packet.packet_ids, now)
    connection.broker.counters.packets_sent[PUBREL] += len(packet.packet_ids)
    data = b"".join([b"\x62\x02" + ID_BYTES[i] for i in packet.packet_ids])
    # After PUBREL it may be too late to learn that PUBREC had come.
    connection.send_in_order(data, now, safely=must_wait)


def _on_pubrel(connection: Connection, packet: Ack, now: float) -> None:
    """Free ids that the peer has let go of. [MQTT-4.3.3-11], [MQTT-4.3.3-12]

    An id that is not open is completed as well, since it repeats a PUBREL whose PUBCOMP was
    lost.
    """
    session = connection.session
    journal = connection.broker.journal
    freed = [i for i in packet.packet_ids if session.inbound.on_pubrel(i)]
    connection.broker.counters.packets_sent[PUBCOMP] += len(packet.packet_ids)
    if session.spares_ids:
        session.fit_ids()
    data = b"".join([b"\x70\x02" + ID_BYTES[i] for i in packet.packet_ids])
    if freed and session.outbound.session_number and journal is not None:
        journal.on_freed(session.outbound.session_number, freed)
    # After PUBCOMP the id may come with another message, which is not a repetition.
    connection.send_in_order(data, now, safely=session.outbound.session_number > 0)

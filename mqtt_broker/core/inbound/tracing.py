"""Trace a PUBLISH: its spans, and the trace context that its subscribers get.

The context stands in the user property `traceparent`, as W3C writes it. Packets are written anew
with the span of this broker in its place; this is for sampled messages alone.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_publish
from mqtt_broker.codec.packets import Publish
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.tracing import MessageTrace, MessageTracer
from mqtt_broker.core.routing.routes import Route
from sessions.journal.journal import MEMORY
from sessions.journal.transaction import PendingCall

TRACEPARENT: Final = "traceparent"


def begin(
    tracer: MessageTracer, connection: Connection, packet: Publish, topic: str, now: float
) -> tuple[Publish, MessageTrace | None]:
    """Begin a trace, if the message is sampled; returns the packet that subscribers get."""
    if connection.version != V5:
        return packet, None
    pairs = packet.properties.user
    parent = next((value for name, value in pairs if name == TRACEPARENT), "")
    client_id = connection.session.client_id
    trace = tracer.begin(parent, client_id, topic, packet.qos, len(packet.raw), now)
    if trace is None:
        return packet, None
    properties = Properties(packet.properties)
    others = [pair for pair in pairs if pair[0] != TRACEPARENT]
    properties[prop.USER_PROPERTY] = [*others, (TRACEPARENT, trace.traceparent)]
    return _rewritten(packet, properties), trace


def _rewritten(packet: Publish, properties: Properties) -> Publish:
    """Return the run of packets with other properties."""
    ids = packet.packet_ids() if packet.qos else [0] * packet.count
    raw = b"".join(
        encode_publish(
            V5,
            packet.topic,
            payload,
            qos=packet.qos,
            retain=packet.retain,
            packet_id=packet_id,
            properties=properties,
        )
        for packet_id, payload in zip(ids, packet.payloads(), strict=True)
    )
    found = Decoder(from_server=True, version=V5).feed(raw)
    if len(found) != 1 or not isinstance(found[0], Publish):  # it cannot be one run
        return packet
    made = found[0]
    return Publish(
        made.topic, made.qos, made.retain, packet.dup, made.properties,
        made.raw, made.count, made.size, made.id_at, made.payload_at,
    )  # fmt: skip


def note_store(trace: MessageTrace, connection: Connection, route: Route, qos: int) -> None:
    """Note when the message is stored, if it has to be."""
    journal = connection.broker.journal
    if journal is not None and qos and route.durability != MEMORY and not journal.is_settled:
        trace.begin_store()
        journal.wait(PendingCall(lambda now: trace.end_store()))

"""Publish messages that did not reach their client as dead letters, under `$dlq/`.

A message becomes `$dlq/<reason>/<its topic>`, with its payload and properties and, as user
properties, why (`dlq-reason`), the client it was for or, of a schema, from (`dlq-client`), and
when (`dlq-time`). It is published at the end of the turn, so that it is in the same group of the
journal as the end of the original. Subscribers see it; a stream over `$dlq/#` keeps it.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import STRING_BYTES_MAX
from mqtt_broker.codec.properties import Properties, encode_each
from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.core.routing.router import Router
from mqtt_broker.core.runtime.dead_letter_buffer import DeadLetterBuffer
from sessions.messages.backlog import Backlog
from sessions.messages.message import Envelope, Message

ROOT: Final = "$dlq"
REASONS: Final = ("expired", "queue_full", "schema", "redelivery")


def buffer_for(reasons: str) -> DeadLetterBuffer | None:
    """Make the buffer for reasons as the settings name them; None when there are none."""
    if not reasons:
        return None
    names = reasons.split(",")
    return DeadLetterBuffer(frozenset(REASONS if "all" in names else names))


def publish_all(buffer: DeadLetterBuffer, router: Router, backlog: Backlog, now: float) -> None:
    """Publish what was collected until now; what that brings about is for the next turn."""
    overflow = buffer.take_overflow()
    if overflow:
        backlog.drop("dead_letters_full", overflow)
    for _ in range(len(buffer)):
        reason, message, client_id, detail = buffer.pop()
        router.publish(_dead_letter(reason, message, client_id, detail, now), None, now)


def _dead_letter(reason: str, message: Message, client_id: str, detail: str, now: float) -> Message:
    envelope = message.envelope
    topic = f"{ROOT}/{reason}/{envelope.topic}"
    if len(topic.encode()) > STRING_BYTES_MAX:
        topic = f"{ROOT}/{reason}"  # its own is as long as a topic may be
    user = [("dlq-reason", detail or reason), ("dlq-client", client_id), ("dlq-time", f"{now:.3f}")]
    body = envelope.forwarded + encode_each(Properties({prop.USER_PROPERTY: user}))
    properties = Properties(envelope.decoded())
    properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
    properties[prop.USER_PROPERTY] = properties.user + user
    section = encode_varint(len(body)) + body
    return Message(
        Envelope(
            topic,
            envelope.qos,
            False,
            properties,
            section,
            len(message.payload),
            envelope.publisher,
            now,
        ),
        message.payload,
    )

"""Dead letters: messages that did not reach whom they were for, published under `$dlq/`.

A message becomes `$dlq/<reason>/<its topic>`, with its payload and properties and, as user
properties, why (`dlq-reason`), whom it was for or, of a schema, from (`dlq-client`), and when
(`dlq-time`). It is published at the end of the turn, so that it is in the same group of the
journal as the end of what it was. Whoever subscribes sees it; a stream over `$dlq/#` keeps it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import STRING_BYTES_MAX
from mqtt_broker.codec.properties import Properties, encode_each
from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.core.inbound.publish import publish
from sessions.messages.message import Envelope, Message

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker

ROOT: Final = "$dlq"
REASONS: Final = ("expired", "queue_full", "schema", "redelivery")
WAITING_MAX: Final = 10_000  # of one turn; what is more is only counted
_Letter = tuple[str, Message, str, str]


class DeadLetters:
    """Collects them for some reasons, and publishes them when the turn is over."""

    def __init__(self, broker: Broker, reasons: frozenset[str]) -> None:
        self._broker = broker
        self.reasons = reasons
        self._waiting: deque[_Letter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
        if reason not in self.reasons or message.envelope.topic.startswith("$"):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._broker.budget.drop("dead_letters_full")
            return
        self._waiting.append((reason, message, client_id, why))

    def publish(self, now: float) -> None:
        for _ in range(len(self._waiting)):  # what these bring about is for the next turn
            reason, message, client_id, why = self._waiting.popleft()
            letter = _letter(reason, message, client_id, why, now)
            publish(self._broker, letter, None, now)


def _letter(reason: str, message: Message, client_id: str, why: str, now: float) -> Message:
    envelope = message.envelope
    topic = f"{ROOT}/{reason}/{envelope.topic}"
    if len(topic.encode()) > STRING_BYTES_MAX:
        topic = f"{ROOT}/{reason}"  # its own is as long as a topic may be
    user = [("dlq-reason", why or reason), ("dlq-client", client_id), ("dlq-time", f"{now:.3f}")]
    body = envelope.travels + encode_each(Properties({prop.USER_PROPERTY: user}))
    properties = Properties(envelope.properties)
    properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
    properties[prop.USER_PROPERTY] = envelope.properties.user + user
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

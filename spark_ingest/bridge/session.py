"""The MQTT side of the bridge, tied to the log: no message is acknowledged before it is on disk.

One thread does everything: it reads the socket and adds messages to the log's columns in memory.
When a group is complete, or has waited long enough, it writes the group, waits for the disk, and
only then sends the PUBACKs. Receive Maximum limits how many messages the broker may send ahead: so
memory is bounded, and a slow disk slows the broker down instead of losing messages.

Delivery is at least once: after a lost connection the broker sends unacknowledged messages again,
and those that were already on disk are in the log twice. An acknowledgement is sent only on the
connection on which its message arrived: on another one its packet id may belong to another message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mqtt_broker.client.blocking import Address, Client
from mqtt_broker.client.errors import ClientError
from mqtt_broker.client.protocol import (
    Closed,
    Connected,
    Event,
    Message,
    RequestAcknowledged,
    describe_reason,
)
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.codec.properties import Properties, encode_each
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.streams.write.writer import LogWriter

GROUP_MESSAGES: Final = 1_000
GROUP_BYTES: Final = 4 << 20
LINGER_S: Final = 0.02
IDLE_S: Final = 0.25
CONNECT_S: Final = 10.0
SUBSCRIBE_S: Final = 20.0
WRITE_AGAIN_S: Final = 1.0
# Errors that trying again does not cure.
_FINAL_REASONS: Final = frozenset(
    (
        reasons.UNSUPPORTED_PROTOCOL_VERSION,
        reasons.CLIENT_IDENTIFIER_NOT_VALID,
        reasons.BAD_USER_NAME_OR_PASSWORD,
        reasons.NOT_AUTHORIZED,
        reasons.BANNED,
        reasons.BAD_AUTHENTICATION_METHOD,
        reasons.SERVER_MOVED,
    )
)
_RETAIN_IF_NEW: Final = 1
# Properties that belong to one hop.
_HOP: Final = frozenset(
    (prop.MESSAGE_EXPIRY_INTERVAL, prop.SUBSCRIPTION_IDENTIFIER, prop.TOPIC_ALIAS)
)

Device = Callable[[str, list[tuple[str, str]]], str]


class BridgeRefused(Exception):
    """The broker refuses the bridge, and would refuse it again."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker that messages come from, and the client's part of the connection."""

    address: Address
    client_id: str
    filters: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    keepalive_s: int = 30
    inflight_max: int = 2_000
    session_expiry_s: int = 7 * 86_400

    def __str__(self) -> str:
        return str(self.address)

    def connect_packet(self) -> Connect:
        return Connect(
            V5,
            self.client_id,
            clean_start=False,
            keep_alive=self.keepalive_s,
            properties=Properties(
                {
                    prop.SESSION_EXPIRY_INTERVAL: self.session_expiry_s,
                    prop.RECEIVE_MAXIMUM: self.inflight_max,
                }
            ),
            username=self.username,
            password=None if self.password is None else self.password.encode(),
        )


@dataclass(slots=True)
class Figures:
    messages: int = 0  # received, ever
    repeats: int = 0  # sent again by the broker: they may be in the log twice
    acknowledged: int = 0
    lost_qos0: int = 0  # there was no room, and QoS 0 is not sent again


class Session:
    """The bridge's session at the broker, over as many connections as it needs."""

    def __init__(
        self,
        broker: Broker,
        stream: Stream,
        writer: LogWriter,
        device: Device,
        say: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._stream = stream
        self._writer = writer
        self._device = device
        self._say = say
        self.figures = Figures()
        self.is_connected = False  # and subscribed
        self.client: Client | None = None
        self._unacknowledged: list[Message] = []  # of this connection, in their order
        self._group_bytes = 0
        self._group_since = 0.0
        self._number = 0
        self._is_unwritten = False  # a write failed: it is tried again, now and then
        self._write_at = 0.0
        self._has_gap = (
            False  # a message did not fit: the broker sends it again only on a new connection
        )

    # Connections.

    def connect(self, stop: Callable[[], bool]) -> None:
        """Open a connection and subscribe. Raises ClientError, or BridgeRefused."""
        self._disconnect()
        self._has_gap = False
        broker = self._broker
        self.client = Client(
            broker.address,
            broker.connect_packet(),
            connect_timeout_s=CONNECT_S,
            # mosquitto 2.0 does not count messages that it sends again. The writer bounds memory.
            enforces_receive_maximum=False,
        )
        deadline = time.monotonic() + SUBSCRIBE_S
        while not self.is_connected and not stop():
            self._turn(IDLE_S)
            if time.monotonic() > deadline:
                raise ClientError(f"no answer to SUBSCRIBE within {SUBSCRIBE_S:g} s")

    def serve(self, stop: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Take messages until `stop`. Raises ClientError for a lost connection; BridgeRefused."""
        while not stop():
            try:
                self._turn(self._patience())
            except ClientError:
                self.flush(is_last=True)
                raise
            if self._is_due():
                self.flush()
            if self._has_gap and not self._is_unwritten and self.flush():
                self._disconnect()
                raise ClientError("there was no room for a message: the broker sends it again")
            tell()

    def close(self) -> None:
        """Write and acknowledge what has arrived, and disconnect; the broker keeps the session."""
        self.flush(is_last=True)
        self._disconnect()

    def _disconnect(self) -> None:
        self.is_connected = False
        self._unacknowledged.clear()
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def _turn(self, wait_s: float) -> None:
        """Read from and write to the socket. Raises ClientError, or BridgeRefused."""
        assert self.client is not None
        events, _ = self.client.step(wait_s)
        for event in events:
            if isinstance(event, Message):
                self.on_message(event)
            else:
                self._on_event(self.client, event)

    def _on_event(self, client: Client, event: Event) -> None:
        if isinstance(event, Connected):
            self._on_connected(client, event)
        elif isinstance(event, RequestAcknowledged):
            self._on_subscribed(event)
        elif isinstance(event, Closed):
            self.is_connected = False
            broker = self._broker
            if event.by_broker and event.reason == reasons.SESSION_TAKEN_OVER:
                raise BridgeRefused(f"another client has taken over {broker.client_id!r}")
            if (
                event.by_broker
                and not client.protocol.connected
                and (event.reason in _FINAL_REASONS)
            ):
                raise BridgeRefused(f"{broker}: {event.text}")
            raise ClientError(event.text)

    def _on_connected(self, client: Client, event: Connected) -> None:
        broker = self._broker
        if not event.session_present:
            self._say(f"{broker} has no session of {broker.client_id!r}: a new one begins")
        client.protocol.subscribe(
            [
                SubscriptionRequest(
                    text, 1, retain_as_published=True, retain_handling=_RETAIN_IF_NEW
                )
                for text in broker.filters
            ]
        )

    def _on_subscribed(self, event: RequestAcknowledged) -> None:
        for text, reason in zip(self._broker.filters, event.reasons, strict=False):
            if reason >= reasons.UNSPECIFIED_ERROR:
                why = describe_reason(reason, event.reason_string)
                raise BridgeRefused(f"{self._broker} refuses filter {text!r}: {why}")
            if reason == 0:
                self._say(f"{text!r} is granted at QoS 0: what is lost on its way is lost")
        self.is_connected = True

    # Messages.

    def on_message(self, message: Message) -> None:
        section, user = _properties(message.properties)
        taken = self._writer.append(
            self._stream,
            message.topic,
            self._device(message.topic, user),
            [message.payload],
            time.time_ns() // 1_000,
            qos=message.qos,
            retain=message.retain,
            properties=section,
            user=user,
        )
        self.figures.messages += 1
        if message.dup:
            self.figures.repeats += 1
        if taken:
            if not self._group_bytes:
                self._group_since = time.monotonic()
            self._group_bytes += len(message.payload) + 1
            if message.qos:
                message.payload = b""  # the writer has it; only the packet id is needed
                self._unacknowledged.append(message)
        elif message.qos:
            self._has_gap = True
        else:
            self.figures.lost_qos0 += 1

    def _patience(self) -> float:
        if not self._group_bytes:
            return IDLE_S
        due = self._write_at if self._is_unwritten else self._group_since + LINGER_S
        return min(IDLE_S, max(0.0, due - time.monotonic()))

    def _is_due(self) -> bool:
        if not self._group_bytes:
            return False
        now = time.monotonic()
        if self._is_unwritten:
            return now >= self._write_at
        return (
            now - self._group_since >= LINGER_S
            or len(self._unacknowledged) >= min(GROUP_MESSAGES, self._broker.inflight_max // 2)
            or self._group_bytes >= GROUP_BYTES
        )

    def flush(self, *, is_last: bool = False) -> bool:
        """Write the group to disk, then acknowledge it; False if it could not be written.

        `is_last`: this is the last turn on this connection.
        """
        if not self._group_bytes:
            return True
        try:
            if not self._is_unwritten or self._writer.has_new:
                self._number += 1
                self._writer.assign(self._number)
            ends = self._writer.write(self._number)
        except (OSError, StreamError) as error:
            if not self._is_unwritten or is_last:
                self._say(f"the log cannot be written ({error}); nothing is acknowledged")
            self._is_unwritten = True
            self._write_at = time.monotonic() + WRITE_AGAIN_S
            return False
        self._writer.committed(ends)
        if self._is_unwritten:
            self._say("the log can be written again")
            self._is_unwritten = False
        self._group_bytes = 0
        self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        waiting, self._unacknowledged = self._unacknowledged, []
        if self.client is None or not self.is_connected:
            return
        for message in waiting:
            self.client.protocol.acknowledge(message)
        self.client.flush()
        self.figures.acknowledged += len(waiting)


def _properties(found: Properties) -> tuple[bytes, list[tuple[str, str]]]:
    """Return the properties as encoded in MQTT 5, without their length, and the user properties."""
    if not found:
        return b"", []
    if not _HOP.isdisjoint(found):
        found = Properties({key: value for key, value in found.items() if key not in _HOP})
    return encode_each(found), found.user

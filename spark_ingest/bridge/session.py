"""The MQTT side of the bridge, and what ties it to the log: nothing is acknowledged before it is
on disk.

One thread does all: it reads what the socket has, appends it to the log's columns in memory, and
when a group is together, or has waited long enough, writes it, waits for the disk, and only then
sends the PUBACKs. What the broker may send ahead is Receive Maximum; so memory is bounded, and a
slow disk slows the broker down rather than losing anything.

At least once: after a lost connection the broker sends again what was not acknowledged, and what
of that was on disk already stands in the log twice. An acknowledgement is never sent on another
connection than the one that its message came by: there its packet id may mean another message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.streams.write.writer import LogWriter

GROUP_MESSAGES: Final = 1_000
GROUP_BYTES: Final = 4 << 20
LINGER_S: Final = 0.02
IDLE_S: Final = 0.25
CONNACK_S: Final = 20.0
WRITE_AGAIN_S: Final = 1.0
# Trying again would not help: version, client id, password, rights, ban, method, moved; and in a
# DISCONNECT, that another client has taken the session over.
_FINAL_CODES: Final = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x9D})
_TAKEN_OVER: Final = 0x8E
_RETAIN_IF_NEW: Final = 1
# What belongs to one hop.
_HOP: Final = ("MessageExpiryInterval", "SubscriptionIdentifier", "TopicAlias")

Device = Callable[[str, list[tuple[str, str]]], str]


class BridgeRefused(Exception):
    """The broker says no, and will say so again."""


@dataclass(frozen=True, slots=True)
class Broker:
    host: str
    port: int
    client_id: str
    filters: tuple[str, ...]
    transport: str = "tcp"  # or websockets
    path: str = "/mqtt"
    is_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    is_insecure: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    keepalive_s: int = 30
    inflight_max: int = 2_000
    session_expiry_s: int = 7 * 86_400

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class Figures:
    messages: int = 0  # taken, ever
    repeats: int = 0  # sent again by the broker: they may stand in the log twice
    acknowledged: int = 0
    lost_qos0: int = 0  # there was no room, and nobody sends them again


class Session:
    """One bridge's session, over as many connections as it takes."""

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
        self._subscribing = 0  # the packet id of our SUBSCRIBE
        self._refused = ""
        self._lost_why = ""
        self._unacknowledged: list[int] = []  # packet ids of this connection, in their order
        self._group_bytes = 0
        self._group_since = 0.0
        self._number = 0
        self._is_unwritten = False  # a write failed: it is tried again, now and then
        self._write_at = 0.0
        self._has_gap = False  # a message had no room: only a new connection brings it again
        self._client = self._made()

    def _made(self) -> paho.Client:
        broker = self._broker
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=broker.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            transport="websockets" if broker.transport == "websockets" else "tcp",
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if broker.is_tls:
            client.tls_set(broker.ca_file, broker.cert_file, broker.key_file)
            client.tls_insecure_set(broker.is_insecure)
        if broker.transport == "websockets":
            client.ws_set_options(broker.path)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    # Connections.

    def connect(self, stop: Callable[[], bool]) -> None:
        """Until the broker has said yes to session and filters. OSError, Refused."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._broker.session_expiry_s
        properties.ReceiveMaximum = self._broker.inflight_max
        self._forget_connection()
        self._lost_why = ""
        self._has_gap = False
        try:
            self._client.connect(
                self._broker.host,
                self._broker.port,
                self._broker.keepalive_s,
                clean_start=False,
                properties=properties,
            )
        except ValueError as error:
            raise OSError(str(error)) from None
        deadline = time.monotonic() + CONNACK_S
        while not self.is_connected and not stop():
            if not self._turn(IDLE_S):
                raise OSError(self._lost_why or "the connection was closed")
            if time.monotonic() > deadline:
                self._client.disconnect()
                raise OSError(f"no answer within {CONNACK_S:g} s")

    def serve(self, stop: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Until `stop`, or until the connection is lost: OSError. Refused."""
        while not stop():
            if not self._turn(self._patience()):
                self.flush(is_last=True)
                raise OSError(self._lost_why or "the connection was closed")
            while self._writer.has_new and not self._is_due() and self._read_more():
                pass
            if self._is_due():
                self.flush()
            if self._has_gap and not self._is_unwritten and self.flush():
                self._client.disconnect()
                raise OSError("there was no room for a message: the broker has to send it again")
            tell()

    def close(self) -> None:
        """What came is written and acknowledged; the session stays, over there."""
        self.flush(is_last=True)
        self._client.disconnect()
        self._turn(0.0)

    def _turn(self, wait_s: float) -> bool:
        """Read and write what can be; False: the connection is gone."""
        code = self._client.loop(wait_s)
        if self._refused:
            raise BridgeRefused(self._refused)
        return code == MQTTErrorCode.MQTT_ERR_SUCCESS

    def _read_more(self) -> bool:
        """One more packet without asking the kernel whether there is one; False: there is none."""
        before = self.figures.messages
        code = self._client.loop_read()
        return code == MQTTErrorCode.MQTT_ERR_SUCCESS and self.figures.messages > before

    def _forget_connection(self) -> None:
        self.is_connected = False
        self._unacknowledged.clear()

    def _on_connect(
        self, client: Any, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:
            if code.value in _FINAL_CODES:
                self._refused = f"{self._broker} refuses us: {code}"
            self._lost_why = f"{self._broker} refuses us: {code}"
            return
        if not flags.session_present:
            self._say(f"{self._broker} has no session of {self._broker.client_id!r}: a new one")
        options = SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=_RETAIN_IF_NEW)
        wanted = [(filter_, options) for filter_ in self._broker.filters]
        _, mid = client.subscribe(wanted)
        self._subscribing = mid or 0

    def _on_subscribe(
        self, client: Any, userdata: Any, mid: int, codes: list[ReasonCode], properties: Any
    ) -> None:
        if mid != self._subscribing:
            return
        for filter_, code in zip(self._broker.filters, codes, strict=False):
            if code.is_failure:
                self._refused = f"{self._broker} refuses filter {filter_!r}: {code}"
            elif code.value == 0:
                self._say(f"{filter_!r} is granted at QoS 0: what is lost on its way is lost")
        self.is_connected = True

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._lost_why = f"{self._broker} says: {code}"
            if code.value == _TAKEN_OVER:
                self._refused = f"another client has taken over {self._broker.client_id!r}"
        self.is_connected = False

    # Messages.

    def _on_message(self, client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:  # against the rules of MQTT; a topic is text
            topic = ""
        section, user = _properties(message.properties)
        taken = topic and self._writer.append(
            self._stream,
            topic,
            self._device(topic, user),
            [bytes(message.payload)],
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
                self._unacknowledged.append(message.mid)
        elif message.qos and topic:
            self._has_gap = True
        elif message.qos:
            self._unacknowledged.append(message.mid)
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
        """To disk, and then the acknowledgements; False: it could not be written.

        `is_last`: no other turn comes on this connection.
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
        for mid in waiting:
            if not self.is_connected:
                return
            if self._client.ack(mid, 1) != MQTTErrorCode.MQTT_ERR_SUCCESS:
                return
            self.figures.acknowledged += 1


def _properties(found: Any) -> tuple[bytes, list[tuple[str, str]]]:
    """(as MQTT 5 writes them, without the length in front; the user properties)."""
    if found is None or found.isEmpty():
        return b"", []
    for name in _HOP:
        if hasattr(found, name):
            delattr(found, name)
    packed = bytes(found.pack())
    at = next(at for at, byte in enumerate(packed) if byte < 0x80) + 1
    return packed[at:], list(getattr(found, "UserProperty", []))

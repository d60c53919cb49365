"""An MQTT client as a state machine: bytes and time in, events and bytes out.

    connecting --CONNACK--> connected --DISCONNECT, Violation, no PINGRESP--> closed

Rules of this module: no socket and no clock; `blocking` brings both. `receive` and `tick`
return events, `take_output` what has to be written. A message is acknowledged only when the
caller calls `acknowledge`; until then a message of QoS 1 or 2 stays with the broker.
The client's Session State is a `ClientSession`, which the next connection's protocol can take over.
When the broker resumes a session of an earlier run, its PUBREL for an unknown packet id still gets
a PUBCOMP, so that both sides come to an end.
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mqtt_broker.client.errors import Unsendable
from mqtt_broker.client.other_protocols import other_protocol
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import (
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM_DEFAULT,
    REMAINING_LENGTH_MAX,
    V5,
)
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_ack, encode_from_client, encode_publish
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, encode_properties
from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.topics.aliases import InboundAliases
from qos import Receiver, Sender, WrongAck
from qos.sender import allocate

FIXED_HEADER_BYTES_MAX: Final = 5

# CONNACK return codes of 3.1 and 3.1.1, in the specification's words.
_RETURN_CODES: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


@dataclass(slots=True)
class Connected:
    """The broker accepted the connection."""

    session_present: bool
    client_id: str
    properties: Properties


@dataclass(slots=True)
class Message:
    """A PUBLISH that arrived; `ClientProtocol.acknowledge` acknowledges it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Published:
    """The broker accepted a QoS 1 or 2 message, or refused it with `reason`."""

    topic: str
    reason: int = 0
    reason_string: str = ""
    tag: object = None  # as given to `publish`


@dataclass(slots=True)
class RequestAcknowledged:
    """SUBACK or UNSUBACK: a reason code for each Topic Filter (none in 3.1.1's UNSUBACK)."""

    request: Subscribe | Unsubscribe
    reasons: list[int]
    reason_string: str = ""


@dataclass(slots=True)
class Closed:
    """The connection is over; `text` says why, `reason` is the broker's code if it sent one."""

    text: str
    reason: int = 0
    by_broker: bool = False  # it sent a CONNACK that refuses, or a DISCONNECT


Event = Connected | Message | Published | RequestAcknowledged | Closed


@dataclass(slots=True)
class _Outgoing:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties
    tag: object


class ClientSession:
    """The client's Session State: the exchanges that are not complete, in both directions."""

    def __init__(self, receive_maximum: int) -> None:
        self.receiver = Receiver(receive_maximum)
        self.sender: Sender[_Outgoing] = Sender()
        self.backlog: deque[_Outgoing] = deque()  # waits until Receive Maximum lets it go

    def go_on(self) -> None:
        """Keep the open QoS 2 exchanges; QoS 1 messages without a PUBACK come again."""
        open_exchanges = self.receiver.ids
        self.receiver = Receiver(self.receiver.limit)
        self.receiver.ids.update(open_exchanges)

    def begin_anew(self) -> None:
        """Start a new session: what has no acknowledgement is sent as new."""
        self.receiver = Receiver(self.receiver.limit)
        self.backlog.extendleft(reversed(self.sender.unacked.values()))
        self.sender = Sender()


class ClientProtocol:
    """The client's end of a connection. The constructor queues the CONNECT."""

    def __init__(
        self,
        connect: Connect,
        trace: Callable[[str], None] | None = None,
        *,
        enforces_receive_maximum: bool = True,
        session: ClientSession | None = None,
    ) -> None:
        """Take over the session of an earlier connection, if one is given."""
        self.version = connect.version
        self.client_id = connect.client_id
        self.connected = False
        self.closed = False
        self._is_mqtt = False  # nothing has come that could tell
        self.output_bytes = 0  # what `take_output` would give
        self._trace = trace

        # Towards us. What CONNECT does not limit is unlimited. [MQTT-3.1.2.11.3]
        asked = connect.properties
        self._decoder = Decoder(
            from_server=True,
            version=connect.version,
            packet_bytes_max=asked.number(
                prop.MAXIMUM_PACKET_SIZE, REMAINING_LENGTH_MAX + FIXED_HEADER_BYTES_MAX
            ),
        )
        self._enforces_receive_maximum = enforces_receive_maximum
        self._aliases = InboundAliases(asked.number(prop.TOPIC_ALIAS_MAXIMUM))

        if session is None:
            session = ClientSession(asked.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM_DEFAULT))
        self.session = session

        # Towards the broker. CONNACK narrows it.
        self._requests: dict[int, Subscribe | Unsubscribe] = {}
        self._last_request_id = 0
        self._allowed = NO_PROPERTIES
        self._out: list[bytes] = []

        # Keep alive. [MQTT-3.1.2-20]
        self._keep_alive_s = connect.keep_alive
        self._sent_at = 0.0
        self._ping_at: float | None = None

        self._send(encode_from_client(self.version, connect))

    # Requests of the caller.

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        tag: object = None,
    ) -> None:
        """Send now, or as soon as Receive Maximum allows; `Published` gives the tag back.

        Raises Unsendable.
        """
        message = _Outgoing(topic, payload, qos, retain, properties, tag)
        self._check_sendable(message)
        self.session.backlog.append(message)
        self._pump()

    def subscribe(
        self, requests: list[SubscriptionRequest], properties: Properties = NO_PROPERTIES
    ) -> None:
        packet_id = self._request_id()
        self._request(packet_id, Subscribe(packet_id, requests, properties))

    def unsubscribe(self, filters: list[str], properties: Properties = NO_PROPERTIES) -> None:
        packet_id = self._request_id()
        self._request(packet_id, Unsubscribe(packet_id, filters, properties))

    def acknowledge(self, message: Message) -> None:
        """Send PUBACK or PUBREC: the message is the caller's from here on."""
        if self.closed:
            return
        if message.qos == 1:
            self.session.receiver.held -= 1
            self._send(encode_ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self._send(encode_ack(PUBREC, message.packet_id))

    def disconnect(self, reason: int = 0, properties: Properties = NO_PROPERTIES) -> None:
        """Queue DISCONNECT; what arrives afterwards is ignored."""
        if not self.closed:
            self._send(encode_from_client(self.version, Disconnect(reason, properties)))
            self.closed = True

    # State.

    @property
    def unfinished(self) -> int:
        """Count the messages that are not acknowledged yet, QoS 2 up to its PUBCOMP."""
        return len(self.session.backlog) + len(self.session.sender)

    @property
    def has_backlog(self) -> bool:
        """Tell whether messages wait here until Receive Maximum lets them go."""
        return bool(self.session.backlog)

    @property
    def next_tick(self) -> float | None:
        """The time at which `tick` has to be called, if nothing happens before."""
        if not self.connected or self.closed or not self._keep_alive_s:
            return None
        return (self._sent_at if self._ping_at is None else self._ping_at) + self._keep_alive_s

    # Bytes and time.

    def take_output(self, now: float) -> bytes:
        """Return what has to be written, once."""
        if not self._out:
            return b""
        self._sent_at = now
        out = b"".join(self._out)
        self._out.clear()
        self.output_bytes = 0
        return out

    def tick(self, now: float) -> list[Event]:
        """Send PINGREQ when it is due; end the connection when its answer is."""
        due = self.next_tick
        if due is None or now < due:
            return []
        if self._ping_at is None:
            self._ping_at = now
            self._send(encode_from_client(self.version, Pingreq()))
            return []
        self.closed = True
        return [Closed("the broker did not answer PINGREQ")]

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the broker; return what they mean to the caller."""
        if not self._is_mqtt:
            if other := other_protocol(data):
                self.closed = True
                return [Closed(other)]
            self._is_mqtt = True
        events: list[Event] = []
        for packet in self._decoder.feed(data):
            if self.closed:
                break
            try:
                if isinstance(packet, Violation):
                    raise packet
                self._on_packet(packet, events)
            except Violation as violation:
                if self.connected and self.version == V5:
                    self.disconnect(violation.reason)
                self.closed = True
                events.append(Closed(f"the broker broke the protocol: {violation}"))
        if not self.closed:
            self._pump()
        return events

    def _on_packet(self, packet: Packet, events: list[Event]) -> None:
        if isinstance(packet, Ack):
            self._traced("received", PACKET_NAMES[packet.packet_type])
        else:
            self._traced("received", type(packet).__name__)
        if isinstance(packet, Connack):
            self._on_connack(packet, events)
        elif not self.connected:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-1", "no CONNACK first")
        elif isinstance(packet, Publish):
            self._on_publish(packet, events)
        elif isinstance(packet, Ack):
            self._on_ack(packet, events)
        elif isinstance(packet, Suback | Unsuback):
            self._on_request_ack(packet, events)
        elif isinstance(packet, Pingresp):
            self._ping_at = None
        elif isinstance(packet, Disconnect):
            self.closed = True
            text = f"the broker disconnected: {_disconnect_text(packet)}"
            events.append(Closed(text, packet.reason, by_broker=True))
        else:
            # AUTH: we named no Authentication Method, so there is none. [MQTT-4.12.0-6]
            raise Violation(
                reasons.PROTOCOL_ERROR, "MQTT-4.12.0-6", f"unasked {type(packet).__name__.upper()}"
            )

    def _on_connack(self, packet: Connack, events: list[Event]) -> None:
        if self.connected:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-2", "a second CONNACK")
        if packet.reason:
            self.closed = True
            if self.version == V5:
                said = packet.properties.text(prop.REASON_STRING) or ""
                why = describe_reason(packet.reason, said)
            else:
                why = f"{_RETURN_CODES.get(packet.reason, 'unknown')} ({packet.reason})"
            text = f"the broker refused the connection: {why}"
            events.append(Closed(text, packet.reason, by_broker=True))
            return
        self.connected = True
        self._allowed = told = packet.properties
        if packet.session_present:
            self.session.go_on()
        else:
            self.session.begin_anew()
        self.session.sender.limit = told.number(prop.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM_DEFAULT)
        self._keep_alive_s = told.number(prop.SERVER_KEEP_ALIVE, self._keep_alive_s)
        self.client_id = told.text(prop.ASSIGNED_CLIENT_IDENTIFIER) or self.client_id
        self._resend()
        events.append(Connected(packet.session_present, self.client_id, told))

    def _on_publish(self, run: Publish, events: list[Event]) -> None:
        topic = self._topic(run)
        ids = run.packet_ids() if run.qos else [0] * run.count
        for packet_id, payload in zip(ids, run.payloads(), strict=True):
            if run.qos == 2 and not self.session.receiver.on_publish(packet_id):
                self._send(encode_ack(PUBREC, packet_id))  # repeated: [MQTT-4.3.3-10]
                continue
            if run.qos == 1:
                self.session.receiver.held += 1
            if self._enforces_receive_maximum and self.session.receiver.over_quota():
                raise Violation(
                    reasons.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.1.2.11.3", "too many at once"
                )
            events.append(
                Message(topic, payload, run.qos, run.retain, run.dup, packet_id, run.properties)
            )

    def _topic(self, run: Publish) -> str:
        alias = run.properties.number(prop.TOPIC_ALIAS)
        if not alias:
            return run.topic
        if alias > self._aliases.limit:
            raise Violation(reasons.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-10", f"alias {alias}")
        if run.topic:
            self._aliases.put(alias, run.topic)
            return run.topic
        topic = self._aliases.get(alias)
        if topic is None:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.3.2-7", f"unknown alias {alias}")
        return topic

    def _on_ack(self, packet: Ack, events: list[Event]) -> None:
        if packet.packet_type == PUBREL:
            for packet_id in packet.packet_ids:
                known = self.session.receiver.on_pubrel(packet_id)
                reason = 0 if known or self.version < V5 else reasons.PACKET_IDENTIFIER_NOT_FOUND
                self._send(encode_ack(PUBCOMP, packet_id, reason))
            return
        try:
            done = self._finish(packet)
        except WrongAck as wrong:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.3.2-2", str(wrong)) from None
        said = packet.properties.text(prop.REASON_STRING) or ""
        events.extend(
            Published(message.topic, packet.reason, said, message.tag) for message in done
        )

    def _finish(self, packet: Ack) -> list[_Outgoing]:
        """Act on PUBACK, PUBREC or PUBCOMP; return the messages that it accepts or refuses."""
        ids = packet.packet_ids
        if packet.packet_type == PUBACK:
            return self.session.sender.on_puback(ids)
        if packet.packet_type == PUBCOMP:
            self.session.sender.on_pubcomp(ids)
            return []
        if packet.reason >= reasons.UNSPECIFIED_ERROR:  # [MQTT-4.3.3-4]
            refused = [self.session.sender.on_pubrec_error(packet_id) for packet_id in ids]
            return [message for message in refused if message is not None]
        done, unknown = self.session.sender.on_pubrec(ids)
        for packet_id in ids:
            said = reasons.PACKET_IDENTIFIER_NOT_FOUND if packet_id in unknown else 0
            self._send(encode_ack(PUBREL, packet_id, said if self.version == V5 else 0))
        return done

    def _on_request_ack(self, packet: Suback | Unsuback, events: list[Event]) -> None:
        request = self._requests.get(packet.packet_id)
        right = Subscribe if isinstance(packet, Suback) else Unsubscribe
        if not isinstance(request, right):
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.8.4-2", "an answer nobody asked for")
        self._check_codes(request, packet.reasons)
        del self._requests[packet.packet_id]
        said = packet.properties.text(prop.REASON_STRING) or ""
        events.append(RequestAcknowledged(request, packet.reasons, said))

    def _check_codes(self, request: Subscribe | Unsubscribe, codes: list[int]) -> None:
        """Check that the broker says of each Topic Filter what became of it."""
        granted: tuple[int, ...]
        if isinstance(request, Subscribe):
            count, granted = len(request.requests), (0, 1, 2)
        else:
            count, granted = len(request.filters), (0, reasons.NO_SUBSCRIPTION_EXISTED)
            if self.version < V5:
                count = 0
        if len(codes) != count:
            why = f"{len(codes)} reason codes for {count} Topic Filters"
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.9.3-1", why)
        for code in codes:
            if code < reasons.UNSPECIFIED_ERROR and code not in granted:
                why = f"reason code 0x{code:02X} for a Topic Filter"
                raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.9.3-2", why)

    # Sending.

    def _check_sendable(self, message: _Outgoing) -> None:
        allowed = self._allowed
        if message.qos > allowed.number(prop.MAXIMUM_QOS, 2):  # [MQTT-3.2.2-11]
            raise Unsendable(
                reasons.QOS_NOT_SUPPORTED, f"QoS {message.qos} is above the broker's maximum"
            )
        if message.retain and not allowed.number(prop.RETAIN_AVAILABLE, 1):  # [MQTT-3.2.2-14]
            raise Unsendable(
                reasons.RETAIN_NOT_SUPPORTED, "the broker does not keep retained messages"
            )
        length = 2 + len(message.topic.encode()) + len(message.payload) + (2 if message.qos else 0)
        if self.version == V5:
            length += len(encode_properties(message.properties))
        if length > REMAINING_LENGTH_MAX:
            raise Unsendable(
                reasons.PACKET_TOO_LARGE, f"{length} bytes are more than an MQTT packet can hold"
            )
        size = 1 + len(encode_varint(length)) + length
        limit = allowed.number(prop.MAXIMUM_PACKET_SIZE, size)
        if size > limit:  # [MQTT-3.2.2-15]
            raise Unsendable(
                reasons.PACKET_TOO_LARGE,
                f"a packet of {size} bytes is over the broker's maximum of {limit}",
            )

    def _pump(self) -> None:
        """Send from the backlog what the window has room for. [MQTT-3.3.4-7]"""
        while self.session.backlog:
            message = self.session.backlog[0]
            packet_id = 0
            if message.qos:
                # SUBSCRIBE and UNSUBSCRIBE number from the same space, and the window does
                # not know of theirs: it waits for their answer. [MQTT-2.2.1-3]
                if self._requests or self.session.sender.room < 1:
                    return
                [packet_id] = self.session.sender.admit([message], message.qos)
            self.session.backlog.popleft()
            self._send_publish(message, packet_id)

    def _resend(self) -> None:
        """Send what a resumed session sends again. [MQTT-4.4.0-1]"""
        for packet_id, message, _ in self.session.sender.resend():
            self._send_publish(message, packet_id, dup=True)
        for packet_id in self.session.sender.releasing:
            self._send(encode_ack(PUBREL, packet_id))

    def _send_publish(self, message: _Outgoing, packet_id: int, dup: bool = False) -> None:
        self._send(
            encode_publish(
                self.version,
                message.topic,
                message.payload,
                qos=message.qos,
                retain=message.retain,
                dup=dup,
                packet_id=packet_id,
                properties=message.properties,
            )
        )

    def _request_id(self) -> int:
        sender = self.session.sender
        busy = ChainMap[int, object](dict(sender.releasing), dict(self._requests))
        [packet_id] = allocate(self._last_request_id, 1, sender.unacked, busy)
        self._last_request_id = packet_id
        return packet_id

    def _request(self, packet_id: int, request: Subscribe | Unsubscribe) -> None:
        self._requests[packet_id] = request
        self._send(encode_from_client(self.version, request))

    def _send(self, data: bytes) -> None:
        self._traced("sending", PACKET_NAMES[data[0] >> 4])
        self._out.append(data)
        self.output_bytes += len(data)

    def _traced(self, verb: str, name: str) -> None:
        if self._trace is not None:
            self._trace(f"{verb} {name.upper()}")


def describe_reason(code: int, reason_string: str = "") -> str:
    """Describe a reason code in the specification's words, with the broker's Reason String."""
    text = f"{reasons.name(code)} (0x{code:02X})"
    return f"{text}: {reason_string}" if reason_string else text


def _disconnect_text(packet: Disconnect) -> str:
    if packet.reason == reasons.NORMAL_DISCONNECTION:
        return "Normal disconnection (0x00)"
    return describe_reason(packet.reason, packet.properties.text(prop.REASON_STRING) or "")

"""Decode bytes to packets; no other module reads the wire.

A `Decoder` belongs to one connection. `feed` takes the bytes that were received and returns every
complete packet. When the peer violates the protocol, the last item of the list is a `Violation`;
the packets before it are valid, and the bytes after it are ignored. A decoder with a `packets_max`
returns no more at a time: then `has_more` is set, and `feed` goes on where it stopped.

Consecutive PUBLISH packets that differ only in packet id and payload become one `Publish`,
consecutive short acknowledgements one `Ack`: comparing a prefix costs about 60 ns, decoding a
packet seven times that. A run has `RUN_MAX` packets at most: its receiver can stop after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    REMAINING_LENGTH_MAX,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
)
from mqtt_broker.codec.decode_connect import decode_connect, decode_level, refused_form
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Auth,
    Connack,
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
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, decode_properties
from mqtt_broker.codec.reasons import MALFORMED_PACKET, PROTOCOL_ERROR, QUOTA_EXCEEDED
from mqtt_broker.codec.strings import decode_string
from mqtt_broker.codec.topic_names import check_response_topic, decode_topic, known_topics

# The flags that the first byte of a packet must have, if they are not 0. [MQTT-2.1.3-1]
# PUBREL [MQTT-3.6.1-1], SUBSCRIBE [MQTT-3.8.1-1], UNSUBSCRIBE [MQTT-3.10.1-1]
_FLAGS: Final = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}
_FROM_CLIENT: Final = frozenset(
    {
        CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ,
        DISCONNECT, AUTH,
    }
)  # fmt: skip
_FROM_SERVER: Final = frozenset(
    {
        CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP,
        DISCONNECT, AUTH,
    }
)  # fmt: skip

_SHORT_ACKS: Final = frozenset({0x40, 0x50, 0x62, 0x70})  # those that may have a body of two bytes

_CHUNKS_MAX: Final = 512
_CHUNK_BYTES: Final = 64  # that a chunk takes beside its data
RUN_MAX: Final = 1_024  # packets of QoS 1 and 2, and acknowledgements
_RUN_MAX_QOS_0: Final = 4_096


class Decoder:
    """The decoder of one peer's stream. `version` is 0 until its CONNECT arrives."""

    __slots__ = (
        "_chunks", "_connect_bytes_max", "_dead", "_missing", "_packets_max", "_types",
        "buffered_bytes", "filters_max", "has_more", "packet_bytes_max", "version",
    )  # fmt: skip

    def __init__(
        self,
        *,
        from_server: bool = False,
        version: int = 0,
        packet_bytes_max: int = REMAINING_LENGTH_MAX + 5,
        connect_bytes_max: int = REMAINING_LENGTH_MAX + 5,
        packets_max: int = 1 << 30,
        filters_max: int = 1 << 30,
    ) -> None:
        self.version = version
        self._connect_bytes_max = min(connect_bytes_max, packet_bytes_max)
        self.packet_bytes_max = packet_bytes_max
        self._packets_max = packets_max
        self.filters_max = filters_max  # of one SUBSCRIBE or UNSUBSCRIBE
        self._types = _FROM_SERVER if from_server else _FROM_CLIENT
        self._chunks: list[bytes] = []  # an incomplete packet
        self.buffered_bytes = 0  # of it
        self._missing = 0  # the number of bytes that it still needs, at least
        self._dead = False
        self.has_more = False  # the kept bytes may hold complete packets

    def limit_packets(self, packet_bytes_max: int) -> None:
        """Set the maximum packet size, for the packets that follow."""
        self.packet_bytes_max = packet_bytes_max

    def keep(self, data: bytes) -> None:
        """Keep bytes for the next `feed` without decoding them."""
        if not self._dead:
            self._chunks.append(data)
            self.buffered_bytes += len(data)
            self._missing = 0
            self.has_more = True

    def close(self) -> None:
        """Forget what came, and ignore what follows."""
        self._dead = True
        self._chunks = []
        self.buffered_bytes = 0
        self.has_more = False

    def feed(self, data: bytes) -> list[Packet | Violation]:
        """Decode the next packets, at most `packets_max` of them."""
        if self._dead:
            return []
        if self._chunks:
            self._chunks.append(data)
            self.buffered_bytes += len(data)
            if len(data) < self._missing:  # join a large packet once, not at every chunk
                self._missing -= len(data)
                count = len(self._chunks)  # tiny chunks have more overhead than data
                if count > _CHUNKS_MAX or count * _CHUNK_BYTES > self.buffered_bytes + 1_024:
                    self._chunks = [b"".join(self._chunks)]
                return []
            data = b"".join(self._chunks)
            self._chunks = []
            self.buffered_bytes = 0
        out: list[Packet | Violation] = []
        self.has_more = False
        try:
            rest, missing = self._cut(data, out)
        except Violation as violation:
            self._dead = True
            out.append(violation.with_traceback(None))  # which would keep `out`
            return out
        if rest < len(data):
            self._chunks.append(data[rest:] if rest else data)
            self.buffered_bytes = len(data) - rest
            self._missing = missing
        return out

    def _cut(self, data: bytes, out: list[Packet | Violation]) -> tuple[int, int]:
        """Append the complete packets of `data`; return the rest's position and missing bytes."""
        at = 0
        size = len(data)
        while at < size:
            if len(out) >= self._packets_max:
                self.has_more = True
                return at, 0
            first = data[at]
            if at + 2 > size:
                if first < 0x10:
                    raise _bad_type(self.version)
                return at, 1
            length = data[at + 1]
            body = at + 2
            if length > 127 or first < 0x10:
                if at + 2 < size and 0 < data[body] < 128 and first >= 0x10:
                    length += (data[body] << 7) - 128  # two bytes: common, so without a call
                    body += 1
                else:
                    length, body = self._length(data, at, size)
                    if body == 0:
                        return at, 1
            end = body + length
            if end > size:
                if self.version == 0 and first >> 4 != CONNECT and CONNECT in self._types:
                    raise _not_connect()  # before the packet is complete
                self._check_size(end - at)
                return at, end - size
            if first >> 4 == PUBLISH:
                if end - at > self.packet_bytes_max:
                    self._check_size(end - at)
                at = self._publish(data, at, body, end, out)
            elif length == 2 and first in _SHORT_ACKS:
                at = self._ack_run(data, at, first, out)
            else:
                self._check_size(end - at)
                out.append(self._packet(first, data, body, end))
                at = end
        return at, 0

    def _length(self, data: bytes, at: int, size: int) -> tuple[int, int]:
        """Decode a length of two to four bytes; return it with the body's position, or (0, 0)."""
        if data[at] < 0x10:
            raise _bad_type(self.version)
        length = 0
        shift = 0
        for place in range(at + 1, min(at + 5, size)):
            byte = data[place]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0:
                    raise Violation(MALFORMED_PACKET, "MQTT-1.5.5-1", "over-long remaining length")
                return length, place + 1
            shift += 7
        if size >= at + 5:
            # The start of the next packet is unknown.
            raise Violation(
                MALFORMED_PACKET, "MQTT-1.5.5-1", "remaining length of five bytes", silent=True
            )
        return 0, 0

    def _check_size(self, packet_bytes: int) -> None:
        bytes_max = self.packet_bytes_max if self.version else self._connect_bytes_max
        if packet_bytes > bytes_max:
            raise Violation(
                reasons.PACKET_TOO_LARGE,
                "MQTT-3.2.2-15",
                f"packet of {packet_bytes} bytes, at most {bytes_max} are allowed",
                silent=self.version == 0,
            )

    def _packet(self, first: int, data: bytes, at: int, end: int) -> Packet:
        packet_type = first >> 4
        if self.version == 0:
            if packet_type != CONNECT:
                raise _not_connect()
        elif (packet_type == CONNACK and CONNACK not in self._types) or (
            packet_type == AUTH and self.version < V5
        ):
            raise Violation(PROTOCOL_ERROR, "MQTT-2.1.2", "packet type that clients may not send")
        if first & 0x0F != _FLAGS.get(packet_type, 0):
            if packet_type == AUTH:
                raise Violation(PROTOCOL_ERROR, "MQTT-3.15.1-1", "wrong flags in AUTH")
            if not self._is_v31_flag(
                first, data[at : min(at + 8, end)]
            ):  # DISCONNECT too. [MQTT-3.14.1-1]
                raise Violation(MALFORMED_PACKET, "MQTT-2.1.3-1", "wrong flags in the first byte")
        if packet_type in (PINGREQ, PINGRESP) and at != end:
            raise Violation(MALFORMED_PACKET, "MQTT-2.1.4", "PINGREQ with a body", silent=True)
        if packet_type not in self._types:
            raise Violation(PROTOCOL_ERROR, "MQTT-2.1.2", "packet type of the other direction")
        return _DECODERS[packet_type](self, first, data, at, end)

    def _is_v31_flag(self, first: int, head: bytes) -> bool:
        """Tell whether MQTT 3.1 allows these flags: any in CONNECT, and DUP in repeated packets."""
        if first >> 4 == CONNECT:
            return head == b"\x00\x06MQIsdp"
        return self.version == V31 and first & 0xF7 in (0x62, 0x82, 0xA2)

    # Runs of PUBLISH.

    def _publish(
        self, data: bytes, at: int, body: int, end: int, out: list[Packet | Violation]
    ) -> int:
        """Append the run of PUBLISH packets at `at`; return the position of the next packet."""
        if self.version == 0:
            raise _not_connect()
        first = data[at]
        qos = first >> 1 & 3
        if qos == 3:
            raise Violation(MALFORMED_PACKET, "MQTT-3.3.1-4", "QoS 3")
        if first & 0x0E == 0x08:
            raise Violation(MALFORMED_PACKET, "MQTT-3.3.1-2", "DUP at QoS 0")
        topic_at = body + 2
        if topic_at > end:
            raise Violation(MALFORMED_PACKET, "MQTT-3.3.2-1", "no topic")
        topic_end = place = topic_at + (data[body] << 8 | data[body + 1])
        if place > end:
            raise Violation(MALFORMED_PACKET, "MQTT-1.5.6", "the topic is cut short")
        raw_topic = data[topic_at:topic_end]
        topic = known_topics.get(raw_topic)
        if topic is None:
            topic = decode_topic(raw_topic)
        if qos:
            place += 2
            if place > end:
                raise Violation(MALFORMED_PACKET, "MQTT-2.2.1-2", "no packet id")
            if not (data[place - 2] or data[place - 1]):
                raise Violation(PROTOCOL_ERROR, "MQTT-2.2.1-3", "packet id 0")
        found = NO_PROPERTIES
        properties_at = place
        if self.version == V5:
            if place < end and not data[place]:
                place += 1
            else:
                found, place = decode_properties(data, place, end, PUBLISH)
                _check_publish_properties(found, client=CONNECT in self._types)
        if not topic and prop.TOPIC_ALIAS not in found:
            raise Violation(MALFORMED_PACKET, "MQTT-3.3.2-1", "an empty topic")
        size = end - at
        # The last position of another packet of the run.
        last = min(len(data) - size, at + size * ((RUN_MAX if qos else _RUN_MAX_QOS_0) - 1))
        if end <= last and data[end] == first:
            if qos:
                head = data[at:topic_end]
                id_skip = topic_end - at
                tail = data[properties_at:place]
                tail_skip = properties_at - at
                while (
                    end <= last
                    and data.startswith(head, end)
                    and data.startswith(tail, end + tail_skip)
                    and (data[end + id_skip] or data[end + id_skip + 1])
                ):
                    end += size
            else:
                head = data[at:place]
                while end <= last and data.startswith(head, end):
                    end += size
        out.append(
            Publish(
                topic,
                qos,
                first & 1 == 1,
                first & 8 == 8,
                found,
                data[at:end],
                (end - at) // size,
                size,
                topic_end - at,
                place - at,
            )
        )
        return end

    def _ack_run(self, data: bytes, at: int, first: int, out: list[Packet | Violation]) -> int:
        if self.version == 0:
            raise _not_connect()
        size = min(len(data), at + 4 * RUN_MAX)
        ids: list[int] = []
        while at + 4 <= size and data[at] == first and data[at + 1] == 2:
            packet_id = data[at + 2] << 8 | data[at + 3]
            if not packet_id:
                if ids:
                    out.append(Ack(first >> 4, ids))
                raise Violation(PROTOCOL_ERROR, "MQTT-2.2.1-3", "packet id 0")
            ids.append(packet_id)
            at += 4
        out.append(Ack(first >> 4, ids))
        return at


def _not_connect() -> Violation:  # [MQTT-3.1.0-1]
    return Violation(PROTOCOL_ERROR, "MQTT-3.1.0-1", "the first packet is not CONNECT", silent=True)


def _bad_type(version: int) -> Violation:
    return Violation(PROTOCOL_ERROR, "MQTT-2.1.2", "packet type 0", silent=version == 0)


def _check_publish_properties(found: Properties, *, client: bool) -> None:
    if client and prop.SUBSCRIPTION_IDENTIFIER in found:
        raise Violation(PROTOCOL_ERROR, "MQTT-3.3.4-6", "Subscription Identifier sent by a client")
    if found.get(prop.TOPIC_ALIAS) == 0:
        raise Violation(reasons.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8", "Topic Alias 0")
    check_response_topic(found)


def _decode_connect(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    if decoder.version:
        raise Violation(PROTOCOL_ERROR, "MQTT-3.1.0-2", "second CONNECT")
    level, is_spoken, at = decode_level(data, at, end)
    if not is_spoken:
        decoder.version = refused_form(level)  # the version of the CONNACK
        raise Violation(
            reasons.UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-2", f"protocol level 0x{level:02X}"
        )
    decoder.version = level
    return decode_connect(level, data, at, end)


def _decode_ack(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    packet_type = first >> 4
    packet_id, at = _packet_id(data, at, end, PROTOCOL_ERROR)
    reason = 0
    found = NO_PROPERTIES
    if at < end:
        if decoder.version < V5:
            raise Violation(MALFORMED_PACKET, "MQTT-2.1.4", "acknowledgement that is too long")
        reason = data[at]
        at += 1
        # [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1]
        if not reasons.may_carry(packet_type, reason):
            raise Violation(PROTOCOL_ERROR, "MQTT-2.4", f"reason code 0x{reason:02X}")
        if at < end:
            found, at = decode_properties(data, at, end, packet_type)
        _check_end(at, end)
    return Ack(packet_type, [packet_id], reason, found)


def _decode_subscribe(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    packet_id, at = _packet_id(data, at, end, MALFORMED_PACKET)
    found = NO_PROPERTIES
    if decoder.version == V5:
        found, at = decode_properties(data, at, end, SUBSCRIBE)
    requests: list[SubscriptionRequest] = []
    reserved = 0xC0 if decoder.version == V5 else 0xFC  # [MQTT3-3.8.3-4]
    while at < end:
        text, at = decode_string(data, at, end)  # [MQTT-3.8.3-1]
        if at >= end:
            raise Violation(MALFORMED_PACKET, "MQTT-3.8.3-1", "Topic Filter without options")
        options = data[at]
        at += 1
        if options & reserved or options & 3 == 3 or options & 0x30 == 0x30:
            raise Violation(MALFORMED_PACKET, "MQTT-3.8.3-5", f"options 0x{options:02X}")
        requests.append(
            SubscriptionRequest(
                text, options & 3, bool(options & 4), bool(options & 8), options >> 4 & 3
            )
        )
        if len(requests) > decoder.filters_max:
            raise _too_many_filters(decoder)
    if not requests:
        raise Violation(MALFORMED_PACKET, "MQTT-3.8.3-2", "SUBSCRIBE without a Topic Filter")
    return Subscribe(packet_id, requests, found)


def _decode_unsubscribe(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    packet_id, at = _packet_id(data, at, end, MALFORMED_PACKET)
    found = NO_PROPERTIES
    if decoder.version == V5:
        found, at = decode_properties(data, at, end, UNSUBSCRIBE)
    filters: list[str] = []
    while at < end:
        text, at = decode_string(data, at, end)  # [MQTT-3.10.3-1]
        filters.append(text)
        if len(filters) > decoder.filters_max:
            raise _too_many_filters(decoder)
    if not filters:
        raise Violation(MALFORMED_PACKET, "MQTT-3.10.3-2", "UNSUBSCRIBE without a Topic Filter")
    return Unsubscribe(packet_id, filters, found)


def _too_many_filters(decoder: Decoder) -> Violation:
    """A filter takes twenty times the memory that it came in, so a packet of them is limited."""
    why = f"more than {decoder.filters_max} Topic Filters in one packet"
    return Violation(QUOTA_EXCEEDED, "MQTT-4.13.1-1", why)


def _decode_ping(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    return Pingreq() if first >> 4 == PINGREQ else Pingresp()


def _decode_disconnect(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    if decoder.version < V5:
        if at != end:
            raise Violation(MALFORMED_PACKET, "MQTT-2.1.4", "DISCONNECT of 3.1.1 with a body")
        return Disconnect()
    reason = 0
    found = NO_PROPERTIES
    if at < end:
        reason = data[at]
        at += 1
        if at < end:
            found, at = decode_properties(data, at, end, DISCONNECT)
            _check_end(at, end)
    return Disconnect(reason, found)


def _decode_auth(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    if at == end:  # [MQTT-3.15.2.1]: success, no properties
        return Auth()
    reason = data[at]
    at += 1
    if not reasons.may_carry(AUTH, reason):
        raise Violation(PROTOCOL_ERROR, "MQTT-3.15.2-1", f"reason code 0x{reason:02X} in AUTH")
    found = NO_PROPERTIES
    if at < end:
        found, at = decode_properties(data, at, end, AUTH)
        _check_end(at, end)
    return Auth(reason, found)


def _decode_connack(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    if at + 2 > end or data[at] > 1:
        raise Violation(MALFORMED_PACKET, "MQTT-3.2.2-1", "CONNACK with invalid flags")
    present, reason = data[at] == 1, data[at + 1]
    at += 2
    found = NO_PROPERTIES
    if decoder.version == V5 and at < end:
        found, at = decode_properties(data, at, end, CONNACK)
    _check_end(at, end)
    return Connack(present, reason, found)


def _decode_suback(decoder: Decoder, first: int, data: bytes, at: int, end: int) -> Packet:
    packet_type = first >> 4
    packet_id, at = _packet_id(data, at, end, PROTOCOL_ERROR)
    found = NO_PROPERTIES
    if decoder.version == V5:
        found, at = decode_properties(data, at, end, packet_type)
    codes = list(data[at:end])
    if packet_type == SUBACK:
        return Suback(packet_id, codes, found)
    return Unsuback(packet_id, codes, found)


def _packet_id(data: bytes, at: int, end: int, zero: int) -> tuple[int, int]:
    """Decode a packet id; `zero` is the reason code for the id 0. [MQTT-2.2.1-3]"""
    if at + 2 > end:
        raise Violation(MALFORMED_PACKET, "MQTT-2.2.1-2", "no packet id")
    packet_id = data[at] << 8 | data[at + 1]
    if not packet_id:
        raise Violation(zero, "MQTT-2.2.1-3", "packet id 0")
    return packet_id, at + 2


def _check_end(at: int, end: int) -> None:
    if at != end:
        raise Violation(MALFORMED_PACKET, "MQTT-2.1.4", "bytes after the end of the packet")


_DECODERS: Final[dict[int, Callable[[Decoder, int, bytes, int, int], Packet]]] = {
    CONNECT: _decode_connect,
    CONNACK: _decode_connack,
    PUBACK: _decode_ack,
    PUBREC: _decode_ack,
    PUBREL: _decode_ack,
    PUBCOMP: _decode_ack,
    SUBSCRIBE: _decode_subscribe,
    SUBACK: _decode_suback,
    UNSUBSCRIBE: _decode_unsubscribe,
    UNSUBACK: _decode_suback,
    PINGREQ: _decode_ping,
    PINGRESP: _decode_ping,
    DISCONNECT: _decode_disconnect,
    AUTH: _decode_auth,
}

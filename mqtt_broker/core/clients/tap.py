"""The packets of one connection, decoded for the traces that want them.

A connection that no trace wants has no tap, and costs nothing: the tap writes through the outbox in
place of the link, and decodes what goes by.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final

from mqtt_broker.codec.constants import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
)
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Ack, Connack, Disconnect, Packet, Publish, Subscribe
from mqtt_broker.recorder.traces import PAYLOAD_MAX, Line, Trace

RECEIVED: Final = "received"
SENT: Final = "sent"
_ACKS: Final = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP"}
_IDS_SHOWN: Final = 20


class Tap:
    """Passes on what is written to a link, and shows it to traces."""

    def __init__(
        self,
        client_id: str,
        version: int,
        write: Callable[[bytes], int],
        traces: list[Trace],
        clock: Callable[[], float],
    ) -> None:
        self._client_id = client_id
        self.link_write = write
        self._decoder = Decoder(from_server=True, version=version)
        self._clock = clock
        self.traces = traces

    def write(self, data: bytes) -> int:
        """Write to the link what the broker sends."""
        try:
            now = self._clock()
            packets = self._decoder.feed(data)
            while packets:
                self.show(packets, SENT, now)
                packets = self._decoder.feed(b"") if self._decoder.has_more else []
        finally:
            waiting = self.link_write(data)
        return waiting

    def show(self, packets: Sequence[Packet | Violation], direction: str, now: float) -> None:
        """Add a line for each packet to the traces."""
        for packet in packets:
            for trace in self.traces:
                if not trace.is_over:
                    for line in lines_of(packet, has_payloads=trace.has_payloads):
                        trace.add(
                            {
                                "at": round(now, 3),
                                "client": self._client_id,
                                "direction": direction,
                                **line,
                            }
                        )

    @property
    def is_over(self) -> bool:
        """Tell whether no trace wants it any more."""
        return all(trace.is_over for trace in self.traces)


def lines_of(packet: Packet | Violation, *, has_payloads: bool) -> list[Line]:
    """Describe a packet; a run of PUBLISH is as many packets."""
    if isinstance(packet, Publish):
        return _publish_lines(packet, has_payloads=has_payloads)
    if isinstance(packet, Ack):
        shown = packet.packet_ids[:_IDS_SHOWN]
        line: Line = {
            "packet": _ACKS[packet.packet_type],
            "packet_ids": shown,
            "reason_code": packet.reason,
        }
        if len(packet.packet_ids) > len(shown):
            line["count"] = len(packet.packet_ids)
        return [line]
    if isinstance(packet, Violation):
        return [{"packet": "malformed", "text": packet.text}]
    line = {"packet": type(packet).__name__.upper()}
    if isinstance(packet, Subscribe):
        line["filters"] = [one.filter for one in packet.requests[:_IDS_SHOWN]]
    elif isinstance(packet, Connack | Disconnect):
        line["reason_code"] = packet.reason
    return [line]


def _publish_lines(packet: Publish, *, has_payloads: bool) -> list[Line]:
    ids = packet.packet_ids() if packet.qos else [0] * packet.count
    found: list[Line] = []
    for packet_id, payload in zip(ids, packet.payloads(), strict=True):
        line: Line = {
            "packet": "PUBLISH",
            "topic": packet.topic,
            "qos": packet.qos,
            "retain": bool(packet.retain),
            "dup": bool(packet.dup),
            "bytes": len(payload),
        }
        if packet_id:
            line["packet_id"] = packet_id
        if has_payloads:
            line.update(shown_payload(payload))
        found.append(line)
    return found


def shown_payload(payload: bytes) -> Line:
    """Show the beginning of a payload, as text if it is some."""
    part = payload[:PAYLOAD_MAX]
    text = part.decode(errors="ignore")
    if text.encode() == part or (len(payload) > len(part) and len(part) - len(text.encode()) < 4):
        return {"payload": text}
    return {"payload_base64": base64.b64encode(part).decode()}

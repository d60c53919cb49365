"""Acknowledgements that wait for the store, and how many of one client's may."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBREC, V5
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.strings import decode_varint
from mqtt_broker.core.clients import states
from sessions.journal.transaction import PendingCommit

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection

# Of one client; with so many, or so many bytes of them, it is not read from.
ANSWERS_HELD_MAX: Final = 4_096
ANSWERS_HELD_BYTES_MAX: Final = 1 << 20


class PendingAck(PendingCommit):
    """An acknowledgement that waits for the store; those of one client leave in their order."""

    __slots__ = ("after", "connection", "data")

    def __init__(self, connection: Connection, data: bytes) -> None:
        super().__init__()
        self.connection = connection
        self.data = data
        self.after: Callable[[float], None] | None = None  # what follows it

    def release(self, now: float) -> None:
        connection = self.connection
        try:
            connection.send_answers(now)
        except Exception as error:  # it costs this connection, and nobody else's answers
            connection.on_error(error, b"", now)

    def refuse(self, now: float) -> None:
        """Refuse what cannot be stored; 3.x has no word for that, and its connection ends."""
        connection = self.connection
        if connection.state == states.CLOSED:
            return
        if connection.version != V5:
            connection.end(now, reasons.UNSPECIFIED_ERROR, why="its message cannot be stored")
            return
        before = len(self.data)
        self.data, freed = refused(self.data)
        connection.held_bytes += len(self.data) - before
        for packet_id in freed:
            connection.session.receiver.refuse(packet_id)
        self.release(now)


NOTHING_HELD: Final[deque[PendingAck]] = deque(maxlen=0)  # shared by the many that wait for nothing


def refused(data: bytes) -> tuple[bytes, list[int]]:
    """PUBACKs and PUBRECs as refusals of MQTT 5, and the packet ids of those that were PUBREC.

    What is a refusal already stays as it is.
    """
    out: list[bytes] = []
    freed: list[int] = []
    at = 0
    while at < len(data):
        packet_type = data[at] >> 4
        length, start = decode_varint(data, at + 1, len(data))
        packet_id = data[start] << 8 | data[start + 1]
        if length > 2 and data[start + 2] >= 0x80:
            out.append(data[at : start + length])
        else:
            out.append(encode_ack(packet_type, packet_id, reasons.UNSPECIFIED_ERROR))
            if packet_type == PUBREC:
                freed.append(packet_id)
        at = start + length
    return b"".join(out), freed

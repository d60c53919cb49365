"""The part of what a client sent that is not finished: made when there is any, which is rare."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Packet, Publish, Subscribe, Unsubscribe
from mqtt_broker.codec.properties import NO_PROPERTIES, USER_PROPERTY
from sessions.messages.work import WorkItem

_PACKET_BYTES: Final = 256  # of a packet, beside what came
_FILTER_BYTES: Final = 180  # of a Topic Filter and its options, beside its text
_PAIR_BYTES: Final = 180  # of a User Property, beside its texts


def packet_bytes(packet: Packet | Violation) -> int:
    """Return about the bytes that a decoded packet takes while it waits."""
    size = _PACKET_BYTES
    found = NO_PROPERTIES
    if type(packet) is Publish:
        size += len(packet.raw)
        found = packet.properties
    elif type(packet) is Subscribe:
        size += sum([_FILTER_BYTES + len(one.filter) for one in packet.requests])
        found = packet.properties
    elif type(packet) is Unsubscribe:
        size += sum([_FILTER_BYTES + len(text) for text in packet.filters])
        found = packet.properties
    if USER_PROPERTY in found:
        size += sum([_PAIR_BYTES + len(name) + len(value) for name, value in found.user])
    return size


class Unfinished:
    """An operation that goes on in the next turns, and packets that wait, behind it or for CONNACK.

    The client is not read meanwhile, and does not leave before the operation is over, whichever
    side closes: its will and its next connection come behind what it sent.
    """

    __slots__ = ("bytes", "is_held", "leaves_because", "lost_because", "operation", "packets")

    def __init__(self) -> None:
        self.operation: WorkItem | None = None  # what one of its packets began
        self.packets: list[Packet | Violation] = []  # decoded, in their order
        self.bytes = 0  # of these, in memory
        self.is_held = False  # on the agenda; else the packets wait for CONNACK
        self.lost_because = ""  # the connection was lost, and ends behind all this
        self.leaves_because = ""  # the connection is closed, and leaves behind the operation

    def begin(self, operation: WorkItem) -> None:
        """Go on with this before anything else."""
        assert self.operation is None
        self.operation = operation

    @property
    def is_leaving(self) -> bool:
        """Tell whether the connection ends or leaves behind this."""
        return bool(self.lost_because or self.leaves_because)

    def end_operation(self) -> None:
        """Note that the operation is over."""
        self.operation = None

    def defer(self, packets: list[Packet | Violation]) -> None:
        """Keep packets behind those that wait."""
        self.packets += packets
        self.bytes += sum([packet_bytes(packet) for packet in packets])

    def take(self) -> list[Packet | Violation]:
        """Hand out the packets that wait."""
        packets, self.packets = self.packets, []
        self.bytes = 0
        return packets

    def hold(self) -> None:
        """Note that it stands on the agenda."""
        self.is_held = True

    def lose(self, why: str) -> None:
        """Let the connection end behind everything that it sent."""
        self.lost_because = why

    def leave(self, why: str) -> None:
        """Let the connection leave behind the operation; packets that wait are not acted upon."""
        self.leaves_because = why
        self.packets = []
        self.bytes = 0

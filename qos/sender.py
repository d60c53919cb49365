"""The outbound window: messages sent at QoS 1 or 2 whose exchange is not complete.

    QoS 1   admit -> PUBLISH ... on_puback  -> done
    QoS 2   admit -> PUBLISH ... on_pubrec  -> PUBREL ... on_pubcomp -> done
                                 on_pubrec with an error             -> done

An entry leaves the window by an acknowledgement or with its session, never by a timer
[MQTT-4.4.0-1]. Then its packet id is free again [MQTT-2.2.1-4]. Methods take and return lists,
because acknowledgements arrive many at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, Generic, TypeVar

PACKET_ID_MAX: Final = 65535
Item = TypeVar("Item")


class WrongAck(Exception):
    """An acknowledgement for the other QoS. Nothing has changed."""


class Sender(Generic[Item]):
    """A send window. `limit` is the peer's Receive Maximum (or our own, if smaller)."""

    __slots__ = ("_last_id", "limit", "qos2", "releasing", "unacked")

    def __init__(self, limit: int = PACKET_ID_MAX) -> None:
        self.limit = limit
        self._last_id = 0
        # Unacknowledged until PUBACK [MQTT-4.3.2-3] or PUBREC [MQTT-4.3.3-3].
        self.unacked: dict[int, Item] = {}  # in the order sent; awaits PUBACK or PUBREC
        self.qos2: set[int] = set()  # those of `unacked` that are QoS 2
        self.releasing: dict[int, None] = {}  # PUBREL sent, awaits PUBCOMP

    def __len__(self) -> int:
        return len(self.unacked) + len(self.releasing)

    @property
    def room(self) -> int:
        """The number of messages that may still be sent: the peer's send quota. [MQTT-3.3.4-9]"""
        return self.limit - len(self.unacked) - len(self.releasing)

    def admit(self, items: list[Item], qos: int) -> list[int]:
        """Assign packet ids to items, at most `room`, and keep them until acknowledged."""
        ids = allocate(self._last_id, len(items), self.unacked, self.releasing)
        if ids:
            self._last_id = ids[-1]
            self.unacked.update(zip(ids, items, strict=True))
        if qos == 2:
            self.qos2.update(ids)
        return ids

    def admit_one(self, item: Item, qos: int) -> int:
        """Admit one item: like `admit`, without lists."""
        packet_id = self._last_id + 1
        if packet_id > PACKET_ID_MAX or packet_id in self.unacked or packet_id in self.releasing:
            packet_id = allocate(self._last_id, 1, self.unacked, self.releasing)[0]
        self._last_id = packet_id
        self.unacked[packet_id] = item
        if qos == 2:
            self.qos2.add(packet_id)
        return packet_id

    def skip_id(self) -> None:
        """Skip the next id: it was given to a queued message that has been dropped since."""
        self._last_id = allocate(self._last_id, 1, self.unacked, self.releasing)[0]

    def restore(self, packet_id: int, item: Item, qos: int) -> None:
        """Restore an unacknowledged PUBLISH after a restart, in the order sent."""
        self.unacked[packet_id] = item
        if qos == 2:
            self.qos2.add(packet_id)
        self._last_id = packet_id

    def restore_released(self, packet_id: int) -> None:
        """Restore a PUBREL that awaits its PUBCOMP."""
        self.releasing[packet_id] = None
        self._last_id = max(self._last_id, packet_id)

    def on_puback(self, ids: list[int]) -> list[Item]:
        """End exchanges and return their items. An id that is not in flight is ignored."""
        unacked = self.unacked
        if self.qos2 and not self.qos2.isdisjoint(ids):
            raise WrongAck("PUBACK for a QoS 2 PUBLISH")
        if self.releasing and not self.releasing.keys().isdisjoint(ids):
            raise WrongAck("PUBACK for a released QoS 2 PUBLISH")
        done: list[Item] = []
        for packet_id in ids:
            item = unacked.pop(packet_id, None)
            if item is not None:
                done.append(item)
        return done

    def on_pubrec(self, ids: list[int]) -> tuple[list[Item], list[int]]:
        """Release QoS 2 items; return them and the ids that are not in flight.

        The caller answers all other ids with PUBREL, also repeated ones.
        """
        unacked = self.unacked
        releasing = self.releasing
        for packet_id in ids:
            if packet_id in unacked and packet_id not in self.qos2:
                raise WrongAck("PUBREC for a QoS 1 PUBLISH")
        done: list[Item] = []
        unknown: list[int] = []
        for packet_id in ids:
            if packet_id in self.qos2:
                done.append(unacked.pop(packet_id))
                self.qos2.remove(packet_id)
                releasing[packet_id] = None  # not PUBLISHed again. [MQTT-4.3.3-6]
            elif packet_id not in releasing:
                unknown.append(packet_id)
        return done, unknown

    def on_pubrec_error(self, packet_id: int) -> Item | None:
        """End the exchange on a PUBREC of 0x80 or more. [MQTT-4.3.3-4], [MQTT-4.4.0-2]"""
        if packet_id in self.unacked and packet_id not in self.qos2:
            raise WrongAck("PUBREC for a QoS 1 PUBLISH")
        self.qos2.discard(packet_id)
        return self.unacked.pop(packet_id, None)

    def on_pubcomp(self, ids: list[int]) -> int:
        """End exchanges and return their number. An id that awaits no PUBCOMP is ignored."""
        releasing = self.releasing
        if self.unacked and not self.unacked.keys().isdisjoint(ids):
            raise WrongAck("PUBCOMP before PUBREC")
        before = len(releasing)
        for packet_id in ids:
            releasing.pop(packet_id, None)
        return before - len(releasing)

    def forget(self, packet_id: int) -> Item | None:
        """Remove an entry without an acknowledgement: a shared message moves to another member."""
        self.qos2.discard(packet_id)
        return self.unacked.pop(packet_id, None)

    def resend(self) -> Iterator[tuple[int, Item, int]]:
        """Yield the messages that a resumed session sends again, oldest first, with their QoS.

        [MQTT-4.4.0-1], [MQTT-4.6.0-1]. The ids to send PUBREL for are in `releasing`, in order.
        """
        for packet_id, item in self.unacked.items():
            yield packet_id, item, 2 if packet_id in self.qos2 else 1


def allocate(last: int, count: int, busy: Container[int], busy_too: Container[int]) -> list[int]:
    """Return the `count` free ids that follow `last` round the ring.

    [MQTT-2.2.1-3], [MQTT-2.2.1-4]. Going round the ring instead of taking the lowest id reuses a
    freed id as late as possible, so that a late acknowledgement rarely meets another message. The
    caller makes sure that fewer than 65,535 ids are in use.
    """
    ids: list[int] = []
    packet_id = last
    for _ in range(count):
        packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        while packet_id in busy or packet_id in busy_too:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        ids.append(packet_id)
    return ids

"""The send window of one session: what is under way to its client, and the bytes it takes.

A client that reads messages and does not acknowledge them makes the broker keep them. So windows
are limited in bytes: each by `inflight_bytes_max`, all together by `inflight_total_bytes_max`, and
each by a quarter of what the others leave of that. What does not fit waits in the queue. A message
that is under way to many clients is in memory once, and counted once beside a place for each.
"""

from __future__ import annotations

from typing import Final

from qos import PACKET_ID_MAX, Sender
from qos.sender import allocate
from sessions.journal.transaction import Delivery
from sessions.messages.backlog import Backlog

FREE_BYTES: Final = 64 << 10  # of a window that is not looked at while there is enough for all
PLACE_BYTES: Final = 200  # of a message in one more window
RELEASED_BYTES: Final = 100  # of a packet id that awaits its PUBCOMP
_NEVER: Final = 1e300  # a time behind all others


class Window(Sender[Delivery]):
    __slots__ = ("_backlog", "bytes")

    def __init__(self, backlog: Backlog) -> None:
        super().__init__()
        self._backlog = backlog
        self.bytes = 0  # of its messages, whoever else has them

    def room_for(self, size: int) -> int:
        """Return how many messages of this size may be sent now."""
        room = self.limit - len(self.unacked) - len(self.releasing)
        backlog = self._backlog
        is_pressed = backlog.inflight_bytes * 2 > backlog.inflight_total_bytes_max
        if room <= 0 or (self.bytes <= FREE_BYTES and not is_pressed):
            return max(0, room)
        free = backlog.inflight_total_bytes_max - backlog.inflight_bytes
        share = min(backlog.inflight_bytes_max, free // 4)
        fitting = max(0, share - self.bytes) // size
        if not fitting and not self.bytes and (size <= free or not backlog.inflight_bytes):
            fitting = 1  # larger than a share: one at a time
        return min(room, fitting)

    def admit(self, items: list[Delivery], qos: int) -> list[int]:
        if len(items) == 1:
            return [self.admit_one(items[0], qos)]
        ids = super().admit(items, qos)
        self._hold(items)
        return ids

    def admit_one(self, item: Delivery, qos: int) -> int:
        """Admit one item: all in one call, for this is done for each message and receiver."""
        packet_id = self._last_id + 1
        if packet_id > PACKET_ID_MAX or packet_id in self.unacked or packet_id in self.releasing:
            packet_id = allocate(self._last_id, 1, self.unacked, self.releasing)[0]
        self._last_id = packet_id
        self.unacked[packet_id] = item
        if qos == 2:
            self.qos2.add(packet_id)
        message = item[0]
        size = message.envelope.size
        self.bytes += size
        self._backlog.inflight_bytes += PLACE_BYTES if message.holders else size
        message.holders += 1
        return packet_id

    def restore(self, packet_id: int, item: Delivery, qos: int) -> None:
        super().restore(packet_id, item, qos)
        self._hold([item])

    def restore_released(self, packet_id: int) -> None:
        if packet_id not in self.releasing:
            self._count(RELEASED_BYTES)
        super().restore_released(packet_id)

    def on_puback(self, ids: list[int]) -> list[Delivery]:
        done = super().on_puback(ids)
        self._release(done)
        return done

    def on_pubrec(self, ids: list[int]) -> tuple[list[Delivery], list[int]]:
        done, unknown = super().on_pubrec(ids)
        self._release(done)
        self._count(RELEASED_BYTES * len(done))
        return done, unknown

    def on_pubrec_error(self, packet_id: int) -> Delivery | None:
        item = super().on_pubrec_error(packet_id)
        if item is not None:
            self._release([item])
        return item

    def on_pubcomp(self, ids: list[int]) -> int:
        ended = super().on_pubcomp(ids)
        self._count(-RELEASED_BYTES * ended)
        return ended

    def forget(self, packet_id: int) -> Delivery | None:
        item = super().forget(packet_id)
        if item is not None:
            self._release([item])
        return item

    def clear(self) -> list[Delivery]:
        """Forget everything; returns the messages that were under way."""
        items = list(self.unacked.values())
        self._release(items)
        self._count(-RELEASED_BYTES * len(self.releasing))
        self.unacked = {}
        self.qos2 = set()
        self.releasing = {}
        return items

    # What it takes.

    def _hold(self, items: list[Delivery]) -> None:
        taken = 0
        for item in items:
            message = item[0]
            size = message.envelope.size
            self.bytes += size
            taken += PLACE_BYTES if message.holders else size
            message.holders += 1
        self._backlog.inflight_bytes += taken

    def _release(self, items: list[Delivery]) -> None:
        """Stop counting them, and note for the recorder when they were received."""
        freed = taken = 0
        first_at, last_at = _NEVER, 0.0
        for item in items:
            message = item[0]
            envelope = message.envelope
            size = envelope.size
            taken += size
            message.holders -= 1
            freed += PLACE_BYTES if message.holders else size
            received_at = envelope.received_at
            if received_at < first_at:
                first_at = received_at
            if received_at > last_at:
                last_at = received_at
        self.bytes -= taken
        self._backlog.release(freed, first_at, last_at)

    def _count(self, change: int) -> None:
        self.bytes += change
        self._backlog.inflight_bytes += change

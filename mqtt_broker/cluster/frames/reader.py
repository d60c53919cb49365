"""Check frames: what comes out was written by a node of this cluster, for this one, just once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from mqtt_broker.cluster.frames.bodies import MalformedBody, decode
from mqtt_broker.cluster.frames.layout import (
    ALL,
    FOR_ALL,
    FRAME_BYTES_MAX,
    HEADER,
    IN_ORDER,
    KINDS,
    MAGIC,
    NO_TAG,
    OVERHEAD_BYTES,
    Drop,
    FrameKey,
    tag,
)
from mqtt_broker.cluster.frames.repeats import Arrivals
from mqtt_broker.cluster.frames.versions import READS

_MAGIC_AND_VERSION: Final = 3


class Frame:
    """A frame that was checked, with its body decoded."""

    __slots__ = ("body", "epoch", "kind", "sender", "to")

    def __init__(self, kind: int, sender: int, epoch: str, to: int, body: Any) -> None:
        self.kind = kind
        self.sender = sender
        self.epoch = epoch  # under which the sender is hosted
        self.to = to
        self.body = body


class _Sender:
    __slots__ = ("arrivals", "epoch", "tag")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.tag = tag(epoch)
        self.arrivals: dict[int, Arrivals] = {}  # by the number they are for

    def arrivals_for(self, to: int) -> Arrivals:
        """Return what came for a number."""
        found = self.arrivals.get(to)
        if found is None:
            found = self.arrivals[to] = Arrivals()
        return found

    def forget(self, to: int) -> None:
        """Forget what came for a number that is hosted elsewhere, or under another epoch."""
        self.arrivals.pop(to, None)


class FrameReader:
    """The frames that a process takes, for all numbers that it hosts."""

    __slots__ = ("_hosted", "_key", "_reads", "_senders", "dropped", "taken")

    def __init__(self, key: FrameKey, reads: Collection[int] = READS) -> None:
        self._key = key
        self._reads = reads
        self._hosted: dict[int, bytes] = {}
        self._senders: dict[int, _Sender] = {}
        self.taken = 0
        self.dropped: dict[Drop, int] = dict.fromkeys(Drop, 0)

    def set_hosted(self, epochs: dict[int, str]) -> None:
        """Take frames for these numbers under these epochs."""
        hosted = {number: tag(epoch) for number, epoch in epochs.items()}
        for number, known in self._hosted.items():
            if hosted.get(number) != known:
                for sender in self._senders.values():
                    sender.forget(number)
        self._hosted = hosted

    def set_senders(self, epochs: dict[int, str]) -> None:
        """Take frames from these numbers under these epochs, as the database has them."""
        before, self._senders = self._senders, {}
        for number, epoch in epochs.items():
            known = before.get(number)
            if known is None or known.epoch != epoch:
                known = _Sender(epoch)
            self._senders[number] = known

    @property
    def missing(self) -> int:
        """Count the frames of present senders that were sent and have not come."""
        return sum(
            one.missing for sender in self._senders.values() for one in sender.arrivals.values()
        )

    def read(self, data: bytes | memoryview) -> Frame | Drop:
        """Return the frame, or why it is dropped."""
        found = self._read(memoryview(data))
        if isinstance(found, Drop):
            self.dropped[found] += 1
        else:
            self.taken += 1
        return found

    def drop(self, reason: Drop) -> None:
        """Count a frame that was dropped before it was whole."""
        self.dropped[reason] += 1

    def _read(self, data: memoryview) -> Frame | Drop:
        if len(data) > FRAME_BYTES_MAX:
            return Drop.OVERSIZED
        if len(data) < _MAGIC_AND_VERSION:
            return Drop.CUT
        if bytes(data[:2]) != MAGIC:
            return Drop.NOT_A_FRAME
        if data[2] not in self._reads:
            return Drop.UNKNOWN_VERSION
        if len(data) < OVERHEAD_BYTES:
            return Drop.CUT
        _, version, kind, cluster, number, to, sequence, from_tag, to_tag, size = (
            HEADER.unpack_from(data)
        )
        if cluster != self._key.cluster:
            return Drop.OTHER_CLUSTER
        if size != len(data) - OVERHEAD_BYTES:
            return Drop.CUT
        if not self._key.proves(data):
            return Drop.FORGED
        # A node of this cluster has written it.
        if kind not in KINDS[version]:
            return Drop.UNKNOWN_KIND
        if to == ALL and kind not in FOR_ALL:
            return Drop.NOT_FOR_ALL
        wrong = self._check_receiver(to, to_tag)
        if wrong is not None:
            return wrong
        sender = self._senders.get(number)
        if sender is None:
            return Drop.UNKNOWN_SENDER
        if sender.tag != from_tag:
            return Drop.SENDER_EPOCH
        wrong = sender.arrivals_for(to).add(sequence, in_order=kind in IN_ORDER)
        if wrong is not None:
            return wrong
        try:
            body = decode(kind, data[HEADER.size : HEADER.size + size])
        except MalformedBody:
            return Drop.MALFORMED
        return Frame(kind, number, sender.epoch, to, body)

    def _check_receiver(self, to: int, to_tag: bytes) -> Drop | None:
        expected = NO_TAG if to == ALL else self._hosted.get(to)
        if expected is None:
            return Drop.OTHER_RECEIVER
        return None if to_tag == expected else Drop.RECEIVER_EPOCH

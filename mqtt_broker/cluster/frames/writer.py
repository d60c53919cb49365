"""Make frames from one number under one epoch."""

from __future__ import annotations

from mqtt_broker.cluster.frames.layout import ALL, HEADER, MAGIC, NO_TAG, NUMBER_MAX, FrameKey, tag
from mqtt_broker.cluster.frames.versions import VERSION


class _Receiver:
    __slots__ = ("epoch", "sequence", "tag")

    def __init__(self, epoch: str, sequence: int) -> None:
        self.epoch = epoch
        self.tag = tag(epoch) if epoch else NO_TAG
        self.sequence = sequence

    def next(self) -> int:
        """Count a frame."""
        self.sequence += 1
        return self.sequence


class FrameWriter:
    """The frames that a number sends while a process hosts it.

    Whoever hosts it again makes another writer under another epoch: sequences begin anew.
    """

    __slots__ = ("_frames", "_key", "_receivers", "_tag", "number", "version")

    def __init__(self, key: FrameKey, number: int, epoch: str) -> None:
        assert 0 < number <= NUMBER_MAX
        self._key = key
        self._tag = tag(epoch)
        self._frames = 0
        self._receivers = {ALL: _Receiver("", 0)}
        self.number = number
        self.version: int = VERSION

    def set_version(self, version: int) -> None:
        """Write frames of this version from now on."""
        self.version = version

    def set_receivers(self, epochs: dict[int, str]) -> None:
        """Learn which numbers there are, and under which epoch each is hosted."""
        before = self._receivers
        self._receivers = {ALL: before[ALL]}
        for number, epoch in epochs.items():
            known = before.get(number)
            if known is None or known.epoch != epoch:
                known = _Receiver(epoch, self._frames)  # higher than any it has had before
            self._receivers[number] = known

    def write(self, kind: int, to: int, body: bytes) -> bytes | None:
        """Return a frame with this body; None: nobody is known by this number."""
        receiver = self._receivers.get(to)
        if receiver is None:
            return None
        self._frames += 1
        data = (
            HEADER.pack(
                MAGIC,
                self.version,
                kind,
                self._key.cluster,
                self.number,
                to,
                receiver.next(),
                self._tag,
                receiver.tag,
                len(body),
            )
            + body
        )
        return data + self._key.code(data)

"""Which messages go to which streams: the log's end of the broker's tap door.

A topic may belong to several streams, and goes to each once. Topics of the same streams share
one `StreamTap`, so a fleet of a million topics costs one object.

Room is kept for what is promised: QoS 0 is turned away, and counted, when half of it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mqtt_broker.codec.packets import Publish
from mqtt_broker.core.interfaces.message_log import TopicWriter
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.streams.write.writer import LogWriter
from mqtt_broker.topics.names import matches
from sessions.messages.message import Envelope

NO_ROOM: Final = "stream_full"
OWN_BYTES: Final = 64  # of a row, beside its strings


class StreamTap:
    """Takes the messages of topics that belong to these streams."""

    __slots__ = ("_drop", "_streams", "_writer")

    def __init__(
        self, writer: LogWriter, streams: tuple[Stream, ...], drop: Callable[[str, int], None]
    ) -> None:
        self._writer = writer
        self._streams = streams
        self._drop = drop

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        writer = self._writer
        size = len(payloads) * (envelope.size + len(envelope.publisher) + OWN_BYTES)
        waiting = writer.waiting_bytes
        return not waiting or waiting + size * len(self._streams) <= writer.waiting_bytes_max

    def take(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        if envelope.qos or not self._is_dropped(len(payloads)):
            self._append(self._streams, envelope, payloads, now)

    def take_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        if self._is_dropped(run.count):
            return
        cut: list[Stream] = []  # streams that want payloads
        for stream in self._streams:
            if not stream.takes_frames or not self._writer.append_frames(
                stream,
                envelope.topic,
                envelope.publisher,
                run.raw,
                run.size,
                run.payload_at,
                int(now * 1e6),
                retain=envelope.retain,
                properties=envelope.travels,
                user=envelope.properties.user if envelope.properties else (),
            ):
                cut.append(stream)
        if cut:
            self._append(tuple(cut), envelope, run.payloads(), now)

    def _is_dropped(self, count: int) -> bool:
        """Whether so many of QoS 0 are turned away: what room is left is for what is promised.

        Publishers are held back at half of it. The quarter between is for what each of them has
        in hand then.
        """
        writer = self._writer
        if writer.waiting_bytes <= writer.waiting_bytes_max * 3 // 4:
            return False
        self._drop(NO_ROOM, count)
        for stream in self._streams:
            stream.refused += count
        return True

    def _append(
        self, streams: tuple[Stream, ...], envelope: Envelope, payloads: list[bytes], now: float
    ) -> None:
        received_us = int(now * 1e6)
        user = envelope.properties.user if envelope.properties else ()
        taken = 0
        for stream in streams:
            taken += self._writer.append(
                stream,
                envelope.topic,
                envelope.publisher,
                payloads,
                received_us,
                qos=envelope.qos,
                retain=envelope.retain,
                properties=envelope.travels,
                user=user,
                payload_bytes=envelope.payload_bytes,
                is_promised=envelope.qos > 0,
            )
        missing = len(payloads) * len(streams) - taken
        if missing:
            self._drop(NO_ROOM, missing)


class StreamTaps:
    """All streams, by what their filters match."""

    def __init__(self, writer: LogWriter, drop: Callable[[str, int], None]) -> None:
        self._writer = writer
        self._drop = drop
        self._streams: tuple[Stream, ...] = ()
        self._taps: dict[tuple[Stream, ...], StreamTap] = {}

    def set(self, streams: Iterable[Stream]) -> None:
        """These are the streams from now on; routes that were worked out before know others."""
        self._streams = tuple(stream for stream in streams if stream.settings.filter)
        self._taps.clear()

    def find(self, topic: str) -> TopicWriter | None:
        found = tuple(s for s in self._streams if matches(s.settings.filter, topic))
        if not found:
            return None
        tap = self._taps.get(found)
        if tap is None:
            tap = self._taps[found] = StreamTap(self._writer, found, self._drop)
        return tap

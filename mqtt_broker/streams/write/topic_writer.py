"""Write the messages of a topic to its streams: the log's part of `core.interfaces.message_log`.

A topic may belong to several streams, and its messages go to each once. Topics of the same
streams share one `StreamTopicWriter`, so a fleet of a million topics costs one object.

Space is reserved for acknowledged messages: QoS 0 is dropped, and counted, when three quarters are
in use.
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
_ROW_BYTES: Final = 184  # that a record takes beside its strings, at most


class StreamTopicWriter:
    """Writes the messages of topics that belong to these streams."""

    __slots__ = ("_drop", "_streams", "_writer")

    def __init__(
        self, writer: LogWriter, streams: tuple[Stream, ...], drop: Callable[[str, int], None]
    ) -> None:
        self._writer = writer
        self._streams = streams
        self._drop = drop

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        writer = self._writer
        strings = len(envelope.topic) + len(envelope.section) + len(envelope.publisher)
        size = len(payloads) * (strings + envelope.payload_bytes + _ROW_BYTES)
        waiting = writer.waiting_bytes
        return not waiting or waiting + size * len(self._streams) <= writer.waiting_bytes_max

    def append(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        if envelope.qos or not self._is_dropped(len(payloads)):
            self._append(self._streams, envelope, payloads, now)

    def append_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        if self._is_dropped(run.count):
            return
        cut: list[Stream] = []  # streams that need payloads
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
                properties=envelope.forwarded,
                user=envelope.properties.user if envelope.properties else (),
            ):
                cut.append(stream)
        if cut:
            self._append(tuple(cut), envelope, run.payloads(), now)

    def _is_dropped(self, count: int) -> bool:
        """Drop these QoS 0 messages if the remaining space is reserved for acknowledged ones.

        Publishers are paused when half is in use. The quarter between is for the messages that they
        have already sent then.
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
                properties=envelope.forwarded,
                user=user,
                payload_bytes=envelope.payload_bytes,
                is_promised=envelope.qos > 0,
            )
        missing = len(payloads) * len(streams) - taken
        if missing:
            self._drop(NO_ROOM, missing)


class TopicWriters:
    """Finds the writer of a topic by the streams whose filters match it."""

    def __init__(self, writer: LogWriter, drop: Callable[[str, int], None]) -> None:
        self._writer = writer
        self._drop = drop
        self._streams: tuple[Stream, ...] = ()
        self._writers: dict[tuple[Stream, ...], StreamTopicWriter] = {}

    def set_streams(self, streams: Iterable[Stream]) -> None:
        """Use these streams from now on. The caller must drop cached routes."""
        self._streams = tuple(stream for stream in streams if stream.settings.filter)
        self._writers.clear()

    def find(self, topic: str) -> TopicWriter | None:
        found = tuple(s for s in self._streams if matches(s.settings.filter, topic))
        if not found:
            return None
        writer = self._writers.get(found)
        if writer is None:
            writer = self._writers[found] = StreamTopicWriter(self._writer, found, self._drop)
        return writer

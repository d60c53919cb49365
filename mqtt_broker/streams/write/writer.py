"""The way of messages from the event loop into the log, and of its ends back to readers.

    on the loop             append(...)       columns grow in memory; nothing waits
                            take(number)      what came so far belongs to journal group `number`
    in the store's thread   write(number)     all that was taken up to it is on disk; its ends
                                              go into the journal with the group
    after the group is safe commit(ends)      readers may have it

What has no QoS 2 in it needs no word of the journal (`suffices`): it may be written to stand
alone, which recovery believes, and the journal is told later. QoS 2 stands in the log once
because the journal says which of it was answered.

`write` that fails has written nothing: what it was to write is kept, and goes with the next call.
`write` that is repeated returns the same ends: nothing is written twice. So the order of the
design holds whatever dies when: log, journal, acknowledgement.

What waits is bounded: `append` takes as many messages of a run as there is room for, and says
how many. When nothing waits it takes one, however large.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from mqtt_broker.streams.format.batch_builder import (
    BYTES_MAX,
    ROW_BYTES,
    RUN_BYTES,
    BatchBuilder,
    Run,
)
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.partitioning import User
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.partition import Partition
from mqtt_broker.streams.write.stream import Stream

WAITING_BYTES_MAX: Final = 64 << 20
_RETAIN: Final = 4
_QOS2: Final = 2
_NO_TIMES: Final[Sequence[int]] = ()
Filling = dict[Partition, list[BatchBuilder]]


class LogWriter:
    """One writer a log. `append` and `take` are one thread's, `write` and `commit` another's."""

    def __init__(self, log: Log, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._log = log
        self.waiting_bytes_max = waiting_bytes_max
        # Of the loop.
        self._filling: Filling = {}
        self._added_bytes = 0
        self._has_qos2 = False
        self.messages = 0  # taken by append, ever
        self.messages_refused = 0
        # Between both.
        self._taken: deque[tuple[int, Filling, bool]] = deque()
        # Of the writing thread.
        self._writing: Filling = {}
        self._written_bytes = 0
        self._unsaid = {  # with more in it than the journal knows
            name: stream for name, stream in log.streams.items() if not stream.is_recorded
        }
        self._needs_journal = False  # what was written, or is being written, and not committed
        self._lock = threading.Lock()

    @property
    def waiting_bytes(self) -> int:
        """What was appended and is not on disk."""
        return self._added_bytes - self._written_bytes

    @property
    def has_new(self) -> bool:
        """Whether `take` would find anything."""
        return bool(self._filling)

    # On the loop.

    def append(
        self,
        stream: Stream,
        topic: str,
        client_id: str,
        payloads: Sequence[bytes],
        received_us: int,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        user: User = (),
        payload_bytes: int = -1,
        is_promised: bool = False,
    ) -> int:
        """Messages that differ only in payload; how many of them, from the first, were taken.

        `properties` as MQTT 5 writes them, without the length in front and without what belongs
        to one hop; `user` the user properties in it, for partitions and times that go by them.
        `payload_bytes`: how long each payload is, if all are as long. What `is_promised` is
        taken, room or not: whoever promised it has asked before.
        """
        topic_bytes, client_bytes = topic.encode(), client_id.encode()
        each = len(topic_bytes) + len(client_bytes) + len(properties) + ROW_BYTES
        count = len(payloads)
        size = _size(each, payloads, payload_bytes)
        if not is_promised and self.waiting_bytes + size > self.waiting_bytes_max:
            payloads = payloads[: self._room(payloads, each)]
            self.messages_refused += count - len(payloads)
            stream.refused += count - len(payloads)
            count = len(payloads)
            if not count:
                return 0
            size = _size(each, payloads, payload_bytes)
        flags = qos | _RETAIN if retain else qos
        if qos == _QOS2:
            self._has_qos2 = True
        about = topic_bytes, client_bytes, properties, flags, received_us, payload_bytes
        for number, part in stream.partitioner.deal(topic, client_id, payloads, user):
            if len(part) < count:
                size = _size(each, part, payload_bytes)
            partition = stream.partitions[number]
            if size <= BYTES_MAX:
                self._add(stream, partition, Run(len(part), *about), part, size, user)
                continue
            step = max(1, len(part) * BYTES_MAX // size)
            for at in range(0, len(part), step):
                piece = part[at : at + step]
                size = _size(each, piece, payload_bytes)
                self._add(stream, partition, Run(len(piece), *about), piece, size, user)
        self.messages += count
        stream.appended += count
        return count

    def append_frames(
        self,
        stream: Stream,
        topic: str,
        client_id: str,
        frames: bytes,
        frame_bytes: int,
        head_bytes: int,
        received_us: int,
        *,
        retain: bool = False,
        properties: bytes = b"",
        user: User = (),
    ) -> bool:
        """A run of QoS 0 packets as they came, `head_bytes` before each payload.

        They are cut when they are written. False: not this run, which is too much for that.
        """
        assert stream.takes_frames
        topic_bytes, client_bytes = topic.encode(), client_id.encode()
        count = len(frames) // frame_bytes
        payload_bytes = frame_bytes - head_bytes
        size = count * (
            len(topic_bytes) + len(client_bytes) + len(properties) + ROW_BYTES + payload_bytes
        )
        held = len(frames) + RUN_BYTES
        if size > BYTES_MAX or self.waiting_bytes + held > self.waiting_bytes_max:
            return False
        run = Run(
            count,
            topic_bytes,
            client_bytes,
            properties,
            _RETAIN if retain else 0,
            received_us,
            payload_bytes,
            frame_bytes,
            head_bytes,
        )
        for number, part in stream.partitioner.deal(topic, client_id, [frames], user):
            builder = self._builder(stream.partitions[number], size)
            builder.append_run(run, part, size, held_bytes=held)
        self._added_bytes += held
        self.messages += count
        stream.appended += count
        return True

    def _room(self, payloads: Sequence[bytes], each: int) -> int:
        """How many of these may be taken; when nothing waits, one in any case."""
        left = self.waiting_bytes_max - self.waiting_bytes
        room = 0
        for payload in payloads:
            left -= each + len(payload)
            if left < 0:
                break
            room += 1
        return room or int(not self.waiting_bytes)

    def _add(
        self,
        stream: Stream,
        partition: Partition,
        run: Run,
        payloads: Sequence[bytes],
        size: int,
        user: User,
    ) -> None:
        times = stream.times
        events, sents = times.find(payloads, user) if times.is_wanted else (_NO_TIMES, _NO_TIMES)
        self._builder(partition, size).append_run(run, payloads, size, events, sents)
        self._added_bytes += size

    def _builder(self, partition: Partition, size: int) -> BatchBuilder:
        """The one that the next so many bytes go to."""
        builders = self._filling.get(partition)
        if builders is None:
            builders = self._filling[partition] = [BatchBuilder()]
        elif builders[-1].is_full or builders[-1].size + size > BYTES_MAX:
            builders.append(BatchBuilder())
        return builders[-1]

    def take(self, number: int) -> bool:
        """What came so far belongs to this group of the journal; False: nothing did."""
        if not self._filling:
            return False
        self._taken.append((number, self._filling, self._has_qos2))
        self._filling = {}
        self._has_qos2 = False
        return True

    # In the store's thread.

    def suffices(self, number: int, now_us: int) -> bool:
        """Whether what was taken for groups up to this one may stand alone.

        Not when a segment is to be sealed: the journal has to know all in it.
        """
        with self._lock, self._log.lock:
            self._gather(number)
            if self._needs_journal:
                return False
            return not any(partition.wants_record(now_us) for partition in self._writing)

    def write(
        self, number: int, *, is_synced: bool = True, stands_alone: bool = False
    ) -> dict[str, Offsets]:
        """Put on disk what was taken for groups up to this one; the ends the journal has not.

        Without `is_synced` a crash of the machine, not of the process, may lose it.
        """
        with self._lock, self._log.lock:
            self._gather(number)
            if self._writing:
                self._needs_journal = self._needs_journal or not stands_alone
                for partition, builders in self._writing.items():
                    partition.write(builders, stands_alone=stands_alone)
                if is_synced:
                    self._log.sync(list(self._writing))
                self._settle()
            streams = self._log.streams
            return {
                name: stream.ends()
                for name, stream in self._unsaid.items()
                if streams.get(name) is stream  # else it was deleted
            }

    def _gather(self, number: int) -> None:
        """Join what was taken in several groups: larger batches, and one write a partition."""
        while self._taken and self._taken[0][0] <= number:
            _, filling, has_qos2 = self._taken.popleft()
            self._needs_journal = self._needs_journal or has_qos2
            for partition, builders in filling.items():
                waiting = self._writing.setdefault(partition, [])
                for builder in builders:
                    if waiting and waiting[-1].takes(builder):
                        waiting[-1].join(builder)
                    else:
                        waiting.append(builder)
        streams = self._log.streams
        for partition in list(self._writing):
            stream = streams.get(partition.where.stream)
            if stream is None or partition not in stream.partitions:  # it was deleted meanwhile
                self._written_bytes += sum(b.held_bytes for b in self._writing.pop(partition))

    def _settle(self) -> None:
        for partition, builders in self._writing.items():
            begin = partition.active.size
            partition.settle([builder.count for builder in builders])
            self._log.recent.add(partition.path, begin, partition.active.size)
            self._written_bytes += sum(builder.held_bytes for builder in builders)
            stream = self._log.streams[partition.where.stream]
            self._unsaid[stream.name] = stream
        self._writing = {}

    def commit(self, ends: Mapping[str, Offsets], *, stands_alone: bool = False) -> None:
        """These ends, which `write` returned, are safe, and in the journal unless they stand alone.

        When a file cannot be written, readers are told later; the commit stands.
        """
        with self._lock, self._log.lock:
            self._needs_journal = False
            for name, offsets in ends.items():
                stream = self._log.streams.get(name)
                if stream is None or stream.epoch != offsets.epoch:
                    self._unsaid.pop(name, None)
                    continue
                try:
                    stream.commit(offsets)
                except OSError as error:
                    self._log.report(f"stream {name!r}: {error}; readers are told later")
                if stands_alone:
                    continue
                stream.record(offsets)
                if stream.is_recorded:
                    self._unsaid.pop(name, None)


def _size(each: int, payloads: Sequence[bytes], payload_bytes: int) -> int:
    """What messages count: their payloads, and so much beside each."""
    count = len(payloads)
    if payload_bytes >= 0:
        return (each + payload_bytes) * count
    return each * count + sum(map(len, payloads))

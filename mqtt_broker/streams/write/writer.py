"""Write messages from the event loop to the log, and tell readers when they may read them.

    on the loop             append(...)        add to columns in memory; never waits
                            assign(number)     records so far belong to journal group `number`
    in the store's thread   write(number)      write and sync the records of groups up to `number`;
                                               the new ends go into the journal with the group
    after the group is safe committed(ends)    readers may read them

Records of QoS 0 and 1 do not need the journal (`is_durable_alone`): they may be written as batches
that stand alone, which recovery keeps, and the journal records their ends later. QoS 2 messages are
in the log exactly once because the journal records which of them were acknowledged.

A `write` that fails has written nothing: its records are kept for the next call. A `write` that is
repeated returns the same ends and writes nothing twice. So the order log, journal, acknowledgement
holds after a crash at any point.

The memory of waiting records is bounded: `append` takes as many messages of a run as fit, and
returns their number. When nothing waits it takes at least one, however large.

No client waits for QoS 0 records to be on disk, so those of `DELAY_S` share a commit (`delay_s`).
During a burst, writing would slow down its delivery, so records are written when the burst is over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
DELAY_S: Final = 0.1  # that records of QoS 0 wait for others
_RETAIN: Final = 4
_QOS2: Final = 2
_NO_TIMES: Final[Sequence[int]] = ()
Filling = dict[Partition, list[BatchBuilder]]


def _now_us() -> int:
    return time.time_ns() // 1_000


def _ignore(names: Iterable[str]) -> None:
    pass


class LogWriter:
    """The one writer of a log: a `CommitParticipant` of the journal.

    `append` and `assign` belong to one thread, `write` and `committed` to another.
    """

    def __init__(
        self,
        log: Log,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        *,
        on_committed: Callable[[Iterable[str]], None] = _ignore,
        clock_us: Callable[[], int] = _now_us,
    ) -> None:
        """`on_committed` is called in the writing thread with the streams that have grown."""
        self._log = log
        self._on_committed = on_committed
        self._clock_us = clock_us
        self.waiting_bytes_max = waiting_bytes_max
        self._burst_bytes = waiting_bytes_max // 16  # more than that in one delay is a burst
        # Of the loop.
        self._filling: Filling = {}
        self._added_bytes = 0
        self._has_qos2 = False
        self._due_at = 0.0  # when the delay is over; 0: nothing is delayed
        self._due_bytes = 0  # that waited when the last delay was over
        self.messages = 0  # that `append` has taken, ever
        self.messages_refused = 0
        # Shared by both threads.
        self._assigned: deque[tuple[int, Filling, bool]] = deque()
        # Of the writing thread.
        self._writing: Filling = {}
        self._written_bytes = 0
        self._unrecorded = {  # streams with more in them than the journal knows
            name: stream for name, stream in log.streams.items() if not stream.is_recorded
        }
        self._unshown: set[str] = set()  # streams whose readers cannot be told
        self._needs_journal = False  # records that are written or being written, and not committed
        self._lock = threading.Lock()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were appended and are not on disk."""
        return self._added_bytes - self._written_bytes

    @property
    def has_new(self) -> bool:
        """Tell whether there are records that are not assigned to a group."""
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
        """Add messages that differ only in payload; return how many, from the first, were taken.

        `properties` are in the encoding of MQTT 5, without their length and without those that
        apply to one hop; `user` are the user properties among them, for partitions and times.
        `payload_bytes` is the length of each payload, if all are equal. Messages that will be
        acknowledged (`is_promised`) are always taken: the caller has checked for space.
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
        """Add a run of QoS 0 packets in their encoding, with `head_bytes` before each payload.

        They are split when they are written. Return False if the run is too large for that.
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
        """Return how many of these messages fit; at least one when nothing waits."""
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
        """Return the builder that the next so many bytes go to."""
        builders = self._filling.get(partition)
        if builders is None:
            builders = self._filling[partition] = [BatchBuilder()]
        elif builders[-1].is_full or builders[-1].size + size > BYTES_MAX:
            builders.append(BatchBuilder())
        return builders[-1]

    def delay_s(self, now: float) -> float:
        """Return how long the records may wait for others to share a commit."""
        if not self._due_at:
            self._due_at = now + DELAY_S
        elif now >= self._due_at:
            waiting = self.waiting_bytes
            if waiting - self._due_bytes < self._burst_bytes:
                return 0.0
            self._due_bytes = waiting
            self._due_at = now + DELAY_S
        return self._due_at - now

    def assign(self, number: int) -> bool:
        """Assign all records so far to group `number`. Return False if there are none."""
        self._due_at = 0.0
        self._due_bytes = 0
        if not self._filling:
            return False
        self._assigned.append((number, self._filling, self._has_qos2))
        self._filling = {}
        self._has_qos2 = False
        return True

    # In the store's thread.

    def is_durable_alone(self, number: int) -> bool:
        """Tell whether the records of groups up to this one may stand alone.

        They may not when a segment is due for sealing: the journal must have all of its records.
        """
        now_us = self._clock_us()
        with self._lock, self._log.lock:
            self._gather(number)
            if self._needs_journal:
                return False
            return not any(partition.wants_record(now_us) for partition in self._writing)

    def write(self, number: int, *, stands_alone: bool = False) -> dict[str, str]:
        """Write the records of groups up to this one to disk; return the ends the journal lacks."""
        with self._lock, self._log.lock:
            self._gather(number)
            if self._writing:
                self._needs_journal = self._needs_journal or not stands_alone
                for partition, builders in self._writing.items():
                    partition.write(builders, stands_alone=stands_alone)
                self._log.sync(list(self._writing))
                self._settle()
            streams = self._log.streams
            return {
                name: stream.ends().text()
                for name, stream in self._unrecorded.items()
                if streams.get(name) is stream  # otherwise it was deleted
            }

    def _gather(self, number: int) -> None:
        """Join the records of several groups: larger batches, and one write for each partition."""
        while self._assigned and self._assigned[0][0] <= number:
            _, filling, has_qos2 = self._assigned.popleft()
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
            stream = streams.get(partition.files.stream)
            if stream is None or partition not in stream.partitions:  # it was deleted meanwhile
                self._written_bytes += sum(b.held_bytes for b in self._writing.pop(partition))

    def _settle(self) -> None:
        """Count what was written as part of the log."""
        for partition, builders in self._writing.items():
            begin = partition.active.size
            partition.settle([builder.count for builder in builders])
            self._log.page_cache.add(partition.path, begin, partition.active.size)
            self._written_bytes += sum(builder.held_bytes for builder in builders)
            stream = self._log.streams[partition.files.stream]
            self._unrecorded[stream.name] = stream
        self._writing = {}

    def committed(self, ends: Mapping[str, str], *, stands_alone: bool = False) -> None:
        """Let readers read up to these ends, which `write` returned.

        They are in the journal, unless the records stand alone. If a `committed` file cannot be
        written, readers learn of the ends later; the commit is valid.
        """
        with self._lock, self._log.lock:
            self._needs_journal = False
            for name, text in ends.items():
                offsets = Offsets.decode(text)
                stream = self._log.streams.get(name)
                if stream is None or stream.epoch != offsets.epoch:
                    self._unrecorded.pop(name, None)
                    continue
                try:
                    stream.commit(offsets)
                    self._unshown.discard(name)
                except OSError as error:
                    if name not in self._unshown:  # logged once, not at every commit
                        self._unshown.add(name)
                        self._log.report(
                            f"stream {name!r}: {error}; readers will see new records later"
                        )
                if stands_alone:
                    continue
                stream.record(offsets)
                if stream.is_recorded:
                    self._unrecorded.pop(name, None)
        self._on_committed(ends)


def _size(each: int, payloads: Sequence[bytes], payload_bytes: int) -> int:
    """Return the bytes that messages count: their payloads, and `each` for every one."""
    count = len(payloads)
    if payload_bytes >= 0:
        return (each + payload_bytes) * count
    return each * count + sum(map(len, payloads))

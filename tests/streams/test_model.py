"""The log against a model of it: any order of writing, sealing, giving up, dying and reading.

The model is a list of messages a partition, a start, and for compaction a set of those that may
be gone. Readers at several places live through all of it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqtt_broker.streams.format.errors import OffsetGone
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.read.verify import verify
from tests.property_examples import examples
from tests.streams.conftest import MEMORY
from tests.streams.logs import NAME, START_US, Sent, Writing, read, sent

PARTITIONS: Final = 2
TOMBSTONE_S: Final = 20
MESSAGES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 700)), min_size=1, max_size=30
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.writing = Writing(self.root, {})
        self.writing.create(
            partitions=PARTITIONS,
            partition_by="topic",
            segment_bytes=4_096,
            compact=True,
            tombstone_s=TOMBSTONE_S,
        )
        self.count = 0
        self.committed: list[list[tuple[int, Sent]]] = [[] for _ in range(PARTITIONS)]
        self.written: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.waiting: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.compacted = [0] * PARTITIONS  # what is before may be gone, if it is superseded
        self.source = Source.open(self.root, NAME)
        self.readers: list[tuple[Reader, list[int], int]] = []

    def teardown(self) -> None:
        self.source.close()
        for reader, _, _ in self.readers:
            reader.close()
        self.writing.log.close()
        shutil.rmtree(self.root)

    # What the broker does.

    @rule(messages=MESSAGES, seconds=st.integers(-5, 30))
    def append_only(self, messages: list[tuple[int, int, int]], seconds: int) -> None:
        self.append(messages, seconds)

    def append(self, messages: list[tuple[int, int, int]], seconds: int) -> None:
        self.writing.now_us += seconds * 1_000_000
        stream = self.writing.log.streams[NAME]
        for topic, client, size in messages:
            self.count += 1
            payload = b"%06d" % self.count + bytes(size) if size else b""
            message = Sent(f"t{topic}", f"c{client}", payload)
            [(number, _)] = stream.partitioner.deal(message.topic, message.client_id, [payload], ())
            self.writing.append([message])
            self.waiting[number].append(message)

    @rule()
    def write_only(self) -> None:
        self.write()

    def write(self) -> None:
        self.writing.write()
        for number in range(PARTITIONS):
            self.written[number] += self.waiting[number]
            self.waiting[number] = []

    @rule()
    def commit_only(self) -> None:
        self.commit()

    def commit(self) -> None:
        self.write()
        self.writing.commit()
        for number in range(PARTITIONS):
            first = self.end(number)
            self.committed[number] += enumerate(self.written[number], first)
            self.written[number] = []

    @rule(messages=MESSAGES, seconds=st.integers(-5, 30))
    def put(self, messages: list[tuple[int, int, int]], seconds: int) -> None:
        self.append(messages, seconds)
        self.commit()

    @rule()
    def seal_only(self) -> None:
        self.seal()

    def seal(self) -> None:
        for partition in self.writing.log.streams[NAME].partitions:
            partition.roll()

    @rule()
    def die(self) -> None:
        """What was not committed was never acknowledged."""
        self.writing.log.close()
        self.writing = Writing(self.root, self.writing.journal)
        self.writing.now_us = START_US + self.count * 1_000_000
        self.written = [[] for _ in range(PARTITIONS)]
        self.waiting = [[] for _ in range(PARTITIONS)]

    # What is given up.

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        ends = self.writing.log.streams[NAME].committed()
        cut = tuple(data.draw(st.integers(0, end)) for end in ends.ends)
        self.writing.log.trim(NAME, type(ends)(ends.epoch, cut))

    @rule()
    def compact(self) -> None:
        self.commit()
        self.seal()
        for number, partition in enumerate(self.writing.log.streams[NAME].partitions):
            self.compacted[number] = partition.catalog.next_base
        self.writing.log.compact(self.writing.now_us)

    # Readers.

    @precondition(lambda self: len(self.readers) < 6)
    @rule(data=st.data(), number=st.integers(0, PARTITIONS - 1))
    def begin(self, data: st.DataObject, number: int) -> None:
        low, high = self.source.starts().ends[number], self.source.end(number)
        offset = data.draw(st.integers(low, high))
        self.readers.append((Reader(self.source, number, offset), [], offset))

    @precondition(lambda self: bool(self.readers))
    @rule(data=st.data(), bytes_max=st.sampled_from([1, 2_000, 1 << 20]))
    def read_on(self, data: st.DataObject, bytes_max: int) -> None:
        at = data.draw(st.integers(0, len(self.readers) - 1))
        reader, seen, _ = self.readers[at]
        sent_there = dict(self.committed[reader.partition])
        try:
            for batch in reader.read(bytes_max):
                for record in records(batch):
                    assert not seen or record.offset > seen[-1]
                    assert sent(record) == sent_there[record.offset]
                    seen.append(record.offset)
        except OffsetGone:
            assert reader.offset < self.source.starts().ends[reader.partition]
            reader.close()
            del self.readers[at]

    @invariant()
    def what_is_there_is_what_was_committed(self) -> None:
        for number, start in enumerate(self.source.starts().ends):
            found = {record.offset: sent(record) for record in read(self.root, number, start)}
            assert list(found) == sorted(found)
            there = {o: message for o, message in self.committed[number] if o >= start}
            assert found.items() <= there.items()
            last = {message.topic: o for o, message in there.items()}
            for offset, message in there.items():
                if offset not in found:
                    assert offset < self.compacted[number]
                    assert last[message.topic] > offset or not message.payload

    @invariant()
    def a_reader_has_missed_nothing(self) -> None:
        for reader, seen, begun in self.readers:
            passed = {
                o: m for o, m in self.committed[reader.partition] if begun <= o < reader.offset
            }
            last = {message.topic: o for o, message in self.committed[reader.partition]}
            for offset, message in passed.items():
                if offset not in seen:
                    assert offset < self.compacted[reader.partition]
                    assert last[message.topic] > offset or not message.payload

    @invariant()
    def it_is_whole(self) -> None:
        assert verify(self.source).findings == []

    def end(self, number: int) -> int:
        return self.committed[number][-1][0] + 1 if self.committed[number] else 0


def _examples(count: int) -> settings:
    return examples(
        count,
        stateful_step_count=60,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestModel = Machine.TestCase
TestModel.settings = _examples(100)


class LongMachine(Machine):
    """The same, for longer."""


TestLong = pytest.mark.slow(LongMachine.TestCase)
TestLong.settings = _examples(200)

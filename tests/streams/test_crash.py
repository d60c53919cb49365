"""The process dies, or the machine loses its power, before every single call to the disk.

What is left is opened with what the journal knows by then. All that was acknowledged is there
once, nothing that was not is, and the log goes on. Of what was to stand alone, whose publishers
send again what was not answered, the last may be there all the same. The fast tests look at every
third call.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.read.source import Source, stream_names
from mqtt_broker.streams.read.verify import verify
from tests.streams.disks import Mortal
from tests.streams.logs import NAME, Sent, Writing, decoded, read

DAY_US: Final = 86_400_000_000
Messages = list[tuple[int, Sent]]  # with their offsets


class Story:
    """A log that is written to, sealed, shortened and compacted, and what it has to hold."""

    def __init__(
        self, root: Path, on_moment: Callable[[Story], None], *, stands_alone: bool
    ) -> None:
        self.root = root
        self.moments = 0
        self._on_moment = on_moment
        self.journal: dict[str, Offsets] = {}
        self.logged: list[Messages] = [[], []]  # acknowledged, by partition
        self.pending: list[list[Sent]] = [[], []]
        self.stands_alone = stands_alone  # most of it
        self.alone = 0
        self.is_alone = False  # what is being written
        self.disk = Mortal(root, self._moment)
        self.may_miss_us = 0  # what is older may have gone

    def _moment(self) -> None:
        self.moments += 1
        self._on_moment(self)

    def run(self) -> None:
        with Writing(self.root, {}, disk=self.disk) as writing:
            writing.create(partitions=2, partition_by="round-robin", segment_bytes=4_096,
                           compact=True, retain_s=16, tombstone_s=3)  # fmt: skip
            for number in range(20):
                self._write(writing, number)
                writing.now_us += 1_000_000
                if number % 4 == 3:
                    writing.log.compact(writing.now_us)
                if number > 10:
                    writing.log.maintain(writing.now_us)
            writing.log.delete(NAME)

    def _write(self, writing: Writing, number: int) -> None:
        messages = [
            Sent(f"t{(number * 3 + row) % 7}", "c", b"" if row == 3 else bytes([number, row]) * 200)
            for row in range(4)
        ]
        for place, message in enumerate(messages):
            self.pending[place % 2].append(message)
        writing.append(messages)
        writing.assign()
        self.is_alone = (
            self.stands_alone and number % 5 > 0 and writing.writer.is_durable_alone(writing.number)
        )
        self.alone += self.is_alone
        ends = writing.writer.write(writing.number, stands_alone=self.is_alone)
        self._moment()
        if not self.is_alone:
            self.journal = {**self.journal, **decoded(ends)}
        for partition in range(2):
            offset = self.logged[partition][-1][0] + 1 if self.logged[partition] else 0
            self.logged[partition] += enumerate(self.pending[partition], offset)
            self.pending[partition] = []
            assert decoded(ends)[NAME].ends[partition] == self.logged[partition][-1][0] + 1
        writing.writer.committed(ends, stands_alone=self.is_alone)


def check(root: Path, story: Story) -> None:
    """Open what is left; the log may be gone only when it was being deleted."""
    with Writing(root, story.journal) as writing:
        if NAME not in writing.log.streams:
            return
        now_us = writing.now_us
        ends = writing.log.streams[NAME].ends().ends
        logged = [list(messages) for messages in story.logged]
        for partition, messages in enumerate(logged):
            if story.is_alone and ends[partition] > len(messages):
                messages += enumerate(story.pending[partition], len(messages))
            found = {r.offset: Sent(r.topic, r.client_id, r.payload)
                     for r in read(root, partition, start_of(root, partition))}  # fmt: skip
            sent = dict(messages)
            assert found.items() <= sent.items()
            start = start_of(root, partition)
            last = {m.topic: offset for offset, m in messages if offset >= start}
            for topic, offset in last.items():
                assert offset in found or not sent[offset].payload, topic
            assert ends[partition] == len(messages)
        with Source.open(root, NAME) as source:
            assert verify(source).findings == []
        writing.append([Sent("more", "c", b"1"), Sent("more", "c", b"2")])
        writing.now_us = now_us
        writing.commit()
        for partition, messages in enumerate(logged):
            last_record = read(root, partition, start_of(root, partition))[-1]
            assert (last_record.offset, last_record.topic) == (len(messages), "more")


def start_of(root: Path, partition: int) -> int:
    with Source.open(root, NAME, clock_us=lambda: 0) as source:
        return source.starts().ends[partition]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stands_alone", [False, True])
def test_the_process_is_killed(tmp_path: Path, stands_alone: bool, step: int) -> None:
    def on_moment(story: Story) -> None:
        if story.moments % step or not (story.root / NAME).exists():
            return
        copy = tmp_path / "copy"
        shutil.copytree(story.root, copy)
        check(copy, story)
        shutil.rmtree(copy)

    story = Story(tmp_path / "log", on_moment, stands_alone=stands_alone)
    story.run()
    assert story.moments > 250
    assert story.logged[0][-1][0] == 39
    assert (story.alone > 8) == stands_alone


def test_what_is_sealed_is_on_disk_even_when_nobody_waited_for_it(tmp_path: Path) -> None:
    disk = Mortal(tmp_path / "log", lambda: None)
    with Writing(tmp_path / "log", disk=disk) as writing:
        writing.create(segment_bytes=4_096)
        for number in range(5):
            writing.append([Sent("t", "c", bytes([number]) * 5_000)])
            writing.writer.assign(number)
            writing.writer.committed(writing.writer.write(number))
        disk.image(tmp_path / "image", random.Random(1))
    with Writing(tmp_path / "image"):
        sealed = read(tmp_path / "image", until=4)
    assert [record.payload[0] for record in sealed] == [0, 1, 2, 3]


@pytest.mark.parametrize("stands_alone", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_the_machine_loses_its_power(tmp_path: Path, seed: int, stands_alone: bool) -> None:
    rng = random.Random(seed)
    left_out = 0.5 if seed else 0.85  # seed 0 is a fast test, in part

    def on_moment(story: Story) -> None:
        if rng.random() < left_out or not story.journal:
            return
        copy = tmp_path / "copy"
        story.disk.image(copy, rng)
        if NAME in stream_names(copy):
            check(copy, story)
        else:
            assert not (story.root / NAME).exists()
        shutil.rmtree(copy)

    Story(tmp_path / "log", on_moment, stands_alone=stands_alone).run()

"""The way into the log: what is taken, in which batches, and when readers have it."""

from __future__ import annotations

import subprocess
import sys
import threading
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format import batch_builder
from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import Invalid, Locked, UnknownStream
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from tests.streams.logs import NAME, START_US, Sent, Writing, decoded, payloads, read, segments


def test_a_message_keeps_all_it_has(tmp_path: Path) -> None:
    section = b"\x03\x00\x04text\x26\x00\x02ts\x00\x03100"
    with Writing(tmp_path) as writing:
        writing.create(event_time="property:ts", sent_time="json:$.at ms")
        writing.append(
            [Sent("fleet/7/t", "dev-ü", b'{"at": 7}')],
            qos=2,
            retain=True,
            properties=section,
            user=[("ts", "100")],
        )
        writing.commit()
        [record] = read(tmp_path)
        assert record[:7] == (
            0, START_US, 100_000_000, 7_000, "fleet/7/t", "dev-ü", b'{"at": 7}',
        )  # fmt: skip
        assert (record.qos, record.retain, record.section) == (2, True, section)
        assert record.properties() == {3: "text", 0x26: [("ts", "100")]}


def test_times_that_are_not_looked_for_take_no_room(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        [record] = read(tmp_path)
        assert record.event_us == record.sent_us == NULL


def test_readers_have_what_is_committed_and_no_more(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.append([Sent("t", "c", b"one")])
        assert payloads(tmp_path) == []
        ends = writing.write()
        assert payloads(tmp_path) == []
        assert decoded(ends)[NAME].ends == (1,)
        writing.writer.committed(ends)
        assert payloads(tmp_path) == [b"one"]


def test_a_write_that_is_repeated_writes_nothing_twice(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.append([Sent("t", "c", b"one")])
        ends = writing.write()
        assert writing.writer.write(writing.number) == ends
        writing.append([Sent("t", "c", b"two")])
        assert decoded(writing.write())[NAME].ends == (2,)
        writing.writer.committed(ends)
        assert payloads(tmp_path) == [b"one"]
        assert decoded(writing.writer.write(9))[NAME].ends == (2,)  # it is still to be committed
        writing.commit()
        assert payloads(tmp_path) == [b"one", b"two"]
        assert writing.write() == {}


def test_groups_are_written_up_to_the_number_and_joined(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writer = writing.writer
        for number in (1, 2, 3):
            writing.append([Sent("t", "c", b"%d" % number)])
            assert writer.assign(number)
            assert not writer.has_new and not writer.assign(number)
        assert decoded(writer.write(2))[NAME].ends == (2,)
        assert writer.waiting_bytes > 0
        assert decoded(writer.write(3))[NAME].ends == (3,)
        assert writer.waiting_bytes == 0
        writer.committed(writer.write(3))
        with Source.open(tmp_path, NAME):
            assert [record.payload for record in read(tmp_path)] == [b"1", b"2", b"3"]
        [segment] = segments(tmp_path)
        assert segment.read_bytes().count(b"FM\x01\x00") == 2  # two writes, two batches


def test_order_holds_within_a_partition(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(partitions=4)
        for number in range(100):
            writing.append([Sent("t", f"dev{number % 7}", b"%d" % number)])
            if number % 9 == 0:
                writing.commit()
        writing.commit()
        found = [read(tmp_path, partition) for partition in range(4)]
        assert sum(map(len, found)) == 100
        for records in found:
            numbers = [int(record.payload) for record in records]
            assert numbers == sorted(numbers)
            assert [record.offset for record in records] == list(range(len(records)))
        places = {
            record.client_id: partition for partition, part in enumerate(found) for record in part
        }
        assert len(places) == 7


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        stream = writing.log.streams[NAME]
        writer = LogWriter(writing.log, waiting_bytes_max=1_000)
        many = [bytes(68)] * 20  # with topic and client id 100 bytes each, and 2
        assert writer.append(stream, "t", "c", many, 0) == 9
        assert writer.append(stream, "t", "c", many, 0) == 0
        assert (writer.messages, writer.messages_refused) == (9, 31)
        assert 900 < writer.waiting_bytes <= 1_000
        writer.assign(1)
        assert writer.append(stream, "t", "c", [b""], 0) == 1
        writer.write(1)
        assert writer.waiting_bytes < 100
        assert writer.append(stream, "t", "c", many, 0) == 9


def test_one_message_is_taken_however_large(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        stream = writing.log.streams[NAME]
        writer = LogWriter(writing.log, waiting_bytes_max=1_000)
        assert writer.append(stream, "t", "c", [bytes(5_000)] * 2, 0) == 1
        writer.assign(1)
        writer.committed(writer.write(1))
        assert payloads(tmp_path) == [bytes(5_000)]


def test_a_long_run_with_a_long_topic_becomes_batches_of_bounded_size(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        stream = writing.log.streams[NAME]
        topic = "t" * 60_000
        assert writing.writer.append(stream, topic, "c", [b"x"] * 300, 0) == 300
        writing.commit()
        assert len(read(tmp_path)) == 300
        [segment] = segments(tmp_path)
        assert segment.read_bytes().count(b"FM\x01\x00") >= 300 * 60_000 / batch_builder.BYTES_MAX


def test_a_batch_that_is_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        large = [bytes([number]) * 50_000 for number in range(4)]
        for payload in large:
            writing.put(payload, b"small")
        assert [r.payload for r in read(tmp_path, bytes_max=100)] == [
            payload for one in large for payload in (one, b"small")
        ]


def test_streams_come_and_go(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        with pytest.raises(Invalid, match="a stream 'telemetry' exists already"):
            writing.create()
        with pytest.raises(UnknownStream):
            writing.log.delete("other")
        writing.put(b"old")
        epoch = writing.log.streams[NAME].epoch
        writing.append([Sent("t", "c", b"lost with its stream")])
        writing.log.delete(NAME)
        assert not (tmp_path / NAME).exists()
        writing.create()
        writing.commit()
        assert writing.writer.waiting_bytes == 0
        assert writing.log.streams[NAME].epoch != epoch
        assert payloads(tmp_path) == []
        writing.put(b"new")
    with Writing(tmp_path, writing.journal):
        assert payloads(tmp_path) == [b"new"]


def test_what_was_said_of_a_stream_that_was_deleted_is_not_for_the_next(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"1", b"2")
        old = dict(writing.journal)
        writing.log.delete(NAME)
        writing.create()
        writing.put(b"3")
        writing.writer.committed({name: ends.text() for name, ends in old.items()})
        assert payloads(tmp_path) == [b"3"]
    with Writing(tmp_path, old):  # the journal lost the rest, but readers have seen it
        assert payloads(tmp_path) == [b"3"]


def test_what_is_deleted_before_it_is_committed_has_no_ends(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.append([Sent("t", "c", b"1")])
        assert writing.write().keys() == {NAME}
        writing.log.delete(NAME)
        assert writing.write() == {}
        writing.create()
        assert writing.write() == {}


def test_settings_change_while_it_is_written_to(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(partitions=2)
        writing.log.change(NAME, partition_by="topic", segment_bytes=4096)
        writing.put(bytes(5_000), topic="x")
        writing.put(b"next", topic="x")
        with pytest.raises(Invalid):
            writing.log.change(NAME, partitions=3)
    with Writing(tmp_path) as writing:
        settings = writing.log.streams[NAME].settings
        assert (settings.partition_by, settings.partitions) == ("topic", 2)
        assert len(segments(tmp_path, 0)) + len(segments(tmp_path, 1)) == 2


def test_one_process_writes(tmp_path: Path) -> None:
    with Writing(tmp_path), pytest.raises(Locked, match=r"another process writes here \(pid \d+"):
        Log.open(tmp_path, report=print)
    Log.open(tmp_path, report=print).close()


def test_the_loop_and_the_store_at_the_same_time(tmp_path: Path) -> None:
    """A thread that writes and commits, one that reads, while this one appends."""
    with Writing(tmp_path) as writing:
        writing.create(partitions=3, segment_bytes=20_000)
        stream = writing.log.streams[NAME]
        writer = writing.writer
        numbers: list[int] = []
        is_over = threading.Event()
        news = threading.Semaphore(0)

        def store() -> None:
            while not is_over.is_set() or writer.waiting_bytes:
                news.acquire(timeout=0.1)
                writer.committed(writer.write(max(numbers, default=0)))
                writing.log.maintain(START_US)

        thread = threading.Thread(target=store)
        thread.start()
        for number in range(500):
            run = [b"%d" % (number * 4 + row) for row in range(4)]
            assert writer.append(stream, "t", f"dev{number % 10}", run, START_US + number) == 4
            writer.assign(number)
            numbers.append(number)
            news.release()
        is_over.set()
        thread.join()
        found = [int(r.payload) for partition in range(3) for r in read(tmp_path, partition)]
        assert sorted(found) == list(range(2_000))


def test_the_log_needs_no_arrow() -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from mqtt_broker.streams.read import reader, verify\n"
        "from mqtt_broker.streams.write import writer\n"
        "assert not any(name.startswith('sqlalchemy') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_process_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    """What it said was committed is there, whole, and one process may write again."""
    script = (
        "import pathlib, sys\n"
        "from tests.streams.logs import Writing\n"
        "writing = Writing(pathlib.Path(sys.argv[1]))\n"
        "writing.create(segment_bytes=20_000)\n"
        "for number in range(1 << 30):\n"
        "    writing.put(*[b'%d' % (number * 10 + row) + bytes(50) for row in range(10)])\n"
        "    sys.stdout.write(f'{number * 10 + 10}\\n'); sys.stdout.flush()\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(300):
            promised = int(process.stdout.readline())
        process.kill()
        for line in process.stdout:
            promised = int(line)
    with Writing(tmp_path) as writing:
        found = [int(record.payload[:-50]) for record in read(tmp_path)]
        assert found == list(range(len(found)))
        assert promised <= len(found) <= promised + 10
        writing.put(b"next")


def test_a_stream_named_twice_or_hidden(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Writing(tmp_path) as writing:
        with pytest.raises(Invalid, match="exists already, and is not a stream"):
            writing.log.create(StreamSettings("other"))
        writing.create()
    (tmp_path / NAME).rename(tmp_path / "moved")
    with pytest.raises(Invalid, match="it belongs to another stream, 'telemetry'"):
        Writing(tmp_path)


def test_a_stream_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    class Full(Disk):
        def replace(self, path: Path, data: bytes) -> None:
            raise OSError(ENOSPC, "No space left on device")

    root = tmp_path / "streams"
    with Writing(root) as writing:
        before = sorted(root.rglob("*"))
        deep: dict[str, Any] = {}
        for _ in range(900):
            deep = {"a": deep}
        with pytest.raises(Invalid, match="nested"):
            writing.create(schema=deep)
        assert sorted(root.rglob("*")) == before
    with Writing(root, disk=Full()) as writing:
        with pytest.raises(OSError, match="No space"):
            writing.create()
        assert sorted(root.rglob("*")) == before

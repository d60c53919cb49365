"""The writer of a topic: it takes what it admits, into every stream. Runs wait as they came."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Publish
from mqtt_broker.codec.properties import NO_PROPERTIES
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.topic_writer import TopicWriters
from mqtt_broker.streams.write.writer import LogWriter
from sessions.messages.message import Envelope
from tests.core.peers import publish
from tests.streams.logs import Writing, read


@pytest.mark.parametrize(("streams", "payloads"), [(1, 200), (200, 1), (20, 20)])
def test_what_is_admitted_is_taken_by_every_stream(
    tmp_path: Path, streams: int, payloads: int
) -> None:
    log = Log.open(tmp_path / "s", report=print)
    for number in range(streams):
        log.create(StreamSettings(f"s{number}", "t/#"))
    writer = LogWriter(log, 100_000)
    dropped: list[tuple[str, int]] = []
    writers = TopicWriters(writer, lambda reason, count: dropped.append((reason, count)))
    writers.set_streams(log.streams.values())
    topic_writer = writers.find("t/1")
    assert topic_writer is not None
    run = [bytes(1_000)] * payloads
    envelope = Envelope("t/1", 1, False, NO_PROPERTIES, b"", 1_000, "c", 0.0)
    assert topic_writer.admits(envelope, run)  # nothing waits, so it has to go through some time
    topic_writer.append(envelope, run, 0.0)
    assert dropped == []
    assert [stream.appended for stream in log.streams.values()] == [payloads] * streams
    assert not topic_writer.admits(envelope, run)
    log.close()


def test_publishers_are_held_back_before_their_qos_0_is_dropped(tmp_path: Path) -> None:
    """At half the room they are; what each has in hand then is still taken."""
    log = Log.open(tmp_path / "s", report=print)
    log.create(StreamSettings("all", "t/#"))
    writer = LogWriter(log, 100_000)
    dropped: list[tuple[str, int]] = []
    writers = TopicWriters(writer, lambda reason, count: dropped.append((reason, count)))
    writers.set_streams(log.streams.values())
    topic_writer = writers.find("t/1")
    assert topic_writer is not None
    envelope = Envelope("t/1", 0, False, NO_PROPERTIES, b"", 1_000, "c", 0.0)
    while not dropped:
        before = writer.waiting_bytes
        topic_writer.append(envelope, [bytes(1_000)], 0.0)
    assert dropped == [("stream_full", 1)]
    assert 75_000 < before < 80_000
    promised = Envelope("t/1", 1, False, NO_PROPERTIES, b"", 1_000, "c", 0.0)
    assert topic_writer.admits(promised, [bytes(1_000)])
    log.close()


STREAMS = {
    "client": StreamSettings("client", "t/#", partitions=3),
    "level": StreamSettings("level", "t/#", partitions=3, partition_by="level:2"),
    "turns": StreamSettings("turns", "t/#", partitions=3, partition_by="round-robin"),
    "times": StreamSettings("times", "t/#", event_time="json:$.ts ms"),
}


@pytest.mark.parametrize("v5", [False, True])
def test_a_run_of_qos_0_is_kept_like_its_payloads(tmp_path: Path, v5: bool) -> None:
    """Between runs of QoS 1, and cut at once only by the streams that look at payloads."""
    with Writing(tmp_path) as writing:
        for settings in STREAMS.values():
            writing.log.create(settings)
        writers = TopicWriters(writing.writer, lambda reason, count: pytest.fail(reason))
        writers.set_streams(writing.log.streams.values())
        wanted: list[tuple[str, str, int, bytes]] = []
        for number in range(30):
            topic, client = f"t/{number % 4}", f"c{number % 5}"
            topic_writer = writers.find(topic)
            assert topic_writer is not None
            payloads = [b'{"ts": 1%05d}' % (100 * number + row) for row in range(1 + number % 7)]
            envelope = Envelope(
                topic, number % 3 == 1, False, NO_PROPERTIES, b"", len(payloads[0]), client, 0.0
            )
            if envelope.qos:
                topic_writer.append(envelope, payloads, 1.0)
            else:
                topic_writer.append_run(envelope, run_of(topic, payloads, V5 if v5 else V311), 1.0)
            wanted += [(topic, client, envelope.qos, payload) for payload in payloads]
            if number == 20:
                writing.commit()
        writing.commit()
    for name, settings in STREAMS.items():
        found = [
            (record.topic, record.client_id, record.qos, record.payload)
            for partition in range(settings.partitions)
            for record in read(tmp_path, partition, name=name)
        ]
        assert sorted(found) == sorted(wanted)
        if settings.partitions == 1:
            assert found == wanted
    [first] = [r for r in read(tmp_path, name="times") if r.payload == b'{"ts": 100101}']
    assert first.event_us == 100_101_000


def test_a_run_that_is_too_much_is_cut_and_what_there_is_no_room_for_is_dropped(
    tmp_path: Path,
) -> None:
    dropped: list[int] = []
    with Writing(tmp_path) as writing:
        writing.create(filter="t/#")
        writer = LogWriter(writing.log, 6 << 20)
        writers = TopicWriters(writer, lambda reason, count: dropped.append(count))
        writers.set_streams(writing.log.streams.values())
        topic_writer = writers.find("t/1")
        assert topic_writer is not None
        payloads = [bytes(1 << 19)] * 9
        envelope = Envelope("t/1", 0, False, NO_PROPERTIES, b"", 1 << 19, "c", 0.0)
        for _ in range(2):
            topic_writer.append_run(envelope, run_of("t/1", payloads), 1.0)
        assert dropped == [9]
        writer.assign(1)
        writer.committed(writer.write(1))
        assert [record.payload for record in read(tmp_path)] == payloads


def run_of(topic: str, payloads: list[bytes], version: int = V5) -> Publish:
    """As the decoder gives it."""
    decoder = Decoder(version=version)
    data = b"".join(publish(topic, payload, version=version) for payload in payloads)
    [run] = decoder.feed(data)
    assert isinstance(run, Publish) and run.count == len(payloads)
    return run

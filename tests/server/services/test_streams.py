"""Streams of a real broker: what is configured, what is kept, what waits, what is refused."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.codec.constants import V311
from mqtt_broker.server.config.config import Config, StartError, load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.services import storage
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import Invalid, UnknownStream
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.core.peers import publish, subscribe
from tests.server.running import PATIENCE_S, Raw, Running

TELEMETRY = StreamSettings("telemetry", "t/#", partitions=2)


def config(data_dir: Path, *streams: StreamSettings, **options: Any) -> Config:
    return Config(streams=streams or (TELEMETRY,), data_dir=str(data_dir), **options)


def kept(data_dir: Path, name: str = "telemetry") -> list[Record]:
    found: list[Record] = []
    with Source.open(data_dir / "streams", name) as source:
        for number, start in enumerate(source.starts().ends):
            with Reader(source, number, start) as reader:
                while batches := reader.read():
                    found += [record for batch in batches for record in records(batch)]
    return found


def payloads(data_dir: Path, name: str = "telemetry") -> list[bytes]:
    return sorted(record.payload for record in kept(data_dir, name))


def send(client: Raw, numbers: Sequence[int], topic: str = "t/a", qos: int = 1) -> None:
    """Publish these numbers, and wait for their acknowledgements."""
    for n in numbers:
        client.send(publish(topic, b"%d" % n, qos=qos, packet_id=n + 1))
    for _ in numbers if qos else ():
        client.packet()


def rows(data_dir: Path, query: str) -> list[Any]:
    with sqlite3.connect(data_dir / "fleetmq.db") as connection:
        return connection.execute(query).fetchall()


def test_what_was_acknowledged_is_in_the_log_and_outlives_the_broker(tmp_path: Path) -> None:
    with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
        send(client, range(5))
        assert payloads(tmp_path) == [b"0", b"1", b"2", b"3", b"4"]
        send(client, [5], topic="u/a")
    with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
        send(client, range(5, 8))
    found = kept(tmp_path)
    assert [r.offset for r in found] == list(range(8))
    assert {(r.topic, r.client_id, r.qos) for r in found} == {("t/a", "p", 1)}
    assert rows(tmp_path, "SELECT name, filter FROM streams") == [("telemetry", "t/#")]


def test_a_burst_does_not_wait_for_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one entry, and enough; and what is answered shall come back before the next group."""
    monkeypatch.setattr(storage, "LINGER_S", 10 * PATIENCE_S)
    with Running(config=config(tmp_path)) as broker, broker.client("p", V311) as client:
        for _ in range(3):
            burst = [publish("t/a", b"x", qos=1, packet_id=n + 1, version=V311) for n in range(200)]
            client.send(b"".join(burst))
            for _ in burst:
                client.packet()
    assert len(payloads(tmp_path)) == 600


@pytest.mark.parametrize("durability", ["commit", "relaxed", "memory"])
def test_every_durability_keeps_streams(tmp_path: Path, durability: str) -> None:
    settings = config(tmp_path, durability=durability)
    with Running(config=settings) as broker, broker.client("p") as client:
        send(client, range(3))
        send(client, range(3, 6), qos=0)
    assert payloads(tmp_path) == [b"%d" % n for n in range(6)]


def test_qos_0_is_kept_without_anything_else_going_on(tmp_path: Path) -> None:
    with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
        send(client, range(3), qos=0)
        broker.wait_until(lambda: len(payloads(tmp_path)) == 3)


def test_a_message_goes_to_each_stream_whose_filter_matches(tmp_path: Path) -> None:
    streams = (
        StreamSettings("one", "t/#"),
        StreamSettings("two", "t/a"),
        StreamSettings("three", "u/#"),
    )
    with Running(config=config(tmp_path, *streams)) as broker, broker.client("p") as client:
        send(client, [1])
        send(client, [2], topic="t/b")
    assert [payloads(tmp_path, name) for name in ("one", "two", "three")] == [
        [b"1", b"2"],
        [b"1"],
        [],
    ]


class TestConfiguration:
    def test_what_changed_is_changed_and_the_rest_stays(self, tmp_path: Path) -> None:
        with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
            send(client, range(3))
        before = StreamSettings.read(tmp_path / "streams" / "telemetry")
        other = StreamSettings("telemetry", "u/#", partitions=2, retain_s=60)
        with Running(config=config(tmp_path, other)) as broker, broker.client("p") as client:
            send(client, [3])
            send(client, [4], topic="u/a")
        after = StreamSettings.read(tmp_path / "streams" / "telemetry")
        assert (after.epoch, after.filter, after.retain_s) == (before.epoch, "u/#", 60)
        assert payloads(tmp_path) == [b"0", b"1", b"2", b"4"]
        assert rows(tmp_path, "SELECT filter FROM streams") == [("u/#",)]

    def test_the_number_of_partitions_is_for_ever(self, tmp_path: Path) -> None:
        with Running(config=config(tmp_path)):
            pass
        other = StreamSettings("telemetry", "t/#", partitions=3)
        with pytest.raises(StartError, match=r"telemetry\.partitions: it has 2"):
            Running(config=config(tmp_path, other)).__enter__()
        with Running(config=config(tmp_path)):  # and nothing is locked
            pass

    def test_files_that_are_gone_are_made_anew_and_it_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
            send(client, range(3))
        shutil.rmtree(tmp_path / "streams" / "telemetry")
        with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
            send(client, [3])
        assert "the journal knows it, but its files are missing" in caplog.text
        assert payloads(tmp_path) == [b"3"]

    def test_a_tail_that_is_missing_stops_the_start_and_recover_goes_on(
        self, tmp_path: Path
    ) -> None:
        with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
            send(client, range(3))
        for path in (tmp_path / "streams" / "telemetry").glob("p*/*.seg"):
            path.write_bytes(b"")
        with pytest.raises(StartError, match=r"more was promised.*--recover"):
            Running(config=config(tmp_path)).__enter__()
        recovering = config(tmp_path, recover=True)
        with Running(config=recovering) as broker, broker.client("p") as client:
            send(client, [9])
        with Source.open(tmp_path / "streams", "telemetry") as source:
            assert sum(source.ends().ends) == 4

    def test_two_brokers_do_not_share_a_log(self, tmp_path: Path) -> None:
        one = config(tmp_path, database_url=f"sqlite:///{tmp_path}/one.db")
        two = config(tmp_path, database_url=f"sqlite:///{tmp_path}/two.db")
        with Running(config=one), pytest.raises(StartError, match="another process writes here"):
            Running(config=two).__enter__()

    @pytest.mark.parametrize(
        ("text", "words"),
        {
            "filter = 'a'": ("streams 1", "name is missing"),
            "name = 'a'": ("streams 1", "filter is missing"),
            "name = 'a'\nfilter = 'a/#/b'": ("filter", "#"),
            "name = 'a'\nfilter = '$SYS/#'": ("filter", "matches no topic"),
            "name = 'a/b'\nfilter = 'a'": ("name", "a/b"),
            "name = 'a'\nfilter = 'a'\npartitions = 0": ("partitions", "0"),
            "name = 'a'\nfilter = 'a'\npartitions = '4'": ("partitions", "a whole number"),
            "name = 'a'\nfilter = 'a'\nretain = '7 weeks'": ("retain", "7 weeks"),
            "name = 'a'\nfilter = 'a'\nmax_bytes = 1.5": ("max_bytes", "1.5"),
            "name = 'a'\nfilter = 'a'\npartition_by = 'luck'": ("partition_by", "luck"),
            "name = 'a'\nfilter = 'a'\nevent_time = 'json:x'": ("event_time", "expected"),
            "name = 'a'\nfilter = 'a'\nschema = 'none.json'": ("schema", "none.json", "No such"),
            "name = 'a'\nfilter = 'a'\nretention = '7d'": ("unknown key retention", "retain"),
            "name = 'a'\nfilter = 'a'\n[[streams]]\nname = 'a'\nfilter = 'b'": ("is used twice",),
        }.items(),
    )
    def test_a_mistake_is_named(self, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
        path = tmp_path / "f.toml"
        path.write_text(f"[[streams]]\n{text}\n")
        with pytest.raises(ConfigError) as caught:
            load(str(path), {}, {})
        for word in words:
            assert word in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_all_keys(self, tmp_path: Path) -> None:
        (tmp_path / "s.json").write_text('{"type": "object"}')
        path = tmp_path / "f.toml"
        path.write_text(
            "[[streams]]\nname = 'a'\nfilter = 'a/+'\npartitions = 4\npartition_by = 'level:2'\n"
            "retain = '7d'\nmax_bytes = '10GB'\ncompact = true\ntombstone = 60\nsegment = '1h'\n"
            "segment_bytes = '1MiB'\nevent_time = 'json:$.at'\nsent_time = 'property:sent'\n"
            "schema = 's.json'\n"
        )
        assert load(str(path), {}, {}).streams == (
            StreamSettings(
                "a", "a/+", 4, "level:2", 7 * 86_400, 10**10, True, 60, 1 << 20, 3_600,
                "json:$.at", "property:sent", {"type": "object"},
            ),
        )  # fmt: skip


class TestChanges:
    """What operators do while the broker runs."""

    def test_a_stream_takes_from_when_it_is_made_until_it_is_deleted(self, tmp_path: Path) -> None:
        with Running(config=config(tmp_path, StreamSettings("other", "o"))) as broker:
            streams = broker.server.streams
            assert streams is not None
            with broker.client("p") as client:
                send(client, [0])  # and its route is cached
                streams.create(TELEMETRY).result(PATIENCE_S)
                send(client, [1])
                assert payloads(tmp_path) == [b"1"]
                streams.change("telemetry", {"filter": "u/#"}).result(PATIENCE_S)
                send(client, [2])
                send(client, [3], topic="u/a")
                assert payloads(tmp_path) == [b"1", b"3"]
                streams.delete("telemetry").result(PATIENCE_S)
                send(client, [4], topic="u/a")
                assert not (tmp_path / "streams" / "telemetry").exists()
                streams.create(TELEMETRY).result(PATIENCE_S)
                send(client, [5])
                assert payloads(tmp_path) == [b"5"]
        assert rows(tmp_path, "SELECT name FROM streams ORDER BY name") == [
            ("other",),
            ("telemetry",),
        ]
        again = config(tmp_path, StreamSettings("other", "o"))
        with Running(config=again) as broker, broker.client("p") as client:
            send(client, [6])
        assert payloads(tmp_path) == [b"5", b"6"]

    def test_the_log_takes_part_in_commits_from_the_first_stream_on(self, tmp_path: Path) -> None:
        with Running(config=Config(data_dir=str(tmp_path))) as broker:
            found = broker.server.storage
            assert found is not None
            journal, writer = found.journal, found.streams.writer
            assert journal.participant is not writer
            with broker.client("device") as device:
                send(device, [0])
                found.streams.create(TELEMETRY).result(PATIENCE_S)
                assert journal.participant is writer
                send(device, [1])
        assert payloads(tmp_path) == [b"1"]

    def test_mistakes_are_told(self, tmp_path: Path) -> None:
        with Running(config=config(tmp_path)) as broker:
            streams = broker.server.streams
            assert streams is not None
            with pytest.raises(Invalid, match="already"):
                streams.create(TELEMETRY).result(PATIENCE_S)
            with pytest.raises(UnknownStream):
                streams.delete("nothing").result(PATIENCE_S)
            with pytest.raises(Invalid, match="partitions"):
                streams.change("telemetry", {"partitions": 7}).result(PATIENCE_S)

    def test_what_is_truncated_is_gone_and_offsets_go_on(self, tmp_path: Path) -> None:
        with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
            streams = broker.server.streams
            assert streams is not None
            send(client, range(3))
            assert streams.trim("telemetry", None).result(PATIENCE_S) == 1
            send(client, [3])
            assert [(r.offset, r.payload) for r in kept(tmp_path)] == [(3, b"3")]


class FullDisk:
    """Stands in for the disk's write call until it is told that there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.attempts = 0
        write = Disk.write

        def maybe(disk: Disk, file: int, buffers: Any, at: int) -> None:
            if self.is_full:
                self.attempts += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            write(disk, file, buffers, at)

        monkeypatch.setattr(Disk, "write", maybe)


def test_a_full_disk_stops_acknowledgements_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    with Running(config=config(tmp_path)) as broker, broker.client("s") as subscriber:
        subscriber.send(subscribe(5, "t/#"))
        subscriber.packet()
        with broker.client("p") as client, broker.client("q") as other:
            send(client, [0])
            subscriber.packet()
            disk.is_full = True
            client.send(publish("t/a", b"1", qos=1, packet_id=2))
            assert subscriber.packet()[-1:] == b"1"  # live delivery goes on
            broker.wait_until(lambda: broker.server.broker.backpressure.store_state != "")
            assert broker.server.broker.backpressure.store_state == "telemetry log: disk full"
            send(other, [2], qos=0)
            assert subscriber.packet()[-1:] == b"2"
            client.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.packet()
            disk.is_full = False
            client.sock.settimeout(PATIENCE_S)
            assert client.packet()[0] == 0x40
            broker.wait_until(lambda: broker.server.broker.backpressure.store_state == "")
    assert disk.attempts > 0
    assert payloads(tmp_path) == [b"0", b"1", b"2"]


def test_dead_letters_have_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("dead_letters = 'all'\n")
    (stream,) = load(str(path), {}, {}).streams
    assert (stream.name, stream.filter, stream.retain_s) == ("dlq", "$dlq/#", 604_800)
    settings = config(tmp_path, stream)
    with Running(config=settings, dead_letters="all", queue_messages_max=1) as broker:
        with broker.client("away", clean=False, expiry=100) as away:
            away.send(subscribe(5, "u/#", qos=1))
            away.packet()
        broker.wait_until(lambda: not broker.server.broker.connections)
        with broker.client("p") as client:
            send(client, [0, 1], topic="u/a")
    assert [(r.topic, r.payload) for r in kept(tmp_path, "dlq")] == [("$dlq/queue_full/u/a", b"0")]


SCHEMA: Final = {
    "type": "object",
    "required": ["device"],
    "properties": {"device": {"type": "string"}, "t": {"type": "number"}},
}


class TestSchemas:
    def load(self, tmp_path: Path, mode: str, text: str = "") -> Config:
        (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
        path = tmp_path / "f.toml"
        path.write_text(f"[[schemas]]\nfilter = 't/#'\nfile = 's.json'\nmode = '{mode}'\n{text}")
        return load(str(path), {"FLEETMQ_DATA_DIR": str(tmp_path)}, {})

    def test_reject_says_why(self, tmp_path: Path) -> None:
        stream = "[[streams]]\nname = 'telemetry'\nfilter = 't/#'\n"
        settings = self.load(tmp_path, "reject", stream)
        with Running(config=settings) as broker, broker.client("p") as client:
            for packet_id, payload in ((1, b'{"device":"a","t":1}'), (2, b'{"device":7}')):
                client.send(publish("t/a", payload, qos=1, packet_id=packet_id))
            assert client.packet()[4:] == b"\x10"
            answer = client.packet()
            assert answer[4] == 0x99
            assert b"payload['device']: 7 is not of type" in answer
        assert payloads(tmp_path) == [b'{"device":"a","t":1}']
        assert StreamSettings.read(tmp_path / "streams" / "telemetry").schema == SCHEMA

    def test_warn_lets_it_through(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        settings = self.load(tmp_path, "warn")
        with Running(config=settings) as broker, broker.client("p") as client:
            client.send(publish("t/a", b"nonsense", qos=1, packet_id=1))
            assert client.packet()[4:] == b"\x10"
        assert "schema t/#: the payload is not JSON" in caplog.text

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ('{"type": "objectt"}', ("schemas 1", "s.json", "objectt")),
            ('{"$ref": "http://127.0.0.1:1/x.json"}', ("nothing is fetched",)),
            ("[]", ("not a JSON object",)),
            ("{", ("not JSON",)),
        ],
    )
    def test_a_schema_that_is_wrong(
        self, tmp_path: Path, schema: str, words: tuple[str, ...]
    ) -> None:
        (tmp_path / "s.json").write_text(schema)
        path = tmp_path / "f.toml"
        path.write_text("[[schemas]]\nfilter = 't/#'\nfile = 's.json'\n")
        with pytest.raises(ConfigError) as caught:
            load(str(path), {}, {})
        for word in words:
            assert word in str(caught.value)


def test_the_ends_of_the_log_are_in_the_journal(tmp_path: Path) -> None:
    with Running(config=config(tmp_path)) as broker, broker.client("p") as client:
        send(client, range(3))
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        found = dict(connection.execute("SELECT name, ends FROM stream_ends"))
    assert sum(Offsets.decode(found["telemetry"]).ends) == 3

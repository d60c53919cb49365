"""The telemetry log and the journal together, through crashes between the two.

What belongs to a group that is in the journal stands in the log once and in order; of QoS 2 that
belongs to another group there is nothing. Groups of QoS 0 and 1 alone are safe with the log.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from sessions.store import worker, writer
from sessions.store.store import Store
from tests.sessions.store.log_files import EMPTY
from tests.sessions.store.places import PATIENCE_S, Place, Watch

STREAMS = {"telemetry": 2, "other": 1}
LIVES = 6


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RETRY_S", 0.001)
    monkeypatch.setattr(worker, "RETRY_S_MAX", 0.01)


class Broker:
    """One life: what is published in it, and how it ends."""

    def __init__(
        self, place: Place, root: Path, rng: random.Random, *, segment_bytes: int = 4096
    ) -> None:
        self.rng = rng
        self.store = place.open()
        self.snapshot = self.store.snapshot()
        ends = {name: Offsets.decode(text) for name, text in self.snapshot.stream_ends.items()}
        self.log = Log.open(root, ends, report=lambda line: None)
        for name, partitions in STREAMS.items():
            if name not in self.log.streams:
                self.log.create(
                    StreamSettings(name, partitions=partitions, segment_bytes=segment_bytes)
                )
        self.partitions = [one for stream in self.log.streams.values() for one in stream.partitions]
        # Times here are the numbers of groups.
        self.writer = LogWriter(self.log, clock_us=lambda: self.watch.number)
        self.watch = Watch(self.store, self.writer)

    def publish(
        self, published: dict[int, list[tuple[str, str, bytes]]], qos: int, least: int = 0
    ) -> None:
        """One group's."""
        number = self.watch.number + 1
        group = published[number] = []
        for _ in range(self.rng.randint(least, 3)):
            name, client = self.rng.choice(list(STREAMS)), self.rng.choice("abc")
            payloads = [b"%d/%d" % (number, self.rng.getrandbits(60)) for _ in range(3)]
            stream = self.log.stream(name)
            taken = self.writer.append(stream, "t", client, payloads, number, qos=qos)
            assert taken == 3
            group += [(name, client, payload) for payload in payloads]
        self.writer.assign(number)
        self.watch.submit(EMPTY)

    def die(self) -> None:
        self.store.abandon()
        self.log.close()


def test_what_is_in_the_log_is_what_the_journal_has(place: Place, tmp_path: Path) -> None:
    rng = random.Random(5)
    root = tmp_path / "streams"
    published: dict[int, list[tuple[str, str, bytes]]] = {}
    cut = 0
    for life in range(LIVES):
        broker = Broker(place, root, rng)
        number = broker.snapshot.last_number
        cut += sum(map(len, (group for at, group in published.items() if at > number)))
        published = {at: group for at, group in published.items() if at <= number}
        check(root, published)
        for _ in range(rng.randint(1, 8)):
            broker.publish(published, 2)
        broker.watch.until_committed()
        safe = broker.watch.number
        check(root, published)
        with _no_commits(broker.store, life):
            for _ in range(rng.randint(1, 8)):
                broker.publish(published, 2, least=1)  # an empty group needs no journal
            broker.watch.until_state("journal: ")
            broker.die()
        assert broker.watch.committed[-1] == safe
    assert cut > 0


@pytest.fixture
def owing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal hears of what stands alone only when it has to."""
    monkeypatch.setattr(writer, "UNRECORDED_S", 3600.0)
    monkeypatch.setattr(writer, "IDLE_S", 3600.0)


@pytest.mark.usefixtures("owing")
def test_what_stands_alone_is_there_whatever_the_journal_knows(
    place: Place, tmp_path: Path
) -> None:
    rng = random.Random(7)
    root = tmp_path / "streams"
    safe: dict[int, list[tuple[str, str, bytes]]] = {}
    for life in range(LIVES):
        broker = Broker(place, root, rng, segment_bytes=1 << 20)
        check(root, safe)
        with _no_commits(broker.store, life):
            published: dict[int, list[tuple[str, str, bytes]]] = {}
            for _ in range(rng.randint(1, 8)):
                broker.publish(published, rng.randint(0, 1))
            broker.watch.until_committed()
            safe |= {1_000 * life + number: group for number, group in published.items()}
            check(root, safe)
            if life % 3:  # QoS 2 needs the journal, and what comes behind it with it
                for qos in (2, 1):  # one of QoS 1 before them may be safe alone, or may not
                    broker.publish({}, qos, least=1)
                broker.writer.append(broker.log.stream("other"), "t", "a", [b""], 1, qos=2)
                broker.writer.assign(broker.watch.number + 1)
                broker.watch.submit(EMPTY)
                broker.watch.until_state("journal: ")
                broker.die()
        if not life % 3:
            assert broker.store.stop(PATIENCE_S)  # the journal hears of all that it missed
            broker.log.close()
            assert broker.store.commits > 1


@pytest.mark.usefixtures("owing")
def test_a_segment_is_sealed_when_the_journal_knows_all_in_it(place: Place, tmp_path: Path) -> None:
    rng = random.Random(8)
    root = tmp_path / "streams"
    safe: dict[int, list[tuple[str, str, bytes]]] = {}
    for life in range(LIVES):
        broker = Broker(place, root, rng)
        check(root, safe)
        published: dict[int, list[tuple[str, str, bytes]]] = {}
        for _ in range(20):
            broker.publish(published, 1)
            broker.watch.until_committed()
        safe |= {1_000 * life + number: group for number, group in published.items()}
        broker.die()
    assert any(len(one.catalog) for one in broker.partitions)


class _no_commits:
    """The log is written, the journal is not."""

    def __init__(self, store: Store, life: int) -> None:
        self._engine: Engine = store.database.journal
        self._life = life

    def _fail(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INTO journal" in statement:
            raise RuntimeError(f"no room in life {self._life}")

    def __enter__(self) -> None:
        event.listen(self._engine, "before_cursor_execute", self._fail)

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._fail)


def check(root: Path, published: dict[int, list[tuple[str, str, bytes]]]) -> None:
    """By client, since order holds within a partition."""
    wanted: dict[tuple[str, str], list[bytes]] = {}
    for _, group in sorted(published.items()):
        for name, client, payload in group:
            wanted.setdefault((name, client), []).append(payload)
    found: dict[tuple[str, str], list[bytes]] = {}
    for name, partitions in STREAMS.items():
        with Source.open(root, name) as source:
            for partition in range(partitions):
                with Reader(source, partition, 0) as reader:
                    while batches := reader.read():
                        for batch in batches:
                            for one in records(batch):
                                found.setdefault((name, one.client_id), []).append(one.payload)
    assert found == wanted

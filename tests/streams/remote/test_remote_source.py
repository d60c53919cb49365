"""Streams read over HTTP: what files give and raise, and what connections do in between."""

from __future__ import annotations

import dataclasses
import pickle
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format import errors
from mqtt_broker.streams.format.batch import NEVER, Batch
from mqtt_broker.streams.format.errors import (
    CorruptBatch,
    Damaged,
    EndBeforeStart,
    Invalid,
    MissingSegment,
    OffsetAhead,
    OffsetGone,
    StreamError,
    StreamGone,
    UnknownPartition,
    UnknownStream,
    WrongEpoch,
)
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.remote.http_client import NotAllowed, Unreachable
from mqtt_broker.streams.remote.http_protocol import decode_error, encode_error
from mqtt_broker.streams.remote.remote_source import (
    RemoteReader,
    RemoteSource,
    known_settings,
    list_streams,
    open_reader,
    open_source,
)
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME, START_US, Sent, segments
from tests.streams.remotes import PATIENCE_S, TOKEN, drain, fill, opened


def outcome(work: Callable[..., object], *args: object) -> object:
    """What it gives, or what it raises, field by field."""
    try:
        return work(*args)
    except StreamError as error:
        return type(error), str(error), vars(error)


# The same as files.


def test_it_finds_what_files_have(broker: LogBroker, http: Serving) -> None:
    broker.create(
        3, filter="fleet/#", partition_by="topic", schema={"type": "object", "title": "ü"}
    )
    fill(broker, 20)
    with opened(http) as remote, Source.open(broker.root, NAME) as local:
        assert (remote.name, remote.epoch) == (local.name, local.epoch)
        assert remote.settings == local.settings
        assert (remote.starts(), remote.ends()) == (local.starts(), local.ends())
        assert remote.end(0) == local.end(0)
        for text in ("earliest", "latest", "2023-11-14T22:13:30Z", "2023-11-14T22:13:30.5", "1980",
                     "soon", "", "{}", '{"p0": 3, "p1": 0, "p2": 0}', "[]", '{"p9": 1}',
                     '{"p0": -1, "p1": 0, "p2": 0}', '{"p0": 999999, "p1": 0, "p2": 0}',
                     '{"epoch": "of another", "p0": 3, "p1": 0, "p2": 0}', "x" * 200,
                     "ü\n"):  # fmt: skip
            assert outcome(remote.resolve, text) == outcome(local.resolve, text), text
        for at_us in (-5, 0, START_US, START_US + 7_500_000, START_US * 2, 1 << 62):
            assert remote.at_time(at_us) == local.at_time(at_us), at_us
        assert outcome(remote.partition, 3) == outcome(local.partition, 3)
        assert remote.partition(1).files.seed == local.partition(1).files.seed
    assert list_streams(http.url, TOKEN) == list_streams(str(broker.root)) == [NAME]


@pytest.mark.parametrize("bytes_max", [1, 3_000, 1 << 20])
def test_it_reads_what_files_have(broker: LogBroker, http: Serving, bytes_max: int) -> None:
    broker.create(2, segment_bytes=8 << 10)
    for client in "abcdefgh":
        broker.put_all([Sent("t", client, b"%d" % n) for n in range(50)])
    fill(broker, 30)
    with opened(http) as remote, Source.open(broker.root, NAME) as local:
        for partition in (0, 1):
            end = local.end(partition)
            for start, until in (
                (0, NEVER),
                (0, end),
                (7, end - 3),
                (end, end),
                (5, 5),
                (end, NEVER),
            ):
                with (
                    RemoteReader(remote, partition, start, until) as there,
                    Reader(local, partition, start, until) as here,
                ):
                    assert there.lag() == here.lag()
                    assert drain(there, bytes_max) == drain(here)
                    assert there.offset == here.offset
                    assert there.lag() == 0


def test_rows_outside_of_what_was_asked_for_are_marked(broker: LogBroker, http: Serving) -> None:
    broker.create()
    broker.put(*[b"%d" % n for n in range(10)])
    with opened(http) as source, RemoteReader(source, 0, 3, 7) as reader:
        (batch,) = reader.read()
        assert isinstance(batch, Batch)
        assert (batch.base, batch.end, batch.start, batch.until) == (0, 10, 3, 7)
        assert [record.offset for record in records(batch)] == [3, 4, 5, 6]
        assert reader.read() == []


def test_it_goes_on_where_files_grow(broker: LogBroker, http: Serving) -> None:
    broker.create(segment_bytes=4 << 10)
    with opened(http) as source, RemoteReader(source, 0, 0) as reader:
        for round_ in range(20):
            assert reader.read() == []
            sent = fill(broker, 3, rows=5)
            assert [record.payload for record in drain(reader)] == sent, round_


def test_waiting_ends_when_something_is_there(broker: LogBroker, http: Serving) -> None:
    broker.create()
    with opened(http) as source, RemoteReader(source, 0, 0) as reader:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reader.read, 1 << 20, 30.0)
            assert not waiting.done()
            broker.put(b"new")
            (batch,) = waiting.result(PATIENCE_S)
        assert batch.payloads() == [b"new"]
        start = time.monotonic()
        assert reader.read(wait_s=0.1) == []
        assert time.monotonic() - start >= 0.1


def test_errors_are_those_of_files(broker: LogBroker, http: Serving) -> None:
    broker.create(segment_bytes=4 << 10)
    fill(broker, 20)
    broker.stream_truncate(NAME, None).result(PATIENCE_S)
    fill(broker, 1)
    with opened(http) as remote, Source.open(broker.root, NAME) as local:
        end = local.end(0)
        for partition, start, until in (
            (0, 0, NEVER), (0, end + 1, NEVER), (0, 5, 3), (0, end, end - 1), (1, 0, NEVER),
            (-1, 0, 5),
        ):  # fmt: skip
            there = outcome(RemoteReader, remote, partition, start, until)
            here = outcome(Reader, local, partition, start, until)
            assert there == here, (partition, start, until)
            assert isinstance(there, tuple)
    for name in ("nothing", "../x", ""):
        there = outcome(RemoteSource, http.url, name, TOKEN)
        assert there == outcome(Source.open, broker.root, name)


def test_another_life_of_a_stream_is_not_read_on(broker: LogBroker, http: Serving) -> None:
    broker.create()
    fill(broker, 5)
    with opened(http) as source, RemoteReader(source, 0, 0) as reader:
        assert reader.read()
        broker.stream_delete(NAME).result(PATIENCE_S)
        for ask in (reader.read, source.ends, source.starts, lambda: RemoteReader(source, 0, 0)):
            with pytest.raises(StreamGone):
                ask()
        broker.create()
        fill(broker, 9)
        for ask in (reader.read, source.ends, source.starts, lambda: RemoteReader(source, 0, 0)):
            with pytest.raises(WrongEpoch) as caught:
                ask()
            assert caught.value.given == source.epoch


def test_a_stream_that_is_deleted_ends_the_wait(broker: LogBroker, http: Serving) -> None:
    broker.create()
    with (
        opened(http) as source,
        RemoteReader(source, 0, 0) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(reader.read, 1 << 20, 30.0)
        broker.stream_delete(NAME).result(PATIENCE_S)
        with pytest.raises(StreamGone):
            waiting.result(PATIENCE_S)


# Damage.


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 0xFF]))


def both(
    broker: LogBroker, http: Serving, bytes_max: int = 1 << 20
) -> list[tuple[list[int], list[Any]]]:
    """What is read past damage, and the damage: by files and by HTTP."""
    found = []
    for source in (Source.open(broker.root, NAME), opened(http)):
        damage: list[Damaged] = []
        with source, open_reader(source, 0, 0, on_damage=damage.append) as reader:
            offsets = [record.offset for record in drain(reader, bytes_max)]
        found.append((offsets, [(type(one), str(one), vars(one)) for one in damage]))
    return found


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
@pytest.mark.parametrize("at", [10, 100], ids=["header", "body"])
@pytest.mark.parametrize("batch", [0, 7, 19])
def test_damage_is_told_as_it_is(
    broker: LogBroker, http: Serving, batch: int, at: int, bytes_max: int
) -> None:
    broker.create()
    fill(broker, 20)
    size = segments(broker.root)[0].stat().st_size // 20
    flip(segments(broker.root)[0], batch * size + at)
    with opened(http) as source, RemoteReader(source, 0, 0) as reader:
        for _ in range(2):  # again and again
            with pytest.raises(CorruptBatch) as caught:
                drain(reader, bytes_max)
            assert caught.value.offset == batch * 10
    here, there = both(broker, http, bytes_max)
    assert here == there
    assert len(there[0]) == 190


def test_a_missing_segment_is_told_as_it_is(broker: LogBroker, http: Serving) -> None:
    broker.create(segment_bytes=4 << 10)
    fill(broker, 20)
    segments(broker.root)[1].unlink()
    with (
        opened(http) as source,
        RemoteReader(source, 0, 0) as reader,
        pytest.raises(MissingSegment),
    ):
        drain(reader)
    here, there = both(broker, http)
    assert here == there


@pytest.mark.parametrize("seed", range(10))
def test_random_damage(broker: LogBroker, http: Serving, seed: int) -> None:
    broker.create(segment_bytes=8 << 10)
    fill(broker, 60)
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 6)):
        path = chance.choice(segments(broker.root))
        flip(path, chance.randrange(path.stat().st_size))
    here, there = both(broker, http, chance.choice((1, 5_000, 1 << 20)))
    assert here == there


def test_errors_travel_whole() -> None:
    made: list[StreamError] = [
        Invalid("offsets", "because"),
        errors.UnreadableFile("committed", "because"),
        errors.Locked("/x", "17"),
        UnknownStream("s"),
        StreamGone("s"),
        UnknownPartition("s", "p9", 4),
        WrongEpoch("s", "a", "b"),
        OffsetGone("s", 1, 2, 3),
        OffsetAhead("s", 1, 5, 3),
        EndBeforeStart("s", 1, 5, 3),
        Damaged("s", 1, 2, -1, "why"),
        CorruptBatch("s", 1, 2, 3, "x.seg", 4, "why"),
        MissingSegment("s", 1, 2, 3, "x.seg"),
        errors.LostTail("s", 1, 2, 3),
        errors.JournalBehind("s", 1, 2, 3),
        StreamError("of its own"),
    ]
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {type(error) for error in made} == {k for k in kinds if issubclass(k, StreamError)}
    for error in made:
        found = decode_error(encode_error(error))
        assert found is not None
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"error": "SystemExit", "text": "x"},
        {"error": "OffsetGone"},
        {"error": "OffsetGone", "text": 5},
        {"error": "OffsetGone", "text": "x", "stream": ["a"]},
        {"error": ["OffsetGone"], "text": "x"},
    ],
)
def test_what_is_no_error_of_ours_is_none(found: dict[str, Any]) -> None:
    assert decode_error(found) is None


# Who may ask, and whom.


def test_the_token_is_wanted_and_never_told(broker: LogBroker, http: Serving) -> None:
    broker.create()
    for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1]):
        with pytest.raises(NotAllowed) as caught:
            RemoteSource(http.url, NAME, token)
        assert str(caught.value) == f"{http.url}: the token is missing or wrong"
    with pytest.raises(Invalid, match=r"^token: ") as wrong:
        RemoteSource(http.url, NAME, "two\r\nlines")
    assert "lines" not in str(wrong.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/", "is invalid: expected http://host:port"),
        ("host:80", "is invalid: expected http://host:port"),
        ("http://", "is invalid: expected http://host:port"),
        ("http://host:99999", "has an invalid port"),
        ("http://host:x", "has an invalid port"),
        ("http://me:hush@host", "has more than a host"),
        ("http://host/?a=b", "has more than a host"),
    ],
)
def test_an_address_that_is_none(url: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        RemoteSource(url, NAME)
    assert says in str(caught.value)
    assert "hush" not in str(caught.value)


def test_nobody_there_is_told_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(Unreachable, match="Connection refused"):
            RemoteSource(url, NAME)


def test_a_directory_and_a_url_are_opened_the_same_way(broker: LogBroker, http: Serving) -> None:
    broker.create()
    sent = fill(broker, 3)
    for where in (str(broker.root), str(broker.root.parent), http.url, http.url + "/"):
        with open_source(where, NAME, TOKEN) as source, open_reader(source, 0, 0) as reader:
            assert [record.payload for record in drain(reader)] == sent
    with pytest.raises(UnknownStream):
        open_source(str(broker.root.parent.parent), NAME)


def test_a_source_travels_to_another_process(broker: LogBroker, http: Serving) -> None:
    broker.create(2)
    sent = fill(broker, 3)
    with opened(http) as source:
        source.ends()
        there = pickle.loads(pickle.dumps(source))
    with there:
        assert there.settings == source.settings
        found = []
        for partition in (0, 1):
            with RemoteReader(there, partition, 0) as reader:
                found += [record.payload for record in drain(reader)]
    assert sorted(found) == sorted(sent)


def test_settings_of_a_newer_broker_are_understood(broker: LogBroker, http: Serving) -> None:
    broker.create()
    with opened(http) as source:
        known = {field.name for field in dataclasses.fields(source.settings)}
    assert set(known_settings({**dict.fromkeys(known, 1), "colour": 1})) == known

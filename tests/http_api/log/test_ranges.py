"""The range endpoint: its contract byte by byte, and what happens to files while they are sent."""

from __future__ import annotations

import http.client
import json
import random
import socket
import string
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from mqtt_broker.http_api.request.access import VIEWER, ApiToken, Credentials, digest_of
from mqtt_broker.streams.format.batch import seed_of, split
from mqtt_broker.streams.format.errors import StreamGone
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource
from tests.http_api.brokers import PATIENCE_S, LogBroker, Serving
from tests.streams.logs import NAME, put_many, segments

P: str = f"/streams/{NAME}/p0"


@pytest.fixture
def broker(root: Path) -> Iterator[LogBroker]:  # one partition: all that is put is in p0
    broker = LogBroker(root)
    broker.create(segment_bytes=16 << 10)
    yield broker
    broker.close()


def fill(broker: LogBroker, batches: int, rows: int = 10, size: int = 100) -> None:
    broker.do(lambda: put_many(broker.writing, batches, rows, size))


def epoch_of(broker: LogBroker) -> str:
    return broker.do(lambda: broker.writing.log.stream(NAME).epoch)


def test_whole_batches_as_they_lie_in_the_file(broker: LogBroker, http: Serving) -> None:
    fill(broker, 10)
    path = segments(broker.root)[0]
    found = http.get(f"{P}?offset=0")
    assert found.status == 200
    assert found.body == path.read_bytes()
    size = len(found.body) // 10
    assert found.headers["Content-Type"] == "application/vnd.fleetmq.batches"
    assert found.headers["Server"] == "FleetMQ"
    assert found.headers["FleetMQ-Epoch"] == epoch_of(broker)
    assert found.headers["FleetMQ-Segment"] == path.name
    names = ("Base", "Start", "End", "Earliest", "Latest", "Position")
    assert [found.number(f"FleetMQ-{name}") for name in names] == [0, 0, 100, 0, 100, 0]
    headers = split(found.body, seed_of(epoch_of(broker), 0))
    assert [(one.base, one.end) for one in headers] == [(n, n + 10) for n in range(0, 100, 10)]

    found = http.get(f"{P}?offset=37&until=52")  # batches are not cut
    assert [found.number(f"FleetMQ-{name}") for name in names] == [30, 37, 60, 0, 100, 3 * size]
    found = http.get(f"{P}?offset=37&max_bytes=1")  # and there is one at least
    assert [found.number(f"FleetMQ-{name}") for name in names] == [30, 37, 40, 0, 100, 3 * size]
    found = http.get(f"{P}?offset=30&max_bytes={size * 2}")
    assert found.number("FleetMQ-End") == 50


def test_the_end(broker: LogBroker, http: Serving) -> None:
    for offset, query in ((0, ""), (0, "&wait_s=0.05"), (0, "&until=0"), (0, "&until=0&wait_s=30")):
        found = http.get(f"{P}?offset={offset}{query}")
        assert (found.status, found.body) == (204, b"")
        assert found.number("FleetMQ-End") == offset
        assert found.headers["FleetMQ-Epoch"] == epoch_of(broker)
        assert found.headers["FleetMQ-Base"] is None
    fill(broker, 1)
    found = http.get(f"{P}?offset=10")
    assert (found.status, found.number("FleetMQ-Latest")) == (204, 10)


def test_what_head_says_is_what_get_sends(broker: LogBroker, http: Serving) -> None:
    fill(broker, 3)
    near = http.connect()
    for path in (f"{P}?offset=0", f"{P}?offset=30", f"{P}?offset=99", "/streams", "/healthz",
                 f"/streams/{NAME}", f"/streams/{NAME}/offsets", "/metrics",
                 "/nothing"):  # fmt: skip
        head, get = http.ask("HEAD", path, over=near), http.get(path, over=near)
        assert (head.status, head.body) == (get.status, b"")
        if path == "/metrics":  # whose figures change between the two
            assert int(head.headers["Content-Length"] or 0) > 1_000
        else:
            assert head.headers["Content-Length"] == get.headers["Content-Length"]
        assert head.headers["FleetMQ-End"] == get.headers["FleetMQ-End"]
    near.close()


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        (f"{P}?offset=5", 410, "OffsetGone"),
        (f"{P}?offset=9999", 416, "OffsetAhead"),
        (f"{P}?offset=9999&wait_s=30", 416, "OffsetAhead"),
        (f"{P}?offset=9&until=5", 400, "EndBeforeStart"),
        (f"{P}?offset=400&epoch=other", 409, "WrongEpoch"),
        (f"/streams/{NAME}?epoch=other", 409, "WrongEpoch"),
        (f"/streams/{NAME}/offsets?epoch=other", 409, "WrongEpoch"),
        (f"/streams/{NAME}/describe?epoch=other", 409, "WrongEpoch"),
        (f"/streams/{NAME}/p1?offset=0", 404, "UnknownPartition"),
        (f"/streams/{NAME}/p00?offset=0", 404, "UnknownPartition"),
        (f"/streams/{NAME}/p99999999999999999999?offset=0", 404, "UnknownPartition"),
        (f"/streams/{NAME}/q0?offset=0", 404, "NotFound"),
        ("/streams/other/p0?offset=0", 404, "UnknownStream"),
        ("/streams/other", 404, "UnknownStream"),
        ("/streams/%2e%2e/p0?offset=0", 400, "Invalid"),
        ("/streams/..%2f..%2fetc/p0?offset=0", 400, "Invalid"),
        ("/streams/%00/p0?offset=0", 400, "Invalid"),
        ("/streams/x.new/p0?offset=0", 400, "Invalid"),
        (f"{P}", 400, "BadRequest"),
        (f"{P}?offset=", 400, "BadRequest"),
        (f"{P}?offset=-1", 400, "BadRequest"),
        (f"{P}?offset=1.0", 400, "BadRequest"),
        (f"{P}?offset=+1", 400, "BadRequest"),
        (f"{P}?offset=%D9%A1", 400, "BadRequest"),  # a digit, but not one of ours
        (f"{P}?offset=99999999999999999999", 400, "BadRequest"),
        (f"{P}?offset=9223372036854775808", 400, "BadRequest"),
        (f"{P}?offset=400&offset=400", 400, "BadRequest"),
        (f"{P}?offset=400&colour=red", 400, "BadRequest"),
        (f"{P}?offset=400&wait_s=31", 400, "BadRequest"),
        (f"{P}?offset=400&wait_s=nan", 400, "BadRequest"),
        (f"{P}?offset=400&wait_s=-1", 400, "BadRequest"),
        (f"{P}?offset=400&wait_s=1e1", 400, "BadRequest"),
        (f"{P}?offset=400&max_bytes=-1", 400, "BadRequest"),
        (f"/streams/{NAME}/offsets?at=soon", 400, "Invalid"),
        (f"/streams/{NAME}/offsets?at=%7B%22p0%22%3A5%7D", 410, "OffsetGone"),
        (f"/streams/{NAME}/offsets?at=%7B%22p0%22%3A9999%7D", 416, "OffsetAhead"),
        (f"/streams/{NAME}/offsets?to=latest", 400, "BadRequest"),
        ("/streams?x=1", 400, "BadRequest"),
    ],
)  # fmt: skip
def test_errors_have_their_status_and_their_name(
    broker: LogBroker, http: Serving, path: str, status: int, error: str
) -> None:
    fill(broker, 30)
    broker.stream_truncate(NAME, None).result(PATIENCE_S)
    fill(broker, 30)
    found = http.get(path)
    assert (found.status, found.json()["error"]) == (status, error)
    assert found.headers["Content-Type"] == "application/problem+json; charset=utf-8"
    text = found.json()["text"]
    assert text and "\n" not in text and "Traceback" not in text


def test_damage_is_told_with_its_place(broker: LogBroker, http: Serving) -> None:
    fill(broker, 5)
    path = segments(broker.root)[0]
    size = path.stat().st_size // 5
    with path.open("r+b") as file:
        file.seek(2 * size + 20)
        file.write(b"\xff\xff")
    found = http.get(f"{P}?offset=0")
    assert (found.status, found.number("FleetMQ-End")) == (200, 20)  # what is good goes first
    found = http.get(f"{P}?offset=20")
    assert found.status == 500
    about = found.json()
    assert (about["error"], about["offset"], about["until"]) == ("CorruptBatch", 20, 30)
    assert (about["segment"], about["position"]) == (path.name, 2 * size)
    assert http.get(f"{P}?offset=30").status == 200


def test_offsets(broker: LogBroker, http: Serving) -> None:
    fill(broker, 3)
    epoch = epoch_of(broker)
    for at, offset in (
        ("earliest", 0), ("latest", 30), ("2023-11-14T22:13:21Z", 10), ('{"p0": 7}', 7)
    ):  # fmt: skip
        found = http.get(f"/streams/{NAME}/offsets?at={quote(at)}")
        assert found.json() == {"epoch": epoch, "p0": offset}
    assert http.get(f"/streams/{NAME}/offsets").json() == {"epoch": epoch, "p0": 30}


def test_a_broker_without_a_log(broker: LogBroker) -> None:
    with Serving(broker, None) as http:
        for path in ("/streams", f"/streams/{NAME}", f"{P}?offset=0"):
            found = http.get(path)
            assert (found.status, found.json()["error"]) == (409, "Refused")


def test_a_directory_that_is_not_there(broker: LogBroker, tmp_path: Path) -> None:
    with Serving(broker, tmp_path / "none") as http:
        assert http.get("/streams").json() == {"streams": []}
        assert http.get(f"{P}?offset=0").status == 404


def test_a_stream_that_is_made_again_is_the_new_one(broker: LogBroker, http: Serving) -> None:
    fill(broker, 3)
    old = epoch_of(broker)
    assert http.get(f"{P}?offset=0&epoch={old}").status == 200
    broker.stream_delete(NAME).result(PATIENCE_S)
    assert http.get(f"{P}?offset=0&epoch={old}").status == 404
    broker.create()
    assert http.get(f"{P}?offset=0&epoch={old}").status == 409
    assert http.get(f"{P}?offset=0").status == 204


def test_settings_that_change_are_seen(broker: LogBroker, http: Serving) -> None:
    assert http.get(f"/streams/{NAME}").json()["settings"]["retain_s"] == 0
    broker.stream_change(NAME, {"retain_s": 5}).result(PATIENCE_S)
    assert http.get(f"/streams/{NAME}").json()["settings"]["retain_s"] == 5


def test_what_is_older_than_the_retention_is_not_given(broker: LogBroker, http: Serving) -> None:
    """Its segment is there still: nobody seals it, or removes it, while a broker is down."""
    broker.writing.now_us = time.time_ns() // 1_000 - 3_570_000_000
    broker.stream_change(NAME, {"retain_s": 1_800}).result(PATIENCE_S)
    for _ in range(60):
        broker.put(b"x", client_id="c")
        broker.writing.now_us += 60_000_000
    key, end = max(http.get(f"/streams/{NAME}").json()["ends"].items(), key=lambda item: item[1])
    assert end == 60
    about = http.get(f"/streams/{NAME}").json()
    assert 20 < about["starts"][key] < 30  # an eighth more for readers that are under way
    earliest = http.get(f"/streams/{NAME}/offsets?at=earliest").json()
    assert earliest[key] == 30
    assert http.get(f"/streams/{NAME}/offsets?at=2001-01-01").json() == earliest
    place = f"/streams/{NAME}/{key}"
    for offset in (0, 15):
        found = http.get(f"{place}?offset={offset}")
        assert (found.status, found.json()["error"]) == (410, "OffsetGone")
        assert found.json()["earliest"] == 30
    assert http.get(f"{place}?offset=30").number("FleetMQ-Start") == 30
    with RemoteSource(http.url, NAME) as source:
        assert source.earliest().ends == (earliest[key],)
        assert source.starts().ends == (about["starts"][key],)
    assert (
        http.ask("POST", f"/api/v1/streams/{NAME}/truncate", {"before": "earliest"}).status == 200
    )


# What happens meanwhile.


def test_a_segment_that_is_deleted_while_it_is_sent(broker: LogBroker, http: Serving) -> None:
    """Larger than sockets hold, read slowly, and gone before the half of it was sent."""
    broker.put(b"x" * 8_000_000)
    whole = segments(broker.root)[0].read_bytes()
    with socket.socket() as near:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        near.settimeout(PATIENCE_S)
        near.connect(("127.0.0.1", http.port))
        near.sendall(
            f"GET {P}?offset=0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = near.recv(2_000)
        broker.stream_truncate(NAME, None).result(PATIENCE_S)
        assert not segments(broker.root)
        broker.stream_delete(NAME).result(PATIENCE_S)
        while part := near.recv(1 << 20):
            answer += part
    assert answer.partition(b"\r\n\r\n")[2] == whole


def test_a_file_that_gets_shorter_while_it_is_sent(broker: LogBroker, http: Serving) -> None:
    """Nobody but a bad disk does that. The answer ends early, and is not filled up."""
    broker.put(b"x" * 8_000_000)
    path = segments(broker.root)[0]
    with socket.socket() as near:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        near.settimeout(PATIENCE_S)
        near.connect(("127.0.0.1", http.port))
        near.sendall(f"GET {P}?offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        count = len(near.recv(2_000))
        with path.open("r+b") as file:
            file.truncate(6_000_000)
        try:
            while part := near.recv(1 << 20):
                count += len(part)
        except ConnectionResetError:
            pass
        assert count < 7_000_000
    assert http.get("/healthz").status == 200


@pytest.mark.parametrize("compact", [False, True])
def test_readers_go_on_while_it_is_written_and_compacted(
    broker: LogBroker, http: Serving, compact: bool
) -> None:
    """What is read is a beginning-to-end run of what was written, whatever goes meanwhile."""
    broker.stream_change(NAME, {"compact": compact, "retain_s": 0}).result(PATIENCE_S)
    is_over = threading.Event()
    chance = random.Random(7)

    def read(seed: int) -> int:
        own = random.Random(seed)
        with RemoteSource(http.url, NAME) as source, RemoteReader(source, 0, 0) as reader:
            last = -1
            rows = 0
            while True:
                was_over = is_over.is_set()
                batches = reader.read(own.choice((1, 5_000, 100_000)), 0.02)
                for batch in batches:
                    offsets = list(batch.offsets()[batch.wanted()])
                    for offset, payload in zip(
                        offsets, batch.payloads()[batch.wanted()], strict=True
                    ):
                        assert offset > last and int(payload[:6]) == offset
                        last = offset
                        rows += 1
                if was_over and not batches:
                    return rows

    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(read, seed) for seed in range(8)]
        written = 0
        for _ in range(60):
            first = written
            payloads = [b"%06d" % (first + n) + b"x" * 94 for n in range(20)]
            broker.put(*payloads, topic=f"t{chance.randrange(5)}")
            written += 20
            broker.writing.now_us += 1_000_000
            if compact:
                broker.do(lambda: broker.writing.log.compact(broker.writing.now_us))
        is_over.set()
        counts = [future.result(PATIENCE_S) for future in reading]
    assert all(0 < count <= written for count in counts)
    if not compact:
        assert counts == [written] * 8


def test_two_hundred_readers_at_once(broker: LogBroker, http: Serving) -> None:
    fill(broker, 200)

    def read(number: int) -> int:
        with (
            RemoteSource(http.url, NAME) as source,
            RemoteReader(source, 0, number * 7) as reader,
        ):
            rows = 0
            while batches := reader.read(50_000):
                rows += sum(len(batch.payloads()[batch.wanted()]) for batch in batches)
            return rows

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(read, range(200))) == [2_000 - n * 7 for n in range(200)]


def test_two_hundred_who_wait_are_all_told(broker: LogBroker, http: Serving) -> None:
    waiting = [http.connect() for _ in range(200)]
    for near in waiting:
        near.request("GET", f"{P}?offset=0&wait_s=30")
    fill(broker, 1)
    for near in waiting:
        assert near.getresponse().status == 200
        near.close()


def test_who_waits_with_a_token_that_is_withdrawn_gets_nothing(broker: LogBroker) -> None:
    tokens = [ApiToken(name, digest_of(name), VIEWER) for name in ("viewer", "other")]
    known = Credentials(tokens)
    with Serving(broker, broker.root, credentials=lambda: known) as http:
        near = http.connect()
        head = {"Authorization": "Bearer viewer"}
        near.request("GET", f"{P}?offset=0&wait_s=30", headers=head)
        assert http.get("/api/v1/me", headers=head).status == 200  # it was asked later
        known = Credentials(tokens[1:])
        fill(broker, 1)
        assert near.getresponse().status == 401
        near.close()


def test_those_who_wait_hear_that_the_stream_is_gone(broker: LogBroker, http: Serving) -> None:
    waiting = [http.connect() for _ in range(5)]
    for near in waiting:
        near.request("GET", f"{P}?offset=0&wait_s=30")
    broker.stream_delete(NAME).result(PATIENCE_S)
    for near in waiting:
        answer = near.getresponse()
        assert answer.status == 404
        assert json.loads(answer.read())["error"] in ("UnknownStream", StreamGone.__name__)
        near.close()


# Anything at all.


@pytest.mark.parametrize("seed", range(4))
def test_queries_of_any_kind_are_answered(broker: LogBroker, http: Serving, seed: int) -> None:
    fill(broker, 20)
    chance = random.Random(seed)
    values = [
        "0", "5", "200", "-1", "1e9", "999999999999", "earliest", "latest", "", "%00", "%ff%fe",
        "2023-11-14", "{}", "%7B%22p0%22%3A1%7D", "[" * 50, "x" * 300, "0.01", "inf",
        "%F0%9F%98%80",
    ]  # fmt: skip
    keys = ["offset", "until", "max_bytes", "wait_s", "epoch", "at", "x", "", "OFFSET"]
    places = [P, f"/streams/{NAME}", f"/streams/{NAME}/offsets", f"/streams/{NAME}/p1",
              f"/streams/{NAME}/describe", "/streams/x/p0", "/api/v1/streams",
              "/metrics"]  # fmt: skip
    near = http.connect()
    for _ in range(250):
        query = "&".join(
            f"{chance.choice(keys)}={chance.choice(values)}" for _ in range(chance.randrange(5))
        )
        noise = "".join(chance.choices(string.printable[:94], k=chance.randrange(3)))
        path = chance.choice(places) + "?" + query + quote(noise, safe="&=%+;?/")
        near = _ask(http, near, path)
    near.close()
    assert http.get("/healthz").status == 200


def _ask(http_: Serving, near: http.client.HTTPConnection, path: str) -> http.client.HTTPConnection:
    found = http_.get(path, over=near)
    assert found.status in (200, 204, 400, 404, 409, 410, 416), (path, found)
    assert b"Traceback" not in found.body
    if found.status >= 400 and found.headers["Content-Type"].startswith("application/problem+json"):
        assert set(found.json()) >= {"error", "text"}
    if found.headers["Connection"] == "close":
        near.close()
        return http_.connect()
    return near

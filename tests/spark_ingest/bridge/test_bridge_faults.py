"""The bridge when its disk is full or fails: nothing is acknowledged that is not there."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqtt_broker.client.blocking import Address
from mqtt_broker.client.errors import ClientError
from mqtt_broker.client.protocol import Message
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from mqtt_broker.testing import ThreadedBroker
from spark_ingest.bridge import session
from spark_ingest.bridge.bridge import device_rule
from spark_ingest.bridge.session import Broker, Session
from tests.spark_ingest.bridges import PATIENCE_S, Publisher, logged, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WRITE_AGAIN_S", 0.02)


class Failing(Disk):
    """Calls of one name fail while `fails` says so."""

    def __init__(self) -> None:
        self.fails: Callable[[str], bool] = lambda name: False
        self.calls: Counter[str] = Counter()

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        if self.fails(name):
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, file: int, buffers: Sequence[bytes], position: int) -> int:
        self._call("write")
        return super().write(file, buffers, position)

    def sync(self, file: int) -> None:
        self._call("sync")
        super().sync(file)


class Serving:
    """A session in a thread, from a broker of ours into a log on a disk that fails."""

    def __init__(self, port: int, root: Path, disk: Disk, waiting_bytes_max: int) -> None:
        self.lines: list[str] = []
        self.log = Log.open(root, report=self.lines.append, disk=disk)
        stream = self.log.create(StreamSettings("telemetry", partitions=2))
        self.writer = LogWriter(self.log, waiting_bytes_max)
        broker = Broker(Address("127.0.0.1", port), "bridge", ("fleet/#",), inflight_max=300)
        self.session = Session(broker, stream, self.writer, device_rule("topic"), self._say)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.session.is_connected or self.error, "it is connected")

    def _say(self, line: str) -> None:
        self.lines.append(line)

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    self.session.connect(self.stop.is_set)
                    self.session.serve(self.stop.is_set, lambda: None)
                except ClientError as error:
                    self.lines.append(str(error))
            self.session.close()
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        self.log.close()
        if self.error is not None:
            raise self.error

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextmanager
def serving(
    root: Path, disk: Disk, waiting_bytes_max: int = 64 << 20
) -> Iterator[tuple[Serving, Publisher]]:
    with ThreadedBroker(receive_maximum=1000) as broker:
        found = Serving(broker.port, root, disk, waiting_bytes_max)
        publisher = Publisher(broker.port)
        try:
            yield found, publisher
        finally:
            publisher.close()
            found.close()


def payloads(root: Path) -> Counter[int]:
    return Counter(int(record.payload) for record in logged(root))


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_full_disk_is_waited_for(tmp_path: Path, call: str) -> None:
    disk = Failing()
    with serving(tmp_path, disk) as (bridge, publisher):
        disk.fails = lambda name: name == call
        publisher.send(200, topic="fleet/{device}")
        until(lambda: bridge.session.figures.messages == 200, "all has come")
        until(lambda: disk.calls[call] >= 2, "it was tried again")
        assert bridge.session.figures.acknowledged == 0
        said = "the log cannot be written ([Errno 28] No space left on device)"
        until(lambda: bridge.has_said(said), "it says so")
        disk.fails = lambda name: False
        until(lambda: bridge.session.figures.acknowledged == 200, "all is acknowledged")
        until(lambda: bridge.has_said("the log can be written again"), "it says so")
        publisher.send(10, topic="fleet/{device}")
        until(lambda: bridge.session.figures.acknowledged == 210, "it goes on")
        assert payloads(tmp_path) == Counter(range(210))


def test_what_has_no_room_comes_again(tmp_path: Path) -> None:
    disk = Failing()
    with serving(tmp_path, disk, waiting_bytes_max=4_000) as (bridge, publisher):
        disk.fails = lambda name: name == "sync"
        publisher.send(200, topic="fleet/{device}")
        until(lambda: bridge.session.figures.messages >= 200, "all has come")
        publisher.send(5, topic="fleet/{device}", qos=0)
        until(lambda: bridge.session.figures.lost_qos0 == 5, "QoS 0 is counted as lost")
        disk.fails = lambda name: False
        until(lambda: set(payloads(tmp_path)) == set(range(200)), "nothing is missing")
        assert bridge.has_said("there was no room for a message")
        assert bridge.session.figures.repeats > 0


def test_no_acknowledgement_before_the_disk(tmp_path: Path) -> None:
    disk = Failing()
    with serving(tmp_path, disk) as (bridge, publisher):
        client = bridge.session.client
        assert client is not None
        numbers: dict[int, int] = {}
        early: list[int] = []
        on_message, acknowledge = bridge.session.on_message, client.protocol.acknowledge

        def note(message: Message) -> None:
            numbers[message.packet_id] = int(message.payload)
            on_message(message)

        def check(message: Message) -> None:
            assert disk.calls["sync"] > 0
            if numbers[message.packet_id] not in payloads(tmp_path):
                early.append(numbers[message.packet_id])
            acknowledge(message)

        bridge.session.on_message = note  # type: ignore[method-assign]
        client.protocol.acknowledge = check  # type: ignore[method-assign]
        for _ in range(5):
            publisher.send(10, topic="fleet/{device}")
            until(lambda: bridge.session.figures.acknowledged == publisher.sent, "all is there")
        assert early == []
        assert payloads(tmp_path) == Counter(range(50))


def test_every_call_of_the_disk_may_fail_once(tmp_path: Path) -> None:
    for nth in range(1, 13):
        disk = Failing()
        root = tmp_path / str(nth)
        with serving(root, disk) as (bridge, publisher):
            begun = disk.calls.total()
            disk.fails = lambda name, disk=disk, at=begun + nth: (  # type: ignore[misc]
                disk.calls.total() == at
            )
            for part in range(1, 6):
                publisher.send(10, topic="fleet/{device}")
                until(
                    lambda bridge=bridge, part=part: (  # type: ignore[misc]
                        bridge.session.figures.acknowledged == 10 * part
                    ),
                    "all is acknowledged",
                )
        assert payloads(root) == Counter(range(50))

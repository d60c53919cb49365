"""Brokers and bridges for the tests of the bridge: ours, mosquitto, and processes to kill."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from mqtt_broker.client.blocking import Address, Client
from mqtt_broker.client.protocol import Closed, Published
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.codec.reasons import UNSPECIFIED_ERROR
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests import forked

ROOT: Final = Path(__file__).parents[2]
MOSQUITTO: Final = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PATIENCE_S: Final = 120.0
_MAIN: Final = (
    "import argparse, sys; "
    "from spark_ingest.bridge.bridge import add_bridge_arguments, run_bridge; "
    "parser = argparse.ArgumentParser(allow_abbrev=False); add_bridge_arguments(parser); "
    "sys.exit(run_bridge(parser.parse_args()))"
)


def until(is_so: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@contextmanager
def mosquitto(home: Path) -> Iterator[int]:
    """Its port. It queues without a limit."""
    assert MOSQUITTO is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    (home / "conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        f"max_inflight_messages 0\nuser {getpass.getuser()}\n"
    )
    process = subprocess.Popen(
        [MOSQUITTO, "-c", str(home / "conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    try:
        until(answers, "mosquitto answers")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


class Bridge:
    """A process; its lines are kept."""

    def __init__(self, log: Path, broker: str, *argv: str) -> None:
        self._argv = [
            sys.executable, "-c", _MAIN, "--log", str(log), "--broker", broker,
            "--stream", "telemetry", *argv,
        ]  # fmt: skip
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.process: forked.Popen[str] = forked.Popen(
            self._argv, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self.process.stderr is not None
        self._reading = threading.Thread(target=self._read, args=(self.process.stderr,))
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.lines.append(line.rstrip())

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def connected(self) -> Self:
        until(lambda: self.has_said("connected to"), "the bridge is connected")
        return self

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        return code


class Publisher:
    """Publishes numbers from a thread of its own, and knows which were acknowledged."""

    def __init__(self, port: int) -> None:
        connect = Connect(V5, "publisher", keep_alive=60)
        self._client = Client(Address("127.0.0.1", port), connect)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.acknowledged: set[int] = set()
        self.sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self._client.protocol.connected, "the publisher is connected")

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            with self._lock:
                events, _ = self._client.step(0.001)
            for event in events:
                if isinstance(event, Published) and isinstance(event.tag, int):
                    if event.reason < UNSPECIFIED_ERROR:
                        self.acknowledged.add(event.tag)
                elif isinstance(event, Closed):
                    return

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        tag: object = None,
    ) -> None:
        with self._lock:
            self._client.protocol.publish(topic, payload, qos, retain, properties, tag)

    def send(self, count: int, *, topic: str = "fleet/{device}/telemetry", qos: int = 1) -> None:
        """Publish the next numbers, which stand in the payloads."""
        for _ in range(count):
            number = self.sent
            self.publish(topic.format(device=number % 10), b"%d" % number, qos, tag=number)
            self.sent += 1

    def settle(self) -> set[int]:
        """The numbers of all that was acknowledged, when nothing is under way any more."""
        until(lambda: len(self.acknowledged) >= self.sent, "all is acknowledged")
        return set(self.acknowledged)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._client.close()


def logged(root: Path, name: str = "telemetry") -> list[Record]:
    """All in the log that readers may have."""
    found: list[Record] = []
    try:
        with Source.open(root, name) as source:
            for partition in range(source.settings.partitions):
                with Reader(source, partition, 0) as reader:
                    while batches := reader.read():
                        for batch in batches:
                            found += records(batch)
    except (StreamError, FileNotFoundError):
        return []
    return found

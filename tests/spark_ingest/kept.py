"""A log that is written to while it is read, and what is in it at the end.

LibraryLog    by this process, as a broker would; what is in it is known before
BrokerLog     by a real broker that keeps what devices publish at QoS 2, and is killed with -9

Both say where they can be read, and `finish` tells what they have as messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.fault.lives import Lives, free_port
from tests.fault.tether import tied
from tests.server.broker_process import ROOT
from tests.spark_ingest import devices
from tests.spark_ingest.telemetry import SCHEMA, STREAM, Message, Writing

BATCH: Final = 200  # messages that are written at a time
TOKEN: Final = "a-token-of-the-test"
PATIENCE_S: Final = 60.0
_CONFIG: Final = f"""
[[streams]]
name = "{STREAM}"
filter = "plant/#"
partitions = 2
event_time = "json:$.ts ms"
schema = "telemetry.schema.json"
segment_bytes = "64KiB"
"""


class Kept(Protocol):
    options: list[str]  # of a job that reads it

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def finish(self) -> Sequence[Message]:
        """Nothing is written any more: all that is there, each message as often as it is."""
        ...


class LibraryLog:
    """Written by a thread, all of `told` in about so many seconds."""

    def __init__(self, root: Path, told: Sequence[Message], seconds: float) -> None:
        self.options = ["--log", str(root)]
        self._writing = Writing(root)
        self.told = told
        self._pause_s = seconds * BATCH / max(1, len(told))
        self._is_hurried = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_hurried.set()
        self._thread.join()
        self._writing.close()

    def _run(self) -> None:
        try:
            for at in range(0, len(self.told), BATCH):
                self._writing.add(self.told[at : at + BATCH])
                self._is_hurried.wait(self._pause_s)
        except Exception as error:
            self._error = error

    def finish(self) -> Sequence[Message]:
        self._is_hurried.set()
        self._thread.join()
        assert self._error is None, self._error
        return self.told


class BrokerLog:
    """Written by a broker under `commit`; a thread kills it now and then and starts it again."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        is_remote: bool = False,
        devices: int = 20,
        rate: float = 300.0,
        pauses_s: tuple[float, float] = (4.0, 12.0),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "telemetry.schema.json").write_text(json.dumps(SCHEMA))
        (directory / "broker.toml").write_text(_CONFIG)
        http = free_port()
        self._broker = Lives(
            directory,
            *("--config", str(directory / "broker.toml"), "--http", f"127.0.0.1:{http}"),
            env={"FLEETMQ_HTTP_TOKEN": TOKEN},
        )
        self._root = self._broker.data / "streams"
        self.options = ["--log", str(self._root)]
        if is_remote:
            self.options = ["--log", f"http://127.0.0.1:{http}", "--token", TOKEN]
        self.options += ["--stream", STREAM]
        self._ledger = directory / "devices.ledger"
        self._errors = directory / "devices.log"
        self._command = [sys.executable, "-m", "tests.spark_ingest.devices", str(self._broker.port)]
        self._command += [str(self._ledger), str(seed), str(devices), str(rate)]
        self._fleet: subprocess.Popen[bytes] | None = None
        self._rng = random.Random(f"{seed}/kills")
        self._pauses_s = pauses_s
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._killing = threading.Thread(target=self._kill, daemon=True)
        self._error: Exception | None = None
        self.kills = 0

    def __enter__(self) -> Self:
        self._broker.start()
        with self._errors.open("wb") as errors:
            self._fleet = subprocess.Popen(
                tied(self._command), cwd=ROOT, stdin=subprocess.PIPE, stderr=errors
            )
        self._killing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._killing.join()
        if self._fleet is not None:
            with self._fleet:
                self._fleet.kill()
        self._broker.kill()

    def _kill(self) -> None:
        try:
            while not self._is_over.wait(self._rng.uniform(*self._pauses_s)):
                self._broker.kill()
                self._is_over.wait(self._rng.uniform(0.0, 1.0))
                self._broker.start()
                with self._changed:
                    self.kills += 1
                    self._changed.notify_all()
        except Exception as error:
            self._error = error

    def wait_for_kills(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.kills >= count, PATIENCE_S), self._error

    def finish(self) -> Sequence[Message]:
        """What the devices say they sent, with the time that the log says it was received."""
        self._is_over.set()
        self._killing.join()
        assert self._error is None, self._error
        # A broker is tied to the thread that started it: this one is to stay.
        self._broker.kill()
        self.kills += 1
        self._broker.start()
        assert self._fleet is not None and self._fleet.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._fleet.stdin.close()
        code = self._fleet.wait(PATIENCE_S)
        assert code == 0, self._errors.read_text(errors="replace")[-2_000:]
        complaints = self._broker.complaints()
        assert not complaints, complaints[:5]
        return self.told()

    def told(self) -> list[Message]:
        """Each message of the ledger is in the log once, as it was sent and in that order, and
        nothing else is."""
        left = {(one.device, one.payload): one for one in devices.read(self._ledger)}
        found: dict[tuple[str, bytes], Message] = {}
        newest: dict[str, int] = {}
        for key, received_us in _logged(self._root):
            assert key not in found, f"twice in the log: {key}"
            assert key in left, f"never sent: {key}"
            one = found[key] = dataclasses.replace(left.pop(key), received_us=received_us)
            assert one.seq == newest.get(one.device, 0) + 1, f"out of order: {key}"
            newest[one.device] = one.seq
        assert not left, f"{len(left)} are not in the log, such as {next(iter(left))}"
        return list(found.values())


def _logged(root: Path) -> list[tuple[tuple[str, bytes], int]]:
    """((device, payload), when it was received) of all that is in the log."""
    found = []
    with Source.open(root, STREAM) as source:
        for number in range(source.settings.partitions):
            with Reader(source, number, 0) as reader:
                while batches := reader.read():
                    for batch in batches:
                        for one in records(batch):
                            found.append(((one.client_id, one.payload), one.received_us))
    return found

"""Copies of the state made as docs/BACKUP.md says have all that was acknowledged before them.

A publisher goes on while a copy is made; a broker is started on the copy, and what it has is
compared with the acknowledgements that came before.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from mqtt_broker.cli.main import main
from mqtt_broker.streams import open_reader, open_source, records
from tests.fault.postgres import PostgreSQL, Unavailable
from tests.server.broker_process import PATIENCE_S, Process, refused

ENOUGH: Final = 100
STREAM: Final = '[[streams]]\nname = "telemetry"\nfilter = "plant/#"\n'


def arguments(data: Path, *more: str) -> tuple[str, ...]:
    config = data.parent / "fleet.toml"
    config.write_text(STREAM)
    return ("--port", "0", "--data-dir", str(data), "--config", str(config), *more)


def broker(data: Path, *more: str) -> Process:
    return Process(*arguments(data, *more), env={"FLEETMQ_DURABILITY": "commit"})


def _client(process: Process, client_id: str, *, is_kept: bool) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=not is_kept)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect("127.0.0.1", process.addresses[0][1])
    client.loop_start()
    assert connected.wait(PATIENCE_S)
    return client


def subscribe_and_leave(process: Process) -> None:
    client = _client(process, "logger", is_kept=True)
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe("plant/#", 1)
    assert subscribed.wait(PATIENCE_S)
    client.disconnect()
    client.loop_stop()


class Publisher:
    """It publishes without end; `acknowledged` are the numbers that the broker promised to keep."""

    def __init__(self, process: Process) -> None:
        self.acknowledged: set[bytes] = set()
        self._numbers: dict[int, bytes] = {}
        self._is_over = threading.Event()
        self._enough = threading.Event()
        self._client = _client(process, "pump", is_kept=False)
        self._client.on_publish = self._on_publish
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self) -> None:
        self._enough.clear()
        assert self._enough.wait(PATIENCE_S)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.loop_stop()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            text = b"%d" % number
            sent = self._client.publish("plant/7", text, 1)
            self._numbers[sent.mid] = text
            if number % 10 == 0 and not self._is_over.is_set():
                try:
                    sent.wait_for_publish(1.0)
                except RuntimeError:  # the broker has gone
                    return

    def _on_publish(self, client: object, data: object, mid: int, *_: object) -> None:
        while mid not in self._numbers:  # `publish` has not returned yet
            time.sleep(0)
        self.acknowledged.add(self._numbers[mid])
        if len(self.acknowledged) % ENOUGH == 0:
            self._enough.set()


def queued(process: Process, count: int) -> set[bytes]:
    """What the session that was away gets: at least `count` messages."""
    found: set[bytes] = set()
    enough = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "logger", clean_session=False)

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        found.add(bytes(message.payload))
        if len(found) >= count:
            enough.set()

    client.on_message = on_message
    client.connect("127.0.0.1", process.addresses[0][1])
    client.loop_start()
    enough.wait(PATIENCE_S)
    client.disconnect()
    client.loop_stop()
    return found


def logged(data: Path) -> set[bytes]:
    found: set[bytes] = set()
    with (
        open_source(str(data / "streams"), "telemetry") as source,
        open_reader(source, 0, 0) as reader,
    ):
        while batches := reader.read():
            found |= {record.payload for batch in batches for record in records(batch)}
    return found


def check(data: Path, promised: set[bytes], *more: str) -> None:
    """Start a broker on a copy, and compare."""
    with broker(data, *more) as process:
        assert promised <= queued(process, len(promised))
        assert promised <= logged(data)
        process.end()


@contextmanager
def under_load(data: Path, *more: str) -> Iterator[tuple[Process, Publisher]]:
    with broker(data, *more) as process:
        subscribe_and_leave(process)
        publisher = Publisher(process)
        try:
            publisher.wait_for_more()
            yield process, publisher
        finally:
            publisher.stop()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_copy_of_a_stopped_broker(number: signal.Signals, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with under_load(data) as (process, publisher):
        process.process.send_signal(number)
        process.process.wait(PATIENCE_S)
    shutil.copytree(data, copy)
    check(copy, publisher.acknowledged)


def test_a_copy_of_a_paused_broker(tmp_path: Path) -> None:
    """As a snapshot of the file system: all files of one moment."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with under_load(data) as (process, publisher):
        promised = set(publisher.acknowledged)
        process.process.send_signal(signal.SIGSTOP)
        os.waitpid(process.process.pid, os.WUNTRACED)  # until all its threads stand still
        shutil.copytree(data, copy)
        process.process.send_signal(signal.SIGCONT)
        publisher.wait_for_more()  # and it goes on
    assert len(promised) >= ENOUGH
    check(copy, promised)


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _number(file: Path, query: str) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        [found] = database.execute(query).fetchone()
    return int(found)


FOLDED: Final = ("fleetmq.db", "SELECT folded FROM meta")
REMOVED: Final = ("journal.db", "SELECT removed_to FROM journal_state")
NEWEST: Final = (
    "journal.db",
    (
        "SELECT max(number) FROM "
        "(SELECT number FROM journal UNION SELECT removed_to FROM journal_state)"
    ),
)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        pytest.param(FOLDED, REMOVED, "is older than its journal", id="tables first"),
        pytest.param(
            NEWEST, FOLDED, "the journal is older than", id="journal first", marks=pytest.mark.slow
        ),
    ],
)
def test_files_copied_one_after_the_other_are_refused(
    first: tuple[str, str], then: tuple[str, str], told: str, tmp_path: Path
) -> None:
    """Once the broker has removed groups from one that the other does not have yet."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    copy.mkdir()
    with under_load(data) as (_, publisher):
        _copy_database(data / first[0], copy / first[0])
        copied = _number(copy / first[0], first[1])
        while _number(data / then[0], then[1]) <= copied:
            publisher.wait_for_more()
        _copy_database(data / then[0], copy / then[0])
    code, _, errors = refused(*arguments(copy), env={"FLEETMQ_DURABILITY": "commit"})
    assert code == 1 and told in errors and "--recover" in errors, errors


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    try:
        with PostgreSQL() as found:
            yield found
    except Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")


@pytest.mark.slow
def test_a_dump_of_a_database_in_use(server: PostgreSQL, tmp_path: Path) -> None:
    """The state is of one moment; the log, copied afterwards, has more, which has to be allowed."""
    url, other = server.database("one"), server.database("two")
    data, copy = tmp_path / "data", tmp_path / "copy"
    with under_load(data, "--database-url", url) as (_, publisher):
        promised = set(publisher.acknowledged)
        dump = server.dump("one")
        publisher.wait_for_more()
        shutil.copytree(data, copy)
    server.psql("two", dump)
    where = ("--database-url", other)
    code, _, errors = refused(*arguments(copy, *where), env={"FLEETMQ_DURABILITY": "commit"})
    assert code == 1 and "the log has more than the journal" in errors, errors
    check(copy, promised, *where, "--recover")


def test_a_store_in_use_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    with broker(data) as process:
        assert main(["ctl", "export", "--data-dir", str(data), str(tmp_path / "state")]) == 1
        process.end()
    assert "another" in capsys.readouterr().err
    assert main(["ctl", "export", "--data-dir", str(data), str(tmp_path / "state")]) == 0

"""Files that are not what they were, and stores that cannot be had: refused in one clear line.

Never a silent start with nothing in it. `--recover` starts, and keeps the damaged file.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fault.lives import PATIENCE_S, Lives
from tests.fault.postgres import PostgreSQL
from tests.fault.talk import Talker


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path) -> None:
    path.unlink()


def torn(path: Path) -> None:
    """Pages in the middle that never reached the disk."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(1).randbytes(max(4096, size // 2)))
    os.truncate(path, size)


DAMAGES: Final = (truncated, missing, emptied, torn, zeroed, garbage)
FEW: Final = ((truncated, "fleetmq.db"), (missing, "journal.db"))  # in the fast tests


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a session, its queue and a retained message, after an orderly end."""
    directory = tmp_path_factory.mktemp("used")
    with Lives(directory) as broker:
        broker.start()
        with Talker(broker.address, "away") as away:
            away.subscribe("damage/#", 1)
            away.disconnect()
        with Talker(broker.address, "publisher") as publisher:
            for number in range(50):
                publisher.publish(f"damage/{number}", bytes(500), retain=True)
        assert broker.terminate() == 0
    return directory / "data"


@pytest.fixture
def broker(used: Path, tmp_path: Path) -> Iterator[Lives]:
    """On a copy of it."""
    with Lives(tmp_path) as lives:
        lives.data.mkdir()
        for path in used.iterdir():
            if path.is_file():
                (lives.data / path.name).write_bytes(path.read_bytes())
        yield lives


def refusal(broker: Lives, *argv: str) -> str:
    """The one line with which it refuses to start."""
    before = broker.log()
    broker.spawn(*argv)
    assert broker.reap(PATIENCE_S) in (1, 2, 3)
    line = broker.log()[len(before) :]
    assert line.startswith("fleetmq broker: ") and line.count("\n") == 1, line
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        pytest.param(damage, name, marks=[] if (damage, name) in FEW else pytest.mark.slow)
        for damage in DAMAGES
        for name in ("fleetmq.db", "journal.db")
    ],
)
def test_a_damaged_file_is_refused(
    broker: Lives, damage: Callable[[Path], None], name: str
) -> None:
    damage(broker.data / name)
    before = {path: path.read_bytes() for path in broker.data.iterdir() if path.is_file()}
    line = refusal(broker)
    assert name in line and "--recover" in line
    for path, data in before.items():  # nothing was written over
        if path.suffix == ".db":
            assert path.read_bytes() == data, path.name
    broker.start("--recover")
    if damage is not missing:
        kept = [p.read_bytes() for p in broker.data.iterdir() if p.is_file() and p.name != name]
        assert before[broker.data / name] in kept
    with Talker(broker.address, "away") as away:
        away.subscribe("damage/new", 1)
        if name == "journal.db":  # folded already: all is in the tables
            assert away.present
            found = {m.topic for m in away.accept(away.take(50))}
            assert found == {f"damage/{number}" for number in range(50)}
        away.disconnect()
    assert broker.terminate() == 0
    broker.start()
    with Talker(broker.address, "away") as away:
        assert away.present


def test_an_undamaged_store_needs_no_recovery(broker: Lives) -> None:
    broker.start("--recover")
    with Talker(broker.address, "away") as away:
        assert away.present
        assert len(away.payloads(50)) == 50


def test_files_of_two_stores(broker: Lives, tmp_path: Path) -> None:
    with Lives(tmp_path / "other") as other:
        (tmp_path / "other").mkdir()
        other.start()
        assert other.terminate() == 0
        for path in other.data.glob("journal.db*"):
            (broker.data / path.name).write_bytes(path.read_bytes())
    assert "another store" in refusal(broker)


def test_a_store_of_a_newer_program(broker: Lives) -> None:
    connection = sqlite3.connect(broker.data / "fleetmq.db")
    connection.execute("UPDATE alembic_version SET version_num = 'fffffff'")
    connection.commit()
    connection.close()
    assert "newer" in refusal(broker)


def test_a_data_directory_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with Lives(tmp_path) as broker:
        assert str(tmp_path / "data") in refusal(broker)


def test_two_brokers_on_one_data_directory(broker: Lives, tmp_path: Path) -> None:
    broker.start()
    (tmp_path / "second").mkdir()
    with Lives(tmp_path / "second") as second:
        line = refusal(second, "--data-dir", str(broker.data))
        assert str(broker.process.pid) in line
    with Talker(broker.address, "away") as away:
        assert len(away.payloads(50)) == 50
    broker.kill()
    broker.start()  # the lock of who was killed is nobody's


def test_two_brokers_on_one_database(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.database("contested")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with (
        Lives(tmp_path / "first", database_url=url) as first,
        Lives(tmp_path / "second", database_url=url) as second,
    ):
        first.start()
        refusal(second)
        first.kill()
        second.start()


def test_a_database_that_cannot_be_had(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://fleetmq:secret@/fleetmq?host={tmp_path}"
    with Lives(tmp_path, database_url=url) as broker:
        assert "secret" not in refusal(broker)


def test_a_url_that_is_none(tmp_path: Path) -> None:
    with Lives(tmp_path, database_url="mysql://localhost/x") as broker:
        refusal(broker)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_in_its_very_first_start(tmp_path: Path, step: int) -> None:
    """A store that is half made is no damage: there was nothing in it."""
    start_s = 0.0
    for number in range(0, 5, step):  # the first shows how long a start takes
        directory = tmp_path / str(number)
        directory.mkdir()
        with Lives(directory) as broker:
            broker.spawn()
            broker.wait_ready(start_s * (0.5 + number / 10) if number else PATIENCE_S)
            start_s = start_s or time.monotonic() - broker.started_at
            broker.kill()
            broker.start()
            assert broker.terminate() == 0

"""Backups of a broker under load, restored on both databases and from one to the other."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.backup import manifest, take
from mqtt_broker.backup.figures import DONE, FAILED
from mqtt_broker.backup.restore import restore, verify
from mqtt_broker.server.services.backups import BackupService
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.testing import Broker
from tests.backup.loads import STREAM, backup, broker, check, under_load
from tests.fault.postgres import PostgreSQL

_numbers = itertools.count(1)


def service_of(running: Broker) -> BackupService:
    found = running.server.backups
    assert found is not None
    return found


def database_of(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    if kind == "sqlite":
        return {}
    server: PostgreSQL = request.getfixturevalue("server")
    return {"database_url": server.database(f"backup_{next(_numbers)}")}


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
@pytest.mark.parametrize("source", ["sqlite", "postgresql"])
def test_what_was_acknowledged_before_a_backup_is_restored(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, to: str
) -> None:
    old, new = database_of(request, source), database_of(request, to)

    async def main() -> list[bytes]:
        async with broker(tmp_path / "data", **old) as running, under_load(running) as load:
            promised = list(load.acknowledged)
            made = await backup(service_of(running), str(tmp_path / "copy"))
            assert made.state == DONE, made.error
            await load.wait_for_more()  # and it goes on
        assert made.bytes_done == made.bytes_total and made.files and made.created_at
        return promised

    promised = asyncio.run(main())
    restored = restore(tmp_path / "copy", tmp_path / "new", new.get("database_url", ""))
    assert restored.state == ("sqlite" if source == "sqlite" else "lines")
    if to == "sqlite":
        check_ends(tmp_path / "new", restored)
    asyncio.run(check(tmp_path / "new", promised, **new))


def check_ends(data: Path, restored: manifest.Manifest) -> None:
    """The journal, the manifest and the log's own files have the same ends."""
    with closing(sqlite3.connect(data / "journal.db")) as database:
        [ends] = database.execute("SELECT ends FROM stream_ends").fetchone()
    stream = restored.streams[STREAM]
    assert Offsets.decode(ends) == Offsets(stream.epoch, stream.ends)
    assert sum(stream.ends) > 0


def test_sealed_segments_are_shared_with_a_backup_on_the_same_disk(tmp_path: Path) -> None:
    async def main() -> list[tuple[Path, int]]:
        async with broker(tmp_path / "data") as running, under_load(running) as load:
            for number in range(100):
                await running.publish("plant/large", bytes([number]) * 4_000, qos=1)
            await load.wait_for_more()
            made = await backup(service_of(running), "monday")
            segments = Path(made.directory).rglob("*.seg")
            return [(path, path.stat().st_nlink) for path in segments]

    links = asyncio.run(main())
    assert {count for _, count in links} == {1, 2}, links
    verify(tmp_path / "data" / "backups" / "monday")


def failing(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", at)

    monkeypatch.setattr(take, at, fail)


@pytest.mark.parametrize("at", ["sum_of", "write_synced", "sync", "_copy_extra"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async def main() -> None:
        async with broker(tmp_path / "data") as running:
            await running.publish("plant/1", b"1", qos=1)
            with monkeypatch.context() as patch:
                failing(patch, at)
                made = await backup(service_of(running), str(tmp_path / "copy"))
            assert (made.state, made.error) == (FAILED, f"{at}: disk full")
            assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
            assert not list((tmp_path / "data").rglob("*.new"))
            assert (await backup(service_of(running), str(tmp_path / "copy"))).state == DONE

    asyncio.run(main())


def test_a_full_disk_while_sqlite_copies(tmp_path: Path) -> None:
    """SQLite's own error becomes the same line."""

    class Full(take.Progress):
        def add(self, count: int) -> None:
            raise sqlite3.OperationalError("database or disk is full")

    async def main() -> None:
        async with broker(tmp_path / "data") as running:
            storage, streams = running.server.storage, running.server.streams
            assert storage is not None and streams is not None
            with pytest.raises(manifest.BackupError, match="disk is full"):
                await asyncio.to_thread(
                    take.take, storage.store, streams.log, tmp_path / "data",
                    tmp_path / "copy", Full(),
                )  # fmt: skip

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_directory_in_the_way(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "copy.part").mkdir()
        (tmp_path / "copy.part" / "mine").touch()
        async with broker(tmp_path / "data") as running:
            made = await backup(service_of(running), str(tmp_path / "copy"))
            assert made.error == f"{tmp_path / 'copy.part'} is in the way: remove it"
            (tmp_path / "copy.part" / "unfinished").touch()  # as that of a killed broker
            assert (await backup(service_of(running), str(tmp_path / "copy"))).state == DONE
        assert not (tmp_path / "copy.part").exists()

    asyncio.run(main())


def test_a_target_that_appears_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = take.write_synced

    def write(path: Path, text: str) -> None:
        real(path, text)
        (tmp_path / "copy").mkdir()

    monkeypatch.setattr(take, "write_synced", write)

    async def main() -> None:
        async with broker(tmp_path / "data") as running:
            made = await backup(service_of(running), str(tmp_path / "copy"))
            assert made.error == f"{tmp_path / 'copy'} exists: name a new directory"

    asyncio.run(main())
    assert not list((tmp_path / "copy").iterdir())


def test_a_broker_that_stops_gives_the_backup_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with broker(tmp_path / "data") as running:
            service = service_of(running)
            begun = await asyncio.wrap_future(service.begin(str(tmp_path / "copy")))
            assert begun.state == "running"

    real = take.fill

    def wait(*arguments: Any) -> manifest.Manifest:
        progress: take.Progress = arguments[-1]
        while not progress.is_over():
            os.sched_yield()
        return real(*arguments)

    monkeypatch.setattr(take, "fill", wait)
    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_the_secret_of_the_salts_is_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path / "data") as running:
            (tmp_path / "data" / "scram-salts").write_bytes(b"secret")
            await backup(service_of(running), str(tmp_path / "copy"))

    asyncio.run(main())
    restore(tmp_path / "copy", tmp_path / "new")
    assert (tmp_path / "new" / "scram-salts").read_bytes() == b"secret"
    shutil.rmtree(tmp_path / "new")

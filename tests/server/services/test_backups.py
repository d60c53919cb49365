"""Backups of a running broker: names, one at a time, and the list of those there are."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.backup import take
from mqtt_broker.backup.manifest import BackupError, Manifest
from mqtt_broker.server.services.backups import BackupRunning, BackupService
from mqtt_broker.testing import Broker


async def made(service: BackupService, directory: str = "") -> str:
    found = await asyncio.wrap_future(service.begin(directory))
    while True:
        for one in await asyncio.wrap_future(service.figures()):
            if one.id == found.id and one.state != "running":
                return one.error
        await asyncio.sleep(0.01)


def service_of(broker: Broker) -> BackupService:
    assert broker.server.backups is not None
    return broker.server.backups


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../x", "expected a name without '/'"),
        ("a/b", "or an absolute path"),
        (".hidden", "expected a name"),
        ("..", "expected a name"),
        ("x\0y", "U+0000"),
        ("monday.part", ".part is for unfinished ones"),
        ("/nowhere/at/all", "/nowhere/at is not a directory: make it first"),
        ("x" * 300, "File name too long"),
        ("/proc/x", "/proc/x"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, said: str) -> None:
    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            try:
                error = await made(service_of(broker), name)
            except BackupError as refused:
                error = str(refused)
            assert said in error and "\n" not in error, error

    asyncio.run(main())


def test_places_that_cannot_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            service = service_of(broker)
            with pytest.raises(BackupError, match="is inside the telemetry log"):
                await made(service, str(tmp_path / "data" / "streams" / "x"))
            with pytest.raises(BackupError, match="exists: name a new directory"):
                await made(service, str(tmp_path))

    asyncio.run(main())


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()
    real = take.fill

    def fill(*arguments: Any) -> Manifest:
        assert may_go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(take, "fill", fill)

    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            service = service_of(broker)
            first = asyncio.create_task(made(service, "monday"))
            while not await asyncio.wrap_future(service.figures()):
                await asyncio.sleep(0.01)
            [running] = await asyncio.wrap_future(service.figures())
            assert (running.id, running.state, running.phase) == (
                "monday", "running", "waiting for the store",
            )  # fmt: skip
            with pytest.raises(BackupRunning, match="monday is being made: wait for its end"):
                await asyncio.wrap_future(service.begin("tuesday"))
            may_go.set()
            assert await first == ""
            assert await made(service, "tuesday") == ""

    asyncio.run(main())


def test_backups_are_found_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            service = service_of(broker)
            await made(service, "monday")
            await made(service)
            await made(service, str(tmp_path / "elsewhere"))
            (tmp_path / "data" / "backups" / "mine").mkdir()
            (tmp_path / "data" / "backups" / "old.part").mkdir()
            before = await asyncio.wrap_future(service.figures())
            assert [one.state for one in before] == ["done"] * 3
            await broker.restart()
            after = await asyncio.wrap_future(service_of(broker).figures())
            assert {one.id for one in after} == {one.id for one in before} - {"elsewhere"}
            assert {one.bytes for one in after} <= {one.bytes for one in before}
            (tmp_path / "data" / "backups" / "monday").rename(tmp_path / "monday")
            left = await asyncio.wrap_future(service_of(broker).figures())
            assert "monday" not in [one.id for one in left]

    asyncio.run(main())


def test_what_a_killed_broker_left_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "data" / "backups"

    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            (root / "sunday.part" / "streams").mkdir(parents=True)
            (root / "sunday.part" / "unfinished").touch()
            (root / "other.part").mkdir()
            await made(service_of(broker), "monday")

    asyncio.run(main())
    assert sorted(path.name for path in root.iterdir()) == ["monday", "other.part"]


def test_a_mistake_of_ours_fails_the_backup_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(take, "sums", lambda *_: 1 / 0)

    async def main() -> None:
        async with Broker(data_dir=tmp_path / "data", durability="commit") as broker:
            assert "internal error: ZeroDivisionError" in await made(service_of(broker), "monday")

    asyncio.run(main())
    assert "internal error" in caplog.text
    assert not list((tmp_path / "data" / "backups").iterdir())


def test_a_broker_in_memory_has_none() -> None:
    async def main() -> None:
        async with Broker() as broker:
            assert broker.server.backups is None

    asyncio.run(main())

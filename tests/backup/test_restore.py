"""Backups that are damaged, foreign or in the wrong place are refused in one line."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.backup import manifest
from mqtt_broker.backup import restore as restoring
from mqtt_broker.backup.manifest import BackupError
from mqtt_broker.backup.restore import restore, verify
from tests.backup.loads import STREAM, backup, broker, check
from tests.backup.test_take import service_of
from tests.fault.postgres import PostgreSQL


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small backup."""
    root = tmp_path_factory.mktemp("backup")

    async def main() -> None:
        async with broker(root / "data") as running:
            await running.publish("plant/1", b"1", qos=1)
            await backup(service_of(running), str(root / "copy"))

    asyncio.run(main())
    return root / "copy"


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A backup of one's own, to damage."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def edit(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, with the right checksum."""
    path = copy / manifest.FILE
    found = json.loads(path.read_text())
    del found["sha256"]
    change(found)
    found["sha256"] = manifest.digest(found)
    path.write_text(json.dumps(found))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda copy: (copy / "manifest.json").unlink(), "is not a backup: it has no"),
    "an unfinished one": (
        lambda copy: copy.rename(copy.with_name("copy.part")),
        "is not a backup|is not complete",
    ),
    "an empty manifest": (
        lambda copy: (copy / "manifest.json").write_text(""), "damaged: it is not JSON"
    ),
    "deep JSON": (
        lambda copy: (copy / "manifest.json").write_text("[" * 100_000), "damaged: it is not JSON"
    ),
    "no UTF-8": (
        lambda copy: (copy / "manifest.json").write_bytes(b"\xff"), "damaged: it is not UTF-8"
    ),
    "another object": (
        lambda copy: (copy / "manifest.json").write_text("{}"), "is not the manifest of a backup"
    ),
    "an edited manifest": (
        lambda copy: (copy / "manifest.json").write_text(
            (copy / "manifest.json").read_text().replace("sqlite", "lines")
        ),
        "damaged: it does not match its checksum",
    ),
    "a newer format": (
        lambda copy: edit(copy, lambda found: found.update(format=2)),
        "the backup has format 2, and this version reads 1: use the FleetMQ that made it",
    ),
    "a missing key": (
        lambda copy: edit(copy, lambda found: found.pop("files")), "is invalid: KeyError"
    ),
    "a strange kind": (
        lambda copy: edit(copy, lambda found: found.update(state="x")), "unknown kind of state 'x'"
    ),
    "a path out of it": (
        lambda copy: edit(
            copy, lambda found: found["files"].update({"../x": {"bytes": 1, "sha256": ""}})
        ),
        "outside of the backup",
    ),
    "a stream with a path for a name": (
        lambda copy: edit(
            copy,
            lambda found: found["streams"].update(
                {"../x": {"epoch": "", "starts": [0], "ends": [0]}}
            ),
        ),
        "'../x' is invalid",
    ),
    "a damaged database": (
        lambda copy: damage(copy / "fleetmq.db"), "fleetmq.db is damaged: it does not match"
    ),
    "a damaged segment": (
        lambda copy: damage(next(copy.rglob("*.seg"))), "seg is damaged: it does not match"
    ),
    "a missing segment": (
        lambda copy: next(copy.rglob("*.seg")).unlink(), "is missing: the backup is not complete"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_backup_that_is_not_whole(copy: Path, tmp_path: Path, name: str) -> None:
    act, said = MISTAKES[name]
    act(copy)
    with pytest.raises(BackupError, match=said) as caught:
        restore(copy, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.part").exists()


def test_places_that_are_not_empty(made: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "new.part").mkdir()
    for name, said in (
        ("used", "is not empty: name a new directory"),
        ("used/file", "is not a directory"),
        ("link", "is not a directory"),
        ("new", "remove it, and try again"),
    ):
        with pytest.raises(BackupError, match=said):
            restore(made, tmp_path / name)
    assert (tmp_path / "used" / "file").exists() and (tmp_path / "new.part").exists()


def test_an_empty_directory_is_filled(made: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    moved: list[int] = []
    found = restore(made, tmp_path / "new", on_bytes=moved.append)
    assert sum(moved) == found.bytes == verify(made).bytes
    assert sum(found.streams[STREAM].ends) == 1
    asyncio.run(check(tmp_path / "new", []))


def test_a_database_that_is_in_use(made: Path, tmp_path: Path, server: PostgreSQL) -> None:
    url = server.database("used_already")

    async def main() -> None:
        async with broker(tmp_path / "data", database_url=url) as running:
            await running.publish("a", b"1", qos=1, retain=True)

    asyncio.run(main())
    with pytest.raises(BackupError, match="is not empty: import into a new store"):
        restore(made, tmp_path / "new", url)
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.part").exists()


def test_a_restore_that_fails_at_the_end_leaves_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(restoring, "sync", fail)
    with pytest.raises(BackupError, match="disk full"):
        restore(made, tmp_path / "new")
    assert not list(tmp_path.iterdir())

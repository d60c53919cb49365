"""Names and bytes that are on disk before anything rests on them: the calls of fsync, recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtt_broker.security.files.atomic_files import write_whole
from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from sessions.store import salvage, sqlite_files
from sessions.store.store import Store
from tests.streams.logs import Writing, segments


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What was synced and what was renamed, in order."""
    found: list[tuple[str, Path]] = []

    def recorded(act: Callable[[int], None]) -> Callable[[int], None]:
        def sync(file: int) -> None:
            found.append(("sync", Path(os.readlink(f"/proc/self/fd/{file}"))))
            act(file)

        return sync

    def replace(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        found.append(("rename", Path(target)))
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "fsync", recorded(os.fsync))
    monkeypatch.setattr(os, "fdatasync", recorded(os.fdatasync))
    monkeypatch.setattr(os, "replace", replace)
    return found


def is_after(calls: list[tuple[str, Path]], first: tuple[str, Path], then: Path) -> bool:
    """Whether `then` is synced behind the last `first`."""
    place = len(calls) - 1 - calls[::-1].index(first)
    return ("sync", then) in calls[place:]


def open_store(directory: Path) -> None:
    Store.open(data_dir=str(directory)).abandon()


class TestStore:
    def test_every_directory_that_is_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        open_store(tmp_path / "a" / "b" / "data")
        for made in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "data"):
            assert ("sync", made) in calls

    def test_a_directory_that_an_earlier_start_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        (tmp_path / "data").mkdir()
        open_store(tmp_path / "data")
        assert ("sync", tmp_path) in calls

    def test_a_directory_above_that_an_earlier_start_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        (tmp_path / "a").mkdir()
        open_store(tmp_path / "a" / "data")
        assert calls.index(("sync", tmp_path)) < calls.index(("sync", tmp_path / "a"))

    def test_a_directory_above_that_may_not_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path) -> None:
            if path == tmp_path:
                raise PermissionError(13, "no", str(path))

        (tmp_path / "data").mkdir()
        monkeypatch.setattr(sqlite_files, "sync", refuse)
        open_store(tmp_path / "data")

    def test_both_files_in_their_order(self, tmp_path: Path, calls: list[tuple[str, Path]]) -> None:
        """The tables say that the journal is there, so its name is on disk before theirs."""
        open_store(tmp_path)
        first = calls.index(("rename", tmp_path / "journal.db"))
        second = calls.index(("rename", tmp_path / "fleetmq.db"))
        assert ("sync", tmp_path) in calls[first:second]
        assert ("sync", tmp_path) in calls[second:]

    def test_what_was_saved(self, tmp_path: Path, calls: list[tuple[str, Path]]) -> None:
        open_store(tmp_path)
        (tmp_path / "fleetmq.db").write_bytes(b"not a database" * 1000)
        calls.clear()
        Store.open(data_dir=str(tmp_path), recover=True).abandon()
        for made in ("journal.db", "fleetmq.db"):
            for name in (f"{made}{salvage.READY}", made):
                assert is_after(calls, ("rename", tmp_path / name), tmp_path)
        ready, put = f"fleetmq.db{salvage.READY}", "fleetmq.db"
        for before, then in ((f"journal.db{salvage.READY}", ready), ("journal.db", put)):
            first = calls.index(("rename", tmp_path / before))
            second = len(calls) - 1 - calls[::-1].index(("rename", tmp_path / then))
            assert ("sync", tmp_path) in calls[first:second]

    @pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what SQLite does")
    def test_the_logs_that_sqlite_makes(self, tmp_path: Path) -> None:
        """It syncs their directory before the first commit counts."""
        script = (
            "from pathlib import Path; from sessions.store.database import execute, sqlite_engine\n"
            f"path = Path({str(tmp_path / 'journal.db')!r})\n"
            "engine = sqlite_engine(path, checkpoint_pages=0)\n"
            "with engine.connect() as connection:\n"
            "    with connection.begin():\n"
            "        execute(connection, 'UPDATE journal_state SET owner = ?', ('x',))\n"
            "    print('safe', flush=True)\n"
        )
        open_store(tmp_path)
        trace = tmp_path / "trace"
        done = subprocess.run(
            ["strace", "-f", "-y", "-e", "trace=openat,fsync,fdatasync,write,pwrite64",
             "-o", str(trace), sys.executable, "-c", script],
            check=False, cwd=Path(__file__).parents[2], capture_output=True,
        )  # fmt: skip
        if done.returncode:
            pytest.skip("strace may not trace here")
        lines = trace.read_text().splitlines()
        made = next(at for at, line in enumerate(lines) if "journal.db-wal" in line)
        safe = next(at for at, line in enumerate(lines) if '"safe' in line)
        synced = [line for line in lines[made:safe] if "sync(" in line]
        assert any(f"<{tmp_path}>" in line for line in synced), synced


class TestLog:
    def test_every_directory_that_is_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        Log.open(tmp_path / "data" / "streams", {}, report=print).close()
        assert ("sync", tmp_path) in calls
        assert ("sync", tmp_path / "data") in calls

    def test_a_stream_and_its_partitions(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        log = Log.open(tmp_path / "streams", {}, report=print)
        stream = log.create(StreamSettings("s", partitions=2))
        assert is_after(calls, ("rename", stream.directory), tmp_path / "streams")
        log.close()

    def test_a_segment_of_this_process(self, tmp_path: Path, calls: list[tuple[str, Path]]) -> None:
        path = written(tmp_path / "streams")
        assert is_after(calls, ("sync", path.parent), path)

    def test_a_segment_that_an_earlier_process_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It died between making it and syncing its directory, or its bytes."""
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "sync_directory", lambda *_: None)
            patch.setattr(Disk, "sync", lambda *_: None)
            path = written(tmp_path / "streams")
        calls.clear()
        Log.open(tmp_path / "streams", None, report=print).close()
        assert ("sync", path) in calls and ("sync", path.parent) in calls

    def test_a_stream_that_an_earlier_process_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It died between renaming it and syncing the directory of streams."""
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "sync_directory", lambda *_: None)
            written(tmp_path / "streams")
        calls.clear()
        Log.open(tmp_path / "streams", None, report=print).close()
        assert ("sync", tmp_path / "streams") in calls

    def test_directories_that_an_earlier_process_made(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        """It died between making one and syncing the one above it."""
        (tmp_path / "data").mkdir()
        for _ in range(2):
            Log.open(tmp_path / "data" / "streams", {}, report=print).close()
            assert ("sync", tmp_path / "data") in calls
            calls.clear()

    def test_a_partition_whose_directory_is_gone(
        self, tmp_path: Path, calls: list[tuple[str, Path]]
    ) -> None:
        log = Log.open(tmp_path / "streams", {}, report=print)
        directory = log.create(StreamSettings("s", partitions=2)).directory
        log.close()
        shutil.rmtree(directory / file_names.partition(1))
        calls.clear()
        Log.open(tmp_path / "streams", None, report=print).close()
        assert ("sync", directory) in calls


def written(root: Path) -> Path:
    """A log with a message, and the segment it is in."""
    with Writing(root) as writing:
        writing.create()
        writing.put(b"x")
        (segment,) = segments(root)
    return segment


def test_files_of_the_access_door(tmp_path: Path, calls: list[tuple[str, Path]]) -> None:
    write_whole(str(tmp_path / "users"), "text", 0o600)
    assert calls[-1] == ("sync", tmp_path)

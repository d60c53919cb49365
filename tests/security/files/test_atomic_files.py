"""Small files: whole or not there, with the mode and owner they had, by one writer at a time."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from mqtt_broker.security.files.atomic_files import locked, open_to_others, write_whole


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_whole(str(path), "änn\n", 0o640)
    assert path.read_bytes() == "änn\n".encode()
    assert mode_of(path) == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["users"]


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("old, and much longer than what follows\n")
    path.chmod(0o604)
    write_whole(str(path), "new\n", 0o640)
    assert path.read_text() == "new\n"
    assert mode_of(path) == 0o604


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("is_there", [True, False])
def test_root_writes_for_the_owner(tmp_path: Path, is_there: bool) -> None:
    """A new file is the directory's owner's, so that the broker can read it."""
    path = tmp_path / "users"
    os.chown(tmp_path, 1234, 4321)
    owner = (1234, 4321)
    if is_there:
        path.write_text("old\n")
        owner = (2345, 5432)
        os.chown(path, *owner)
    write_whole(str(path), "new\n", 0o600)
    assert (path.stat().st_uid, path.stat().st_gid) == owner


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "users", tmp_path / "users"
    target.write_text("old\n")
    link.symlink_to(target)
    write_whole(str(link), "new\n", 0o600)
    assert link.is_symlink() and target.read_text() == "new\n"
    assert [one.name for one in (tmp_path / "there").iterdir()] == ["users"]


@pytest.mark.parametrize("is_link", [False, True])
def test_what_a_dead_writer_left_is_replaced_and_not_followed(
    tmp_path: Path, is_link: bool
) -> None:
    path, left, elsewhere = tmp_path / "users", tmp_path / "users.part", tmp_path / "elsewhere"
    elsewhere.write_text("not ours\n")
    if is_link:
        left.symlink_to(elsewhere)
    else:
        left.write_text("half\n")
        left.chmod(0o666)
    write_whole(str(path), "new\n", 0o600)
    assert path.read_text() == "new\n" and mode_of(path) == 0o600
    assert elsewhere.read_text() == "not ours\n" and not left.exists()


def test_a_link_that_somebody_puts_there_in_between_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours\n")
    (tmp_path / "users.part").symlink_to(elsewhere)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # it is back at once
    with pytest.raises(FileExistsError):
        write_whole(str(tmp_path / "users"), "new\n", 0o600)
    assert elsewhere.read_text() == "not ours\n"


@pytest.mark.parametrize("call", ["fsync", "fchmod", "replace"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "users"
    write_whole(str(path), "old\n", 0o600)

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "replace" else os, call, fail)
        with pytest.raises(OSError, match="No space"):
            write_whole(str(path), "new\n", 0o600)
    assert path.read_text() == "old\n"
    assert [one.name for one in tmp_path.iterdir()] == ["users"]


def test_a_text_that_is_no_unicode_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_whole(str(path), "old\n", 0o600)
    with pytest.raises(UnicodeEncodeError):
        write_whole(str(path), "half a pair \ud800\n", 0o600)
    assert path.read_text() == "old\n"
    assert [one.name for one in tmp_path.iterdir()] == ["users"]


def test_it_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users"
    said: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        said.append("sync " + os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(tmp_path)))
        fsync(fd)

    def replaced(one: Path, other: Path) -> Path:
        said.append("rename")
        return replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_whole(str(path), "x\n", 0o600)
    assert said == ["sync /users.part", "rename", "sync "]


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("")

    def add(number: int) -> None:
        for _ in range(5):
            with locked(str(path)):  # read, change, write: nobody's line is lost
                write_whole(str(path), f"{path.read_text()}{number}\n", 0o600)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(path.read_text().split()) == sorted(str(n) for n in range(6) for _ in range(5))


def test_the_lock_goes_with_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "list")
    with pytest.raises(ValueError, match="in between"), locked(path):
        raise ValueError("in between")
    with locked(path):
        pass


@pytest.mark.parametrize(
    ("mode", "is_open"),
    [(0o600, False), (0o640, False), (0o664, True), (0o602, True), (0o601, False)],
)
def test_who_may_read_it(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = tmp_path / "key"
    path.touch()
    path.chmod(mode)
    assert open_to_others(str(path)) is is_open

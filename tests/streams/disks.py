"""Disks that fail, that die, and that lose their power."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mqtt_broker.streams.format.disk import Disk


class Watched(Disk):
    """Every call that changes something is announced before it is made."""

    def __init__(self) -> None:
        self.calls = 0
        self._one = threading.RLock()  # of the threads that sync at once

    def before(self, what: str) -> None:
        self.calls += 1

    def open(self, path: Path) -> int:
        self.before(f"open {path.name}")
        return super().open(path)

    def write_some(self, file: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        self.before("write")
        return super().write_some(file, buffers, position)

    def sync(self, file: int) -> None:
        with self._one:
            self.before("sync")
            super().sync(file)

    def truncate(self, file: int, size: int) -> None:
        self.before("truncate")
        super().truncate(file, size)

    def sync_directory(self, path: Path) -> None:
        self.before("sync directory")
        super().sync_directory(path)

    def rename(self, path: Path, to: Path) -> None:
        self.before("rename")
        super().rename(path, to)

    def remove(self, path: Path) -> None:
        self.before("remove")
        super().remove(path)

    def make_directory(self, path: Path) -> None:
        self.before("make directory")
        super().make_directory(path)


class Failing(Watched):
    """The n-th call fails, and so many behind it. A write writes a part before that."""

    def __init__(
        self, nth: int, count: int = 1, *, is_after: bool = False, is_partial: bool = True
    ) -> None:
        super().__init__()
        self.failing = range(nth, nth + count)
        self._is_after = is_after  # it is done, and an error is said all the same
        self._is_partial = is_partial
        self.failed: list[str] = []

    def before(self, what: str) -> None:
        self.calls += 1
        if self.calls in self.failing and not self._is_after:
            self._fail(what)

    def _fail(self, what: str) -> None:
        self.failed.append(what)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _after(self, what: str) -> None:
        if self._is_after and self.calls in self.failing:
            self._fail(what)

    def write_some(self, file: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        if self.calls + 1 in self.failing and self._is_partial:
            part = bytes(buffers[0])[: len(buffers[0]) * 2 // 3]
            os.pwrite(file, part, position)
        done = super().write_some(file, buffers, position)
        self._after("write")
        return done

    def sync(self, file: int) -> None:
        with self._one:
            super().sync(file)
            self._after("sync")

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._after("sync directory")

    def rename(self, path: Path, to: Path) -> None:
        super().rename(path, to)
        self._after("rename")


class Stuttering(Disk):
    """Writes a few bytes at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def write_some(self, file: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        data = b"".join(buffers)
        return os.pwrite(file, data[: self._rng.randint(1, 300)], position)


class Mortal(Watched):
    """Calls `on_moment` before every change, and knows what would be left without power.

    On disk for certain is what `sync` saw of a file, and what `sync_directory` saw of names.
    Of the rest anything may be there: see `image`.
    """

    def __init__(self, root: Path, on_moment: Callable[[], None]) -> None:
        super().__init__()
        self.root = root
        self._on_moment = on_moment
        self._contents: dict[int, bytes] = {}  # by inode, as synced
        self._names: dict[Path, dict[str, int]] = {}  # by directory: name -> inode

    def before(self, what: str) -> None:
        super().before(what)
        self._on_moment()

    def sync(self, file: int) -> None:
        with self._one:
            super().sync(file)
            self._know(file)

    def _know(self, file: int) -> None:
        status = os.fstat(file)
        self._contents[status.st_ino] = os.pread(file, status.st_size, 0)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._names[path] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}

    def rename(self, path: Path, to: Path) -> None:
        super().rename(path, to)
        for known in [known for known in self._names if known.is_relative_to(path)]:
            self._names[to / known.relative_to(path)] = self._names.pop(known)

    def image(self, to: Path, rng: random.Random) -> None:
        """What may be found when the power is back: of what was not synced some, or none."""
        inodes = {path.stat().st_ino: path for path in self.root.rglob("*")}
        self._image(self.root, to, inodes, rng)

    def _image(self, path: Path, to: Path, inodes: dict[int, Path], rng: random.Random) -> None:
        to.mkdir()
        now = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        found = dict(self._names.get(path, {}))
        for name in sorted(now.keys() | found.keys()):
            if now.get(name) != found.get(name) and rng.random() < 0.5:
                if name in now:
                    found[name] = now[name]
                else:
                    del found[name]
        for name, inode in found.items():
            actual = inodes.get(inode)
            if actual is not None and actual.is_dir():
                self._image(actual, to / name, inodes, rng)
            elif actual is None and inode not in self._contents:
                (to / name).write_bytes(b"")  # removed, and never synced
            else:
                whole = actual.read_bytes() if actual is not None else self._contents[inode]
                (to / name).write_bytes(self._content(inode, whole, rng))

    def _content(self, inode: int, whole: bytes, rng: random.Random) -> bytes:
        safe = self._contents.get(inode, b"")
        if not whole.startswith(safe):
            return rng.choice((safe, whole))
        tail = whole[len(safe) :]
        kind = rng.randrange(4)
        if kind == 0 or not tail:
            return safe
        cut = rng.randint(0, len(tail))
        if kind == 1:
            return whole
        return safe + tail[:cut] if kind == 2 else safe + bytes(cut) + tail[cut:]


class Small(Disk):
    """A file system of so many blocks of 4 KB, with everything under `root`."""

    def __init__(self, root: Path, blocks_max: int) -> None:
        self._root = root
        self._blocks_max = blocks_max

    def write_some(self, file: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        size = os.fstat(file).st_size
        grown = max(size, position + sum(map(len, buffers)))
        if self.blocks - _blocks(size) + _blocks(grown) > self._blocks_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write_some(file, buffers, position)

    @property
    def blocks(self) -> int:
        return sum(_blocks(path.stat().st_size) for path in self._root.rglob("*"))


def _blocks(size: int) -> int:
    return -(-size // 4_096)

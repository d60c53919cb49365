"""A disk as the calls of a process made it, and what may be left of it without power.

On it for certain is what fsync or fdatasync had returned for: of a file its bytes, of a
directory its names. Of everything later anything may be there: none, all, some, sectors of it,
a name without its bytes and bytes without their name. A rename is done or not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.powerloss.traces import Call

SECTORS: Final = (512, 4_096)
MODES: Final = ("nothing", "everything", "prefix", "random", "torn", "names", "bytes")
_SYNCS: Final = frozenset({"fsync", "fdatasync"})
_NAMES: Final = frozenset({"mkdir", "unlink", "rename", "renameat", "renameat2"})
_WRITES: Final = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2"})


@dataclass(slots=True)
class Change:
    """One write (`at` and `data`) or truncation (`at` alone)."""

    seq: int
    at: int
    data: bytes | None = None


@dataclass(eq=False, slots=True)
class File:
    safe: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    size: int = 0

    def sync(self, until: int) -> None:
        for change in self.pending:
            if change.seq < until:
                _apply(self.safe, change)
        self.pending = [change for change in self.pending if change.seq >= until]


@dataclass(eq=False, slots=True)
class Directory:
    now: dict[str, File | Directory] = field(default_factory=dict)
    safe: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[tuple[int, str, File | Directory | None]] = field(default_factory=list)

    def put(self, seq: int, name: str, entry: File | Directory | None) -> None:
        if entry is None:
            self.now.pop(name, None)
        else:
            self.now[name] = entry
        self.pending.append((seq, name, entry))

    def sync(self, until: int) -> None:
        for seq, name, entry in self.pending:
            if seq < until:
                _name(self.safe, name, entry)
        self.pending = [change for change in self.pending if change[0] >= until]


def _apply(data: bytearray, change: Change) -> None:
    if change.data is None:
        if change.at < len(data):
            del data[change.at :]
        else:
            data.extend(bytes(change.at - len(data)))
        return
    if change.at > len(data):
        data.extend(bytes(change.at - len(data)))
    data[change.at : change.at + len(change.data)] = change.data


def _name(names: dict[str, File | Directory], name: str, entry: File | Directory | None) -> None:
    if entry is None:
        names.pop(name, None)
    else:
        names[name] = entry


@dataclass(slots=True)
class Open:
    """An open file or directory of a process."""

    what: File | Directory
    path: Path
    position: int = 0


class Disk:
    """Everything under `root`, which is there and safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Directory()
        self.seq = 0
        self._open: dict[tuple[int, int], Open] = {}  # by life and descriptor

    # Going on.

    def play(self, calls: list[Call]) -> Iterator[tuple[Call, bool]]:
        """Each call as it begins, or (True) as it ended: a sync is worth something only then."""
        events = [(call.start, 0, at, call) for at, call in enumerate(calls)]
        events += [
            (call.end, 1, at, call)
            for at, call in enumerate(calls)
            if call.end is not None and (call.name in _SYNCS or call.name.startswith("open"))
        ]
        begun: dict[int, int] = {}
        for _, is_end, at, call in sorted(events, key=lambda event: event[:3]):
            if call.name in _SYNCS:
                if is_end:
                    self._sync(call, begun[at])
                else:
                    begun[at] = self.seq + 1
            elif call.name.startswith("open"):
                if is_end:
                    self._on_open(call)
            else:
                self._on_call(call)
            if is_end or call.name not in _SYNCS:
                yield call, bool(is_end)

    def kind(self, call: Call) -> str:
        """The part of a call that was played: `names` or `bytes` synced, `changes`, `packets`."""
        if call.name in ("sendto", "sendmsg"):
            return "packets"
        if call.name in _SYNCS or call.name in _WRITES:
            opened = self._open.get((call.life, call.number(0)))
            if opened is None:
                return ""
            if call.name in _WRITES:
                return "changes"
            return "names" if isinstance(opened.what, Directory) else "bytes"
        is_change = call.name in _NAMES or "O_CREAT" in call.args
        return "changes" if is_change and any(map(self.is_ours, self._paths(call))) else ""

    def _sync(self, call: Call, until: int) -> None:
        opened = self._open.get((call.life, call.number(0)))
        if opened is not None:
            opened.what.sync(until)

    def _find(self, path: Path) -> File | Directory | None:
        found: File | Directory | None = self.top
        for part in path.relative_to(self.root).parts:
            if not isinstance(found, Directory):
                return None
            found = found.now.get(part)
        return found

    def _parent(self, path: Path) -> Directory:
        found = self._find(path.parent)
        assert isinstance(found, Directory), f"{path.parent} is not known"
        return found

    def _paths(self, call: Call) -> list[Path]:
        """The paths of a call, those that are below the root."""
        words = [word.strip() for word in call.args.split(",")]
        found: list[Path] = []
        for at, word in enumerate(words):
            if word == '""' or word == "":
                text = call.texts[len(found)] if len(found) < len(call.texts) else b""
                path = Path(text.decode())
                before = words[at - 1] if at else "AT_FDCWD"
                if not path.is_absolute() and re.fullmatch(r"\d+", before):
                    base = self._open.get((call.life, int(before)))
                    path = base.path / path if base is not None else path
                found.append(path)
        return found

    def is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self.root) and path != self.root

    def _on_open(self, call: Call) -> None:
        path = self._paths(call)[0]
        key = call.life, call.result
        self._open.pop(key, None)
        if not path.is_relative_to(self.root):
            return
        found = self._find(path)
        if found is None:
            if "O_CREAT" not in call.args:
                return
            found = File()
            self.seq += 1
            self._parent(path).put(self.seq, path.name, found)
        if "O_TRUNC" in call.args and isinstance(found, File) and found.size:
            self._change(found, 0, None)
        self._open[key] = Open(found, path)
        if "O_APPEND" in call.args and isinstance(found, File):
            self._open[key].position = found.size

    def _change(self, file: File, at: int, data: bytes | None) -> None:
        self.seq += 1
        file.pending.append(Change(self.seq, at, data))
        file.size = at if data is None else max(file.size, at + len(data))

    def _on_call(self, call: Call) -> None:
        name = call.name
        if name in ("sendto", "sendmsg", "recvfrom", "recvmsg"):
            return
        if name in ("accept", "accept4"):
            self._open.pop((call.life, call.result), None)
        elif name == "close":
            self._open.pop((call.life, call.number(0)), None)
        elif name in _WRITES:
            self._on_write(call)
        elif name == "ftruncate":
            opened = self._open.get((call.life, call.number(0)))
            if opened is not None and isinstance(opened.what, File):
                self._change(opened.what, call.number(1), None)
        elif name in ("dup", "dup2", "dup3"):
            opened = self._open.get((call.life, call.number(0)))
            assert opened is None, "a descriptor of the disk is doubled"
        else:
            self._on_name(call)

    def _on_write(self, call: Call) -> None:
        opened = self._open.get((call.life, call.number(0)))
        if opened is None or not isinstance(opened.what, File):
            return
        data = b"".join(call.texts)
        if call.end is not None:
            data = data[: call.result]
        if call.name in ("write", "writev"):
            at = opened.position
            opened.position += len(data)
        else:
            words = call.args.split(", ")
            at = int(words[-2] if call.name == "pwritev2" else words[-1])
        self._change(opened.what, at, data)

    def _on_name(self, call: Call) -> None:
        """A change of names: done at once, as others see it."""
        paths = self._paths(call)
        if not any(self.is_ours(path) for path in paths):
            return
        self.seq += 1
        seq = self.seq
        path = paths[0]
        if call.name in ("mkdir", "mkdirat"):
            self._parent(path).put(seq, path.name, Directory())
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            self._parent(path).put(seq, path.name, None)
        elif call.name in ("rename", "renameat", "renameat2"):
            found = self._find(path)
            assert found is not None, path
            self._parent(path).put(seq, path.name, None)
            self._parent(paths[1]).put(seq, paths[1].name, found)
        else:
            raise AssertionError(f"a call that is not known: {call.name}({call.args})")

    # What is left.

    def image(self, to: Path, mode: str, rng: random.Random) -> None:
        """One state in which the machine may come back."""
        until = rng.randint(0, self.seq + 1)
        chance = rng.choice([0.1, 0.5, 0.9])
        sector = rng.choice(SECTORS)
        decided: dict[int, bool] = {}

        def keeps(seq: int, is_name: bool) -> bool:
            if seq not in decided:
                decided[seq] = {
                    "nothing": False,
                    "everything": True,
                    "prefix": seq < until,
                    "names": is_name,
                    "bytes": not is_name,
                }.get(mode, rng.random() < chance)
            return decided[seq]

        self._image(self.top, to, keeps, sector if mode == "torn" else 0, rng)

    def _image(
        self,
        directory: Directory,
        to: Path,
        keeps: Callable[[int, bool], bool],
        sector: int,
        rng: random.Random,
    ) -> None:
        to.mkdir()
        names = dict(directory.safe)
        for seq, name, entry in directory.pending:
            if keeps(seq, True):
                _name(names, name, entry)
        for name, entry in names.items():
            if isinstance(entry, Directory):
                self._image(entry, to / name, keeps, sector, rng)
            elif not name.endswith("-shm"):  # shared memory, of no meaning to another process
                (to / name).write_bytes(_content(entry, keeps, sector, rng))


def _content(
    file: File, keeps: Callable[[int, bool], bool], sector: int, rng: random.Random
) -> bytes:
    data = bytearray(file.safe)
    for change in file.pending:
        if change.data is None or not sector:
            if keeps(change.seq, False):
                _apply(data, change)
            continue
        at, end = change.at, change.at + len(change.data)
        while at < end:
            upto = min(end, (at // sector + 1) * sector)
            if rng.random() < 0.5:
                part = change.data[at - change.at : upto - change.at]
                _apply(data, Change(change.seq, at, part))
            at = upto
    return bytes(data)

"""What a process asked the kernel for, as strace saw it: every write, name, sync and packet.

    subprocess.run(traced(prefix, [...]))      # runs the command under strace
    calls = read(prefix, life)                 # in their order

strace sees what no wrapper in the process could: SQLite's own writes, and those of libraries.
Each thread has a file of its own, so no call is cut in two; times put them in order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

CALLS: Final = (
    "openat,open,creat,close,dup,dup2,dup3,mkdir,mkdirat,rename,renameat,renameat2,unlink,"
    "unlinkat,rmdir,link,linkat,truncate,ftruncate,fallocate,write,writev,pwrite64,pwritev,"
    "pwritev2,fsync,fdatasync,sendto,sendmsg,recvfrom,recvmsg,accept,accept4"
)
_LINE: Final = re.compile(r"(\d+)\.(\d{9}) (\w+)\((.*)$")
_END: Final = re.compile(r"\)\s+= (-?\d+|\?)(?: (?:[^<]*|<unavailable>))?(?:<(\d+)\.(\d+)>)?$")
_CUT: Final = re.compile(r" <(?:unfinished|detached) \.\.\.>$")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that did something, or was about to when the process died."""

    life: int
    start: int  # ns
    end: int | None  # None: the process died in it
    name: str
    args: str  # its strings are `texts`
    texts: tuple[bytes, ...]
    result: int

    def number(self, place: int) -> int:
        """The argument at that place, when it is a number; strings are left out of `args`."""
        return int(self.args.split(", ")[place], 0)


@cache
def why_not() -> str:
    """Why nothing can be traced here; empty: it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=close", "-o", "/dev/null", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


def traced(prefix: Path, command: list[str]) -> list[str]:
    """The command under strace."""
    options = ["-f", "-ff", "-o", str(prefix), "--seccomp-bpf", "-xx", "-s", "100000000"]
    options += ["--timestamps=unix,ns", "--syscall-times=ns", "-e", "signal=none"]
    return ["strace", *options, "-e", f"trace={CALLS}", *command]


def read(prefix: Path, life: int) -> list[Call]:
    """The calls of one life that succeeded, by the time at which each began."""
    found: list[Call] = []
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        found += _read(path, life)
    return sorted(found, key=lambda call: call.start)


def _read(path: Path, life: int) -> Iterator[Call]:
    with path.open() as lines:
        for line in lines:
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                continue  # the end of the thread
            seconds, nanoseconds, name, rest = found.groups()
            start = int(seconds) * 1_000_000_000 + int(nanoseconds)
            over = _END.search(rest)
            if over is None:
                head, result, end = _CUT.sub("", rest), 0, None
            else:
                head = rest[: over.start()]
                result = 0 if over[1] == "?" else int(over[1])
                end = None
                if over[2] is not None and over[1] != "?":
                    end = start + int(over[2]) * 1_000_000_000 + int(over[3].ljust(9, "0"))
            if result < 0:
                continue
            texts = tuple(bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(head))
            yield Call(life, start, end, name, _TEXT.sub("", head), texts, result)

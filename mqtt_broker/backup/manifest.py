"""Describe a backup: `manifest.json` in its directory, with a checksum of every file.

    {"fleetmq": "backup", "format": 1, "version": "1.4.0", "created_at": 1700000000.0,
     "state": "sqlite", "streams": {"telemetry": {"epoch": ..., "starts": [0], "ends": [17]}},
     "files": {"fleetmq.db": {"bytes": 4096, "sha256": ...}, ...}, "sha256": ...}

The last member is the checksum of the manifest itself: of its text without that member.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mqtt_broker.streams.write.log_copy import CopiedStream
from sessions.store.online_copy import LINES, SQLITE

FILE: Final = "manifest.json"
FORMAT: Final = 1
UNFINISHED: Final = ".part"
STREAMS: Final = "streams"  # the directory of the log
_MANIFEST_BYTES_MAX: Final = 1 << 30
_KINDS: Final = (SQLITE, LINES)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class BackupError(Exception):
    """A backup cannot be made, read or restored; the text is one line."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """The size and the checksum of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup."""

    version: str  # of the broker that made it
    created_at: float  # Unix time of the moment that it shows
    state: str  # a kind of copy: see `sessions.store.online_copy`
    streams: Mapping[str, CopiedStream]
    files: Mapping[str, FileSum]  # by path in the backup, with slashes

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(one.bytes for one in self.files.values())

    def encode(self) -> str:
        """Return the text of the file."""
        found: dict[str, Any] = {"fleetmq": "backup", "format": FORMAT, **asdict(self)}
        return _text(found | {"sha256": digest(found)})


def _text(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def digest(found: object) -> str:
    """Return the checksum of a manifest without that member."""
    return hashlib.sha256(_text(found).encode()).hexdigest()


def read(directory: Path) -> Manifest:
    """Read the manifest of a backup; BackupError when it is not a whole backup."""
    path = directory / FILE
    if directory.name.endswith(UNFINISHED):
        raise BackupError(f"{directory} is not complete: its backup was interrupted")
    try:
        if path.stat().st_size > _MANIFEST_BYTES_MAX:
            raise BackupError(f"{path} is too large for a manifest")
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(f"{directory} is not a backup: it has no {FILE}") from None
    except UnicodeDecodeError:
        raise BackupError(f"{path} is damaged: it is not UTF-8") from None
    except OSError as error:
        raise BackupError(explain_error(error, path)) from None
    return _decode(path, text)


def _decode(path: Path, text: str) -> Manifest:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BackupError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(found, dict) or found.get("fleetmq") != "backup":
        raise BackupError(f"{path} is not the manifest of a backup")
    if found.get("format") != FORMAT:
        raise BackupError(
            f"{path}: the backup has format {str(found.get('format'))[:20]}, and this version "
            f"reads {FORMAT}: use the FleetMQ that made it, or a newer one"
        )
    if found.pop("sha256", None) != digest(found):
        raise BackupError(f"{path} is damaged: it does not match its checksum")
    try:
        manifest = Manifest(
            str(found["version"]),
            float(found["created_at"]),
            str(found["state"]),
            {name: _stream(one) for name, one in found["streams"].items()},
            {
                _checked_name(name): FileSum(int(one["bytes"]), str(one["sha256"]))
                for name, one in found["files"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackupError(f"{path} is invalid: {error!r}") from None
    if manifest.state not in _KINDS:
        raise BackupError(f"{path} is invalid: unknown kind of state {manifest.state[:40]!r}")
    return manifest


def _stream(found: Mapping[str, Any]) -> CopiedStream:
    starts, ends = tuple(map(int, found["starts"])), tuple(map(int, found["ends"]))
    return CopiedStream(str(found["epoch"]), starts, ends)


def _checked_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is outside of the backup")
    return name


def explain_error(error: Exception, path: Path) -> str:
    """Describe what failed while a backup was written or read, in one line."""
    if isinstance(error, OSError):
        said = "disk full" if error.errno in _FULL else error.strerror or str(error)
        return f"{error.filename or path}: {said}"
    return str(error)

"""Figures of backups, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class BackupFigures:
    """A backup that is being made, was made or failed."""

    id: str
    state: str  # running, done or failed
    directory: str
    started_at: float  # Unix time
    finished_at: float = 0.0  # 0: it is running
    created_at: float = 0.0  # the moment that it shows; 0: there is none yet
    phase: str = ""  # while it is running: what is done now, in so many bytes
    bytes_done: int = 0
    bytes_total: int = 0
    bytes: int = 0  # of all files, once it is done
    files: int = 0
    error: str = ""

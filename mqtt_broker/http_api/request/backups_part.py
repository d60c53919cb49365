"""The part of the broker's interface that takes backups."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, Protocol

from mqtt_broker.backup.figures import BackupFigures
from mqtt_broker.http_api.request.broker_interface import Part


class Backups(Protocol):
    """The backups of a broker. The futures raise BackupError."""

    def begin(self, directory: str = "") -> Future[BackupFigures]:
        """Begin a backup in a new directory of this name or path."""
        ...

    def figures(self) -> Future[list[BackupFigures]]:
        """Return the backups there are, the latest first."""
        ...


BACKUPS: Final[Part[Backups]] = Part(
    "state on disk to back up: it keeps everything in memory; set durability to commit"
)

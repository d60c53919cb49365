"""`/api/v1/backups`: take a backup of state and streams while the broker runs, and follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from mqtt_broker.backup.figures import BackupFigures
from mqtt_broker.backup.manifest import BackupError
from mqtt_broker.http_api.request.access import ADMIN
from mqtt_broker.http_api.request.backups_part import BACKUPS
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Call, Operation, Reply, get, post
from mqtt_broker.http_api.request.paging import Page, Paging, take_page
from mqtt_broker.http_api.request.problems import Problem

ROOT: Final = "/api/v1/backups"
_SORT: Final = "-started_at"
_PATH_CHARS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class NewBackup:
    """A backup to take."""

    directory: Annotated[
        str,
        Limits(
            chars_max=_PATH_CHARS_MAX,
            text="name of a new directory below backups/ in the data directory, by default the "
            "time; or an absolute path on the broker's machine, for admins",
        ),
    ] = ""


def operations(site: Site) -> list[Operation]:
    """Return the operations of backups."""
    page = _Backups(site)
    return [
        get(ROOT, page.list, errors=(409,)),
        post(ROOT, page.begin, status=202, errors=(409,)),
        get(ROOT + "/{id}", page.show, errors=(404, 409)),
    ]


class _Backups:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self, query: Paging) -> Page[BackupFigures]:
        """List the backups of this broker, the latest first.

        They are those that this process has made or begun, and those in `backups/` of the data
        directory.
        """
        return await take_page(
            await self._figures(),
            query,
            lambda one: (one.started_at, one.id),
            lambda one: one,
            _SORT,
        )

    async def begin(self, body: NewBackup, call: Call) -> Reply[BackupFigures]:
        """Begin a backup of state and streams; it goes on while the broker does.

        One runs at a time. It is complete when `state` is done, and in a directory that exists
        from then on.
        """
        if Path(body.directory).is_absolute() and call.caller.role < ADMIN:
            raise Problem(
                403, "Forbidden", "an absolute path is for admins: give a name, or leave it out"
            )
        try:
            found = await self._site.ask(self._site.broker.part(BACKUPS).begin, body.directory)
        except BackupError as error:
            raise Problem(409, "BackupRefused", str(error)) from None
        return Reply(found, headers={"Location": f"{ROOT}/{quote(found.id)}"})

    async def show(self, id: str) -> BackupFigures:
        """Show a backup, and how far it is."""
        for one in await self._figures():
            if one.id == id:
                return one
        raise Problem(404, "UnknownBackup", f"there is no backup {id[:200]!r}")

    async def _figures(self) -> Sequence[BackupFigures]:
        return await self._site.ask(self._site.broker.part(BACKUPS).figures)

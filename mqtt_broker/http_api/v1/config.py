"""`/api/v1/config` and `/reload`: the configuration in force, and what a reload takes up."""

from __future__ import annotations

from typing import Final

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import OPERATING, ConfigFigures, ReloadFigures
from mqtt_broker.http_api.request.operations import Operation, get, post

ROOT: Final = "/api/v1"


def operations(site: Site) -> list[Operation]:
    """Return the operations of the configuration."""
    page = _Config(site)
    return [
        get(f"{ROOT}/config", page.show, role=access.OPERATOR, etag=True),
        post(f"{ROOT}/reload", page.reload),
    ]


class _Config:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self) -> ConfigFigures:
        """Show the configuration in force, with where each value comes from.

        Passwords and tokens are left out. `holds` of a value says from when on a reload takes a
        change up; it is empty if that needs a restart.
        """
        return self._site.broker.part(OPERATING).config()

    async def reload(self) -> ReloadFigures:
        """Read the configuration and every file that it names again.

        The answer says which keys hold now, which need a restart, and which files failed; their
        old content stays in force.
        """
        return await self._site.ask(self._site.broker.part(OPERATING).reload)

"""`/api/v1/health`: the health of the broker in parts."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import OPERATING, HealthPart
from mqtt_broker.http_api.request.operations import Operation, get

PATH: Final = "/api/v1/health"
_ORDER: Final = ("ok", "degraded", "failing")


class Health(TypedDict):
    """The health of the broker: that of its worst part."""

    status: Annotated[str, Limits(text="ok, degraded or failing")]
    parts: Annotated[list[HealthPart], Limits(text="store, log, loop, disk, certificates, events")]


def operations(site: Site) -> list[Operation]:
    """Return the operation of health."""

    async def health() -> Health:
        """Show the health of the store, the log, the loop, the disk, certificates and events.

        Degraded: a tenth of the disk or less is free, a certificate ends within 14 days, publishers
        wait for the log, the loop is more than half a second late, events of clients cannot be
        written.
        """
        found = await site.ask(site.broker.part(OPERATING).health)
        parts = list(found)
        worst = max((_ORDER.index(part.status) for part in parts), default=0)
        return {"status": _ORDER[worst], "parts": parts}

    return [get(PATH, health)]

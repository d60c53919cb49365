"""Publish what clients do, under `$SYS/broker/clients/<client id>/`, if the settings ask for it."""

from __future__ import annotations

import json
from typing import Final

from mqtt_broker.codec.constants import STRING_BYTES_MAX
from mqtt_broker.core.routing.router import Router
from sessions.messages.message import single

ROOT: Final = "$SYS/broker/clients/"


class ClientEvents:
    __slots__ = ("_router", "is_wanted")

    def __init__(self, router: Router, *, is_wanted: bool) -> None:
        self._router = router
        self.is_wanted = is_wanted

    def want(self, *, is_wanted: bool) -> None:
        """Publish events from now on, or no more."""
        self.is_wanted = is_wanted

    def publish(self, client_id: str, event: str, fields: dict[str, object], now: float) -> None:
        """Publish one event of one client, if events are wanted.

        A client id may hold what a topic level may not: it is quoted.
        """
        if not self.is_wanted:
            return
        quoted = client_id.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")
        topic = f"{ROOT}{quoted.replace('#', '%23')}/{event}"
        if len(topic.encode()) > STRING_BYTES_MAX:
            return  # a name so long that no topic can hold it
        body = json.dumps({**fields, "at": round(now, 3)})
        message = single(topic, body.encode(), publisher="$broker", now=now)
        self._router.publish(message, None, now)

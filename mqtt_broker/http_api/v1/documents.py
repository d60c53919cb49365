"""`/api/v1/openapi.json`: the document of all operations, which is made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mqtt_broker.http_api.request import openapi
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.version import __version__

PATH: Final = "/api/v1/openapi.json"


def operations(others: Sequence[Operation]) -> list[Operation]:
    """Return the operation that describes the others, and itself."""
    made: dict[str, Any] = {}

    async def show() -> dict[str, Any]:
        """Describe the API: this document."""
        if not made:
            made.update(openapi.document([*others, own], __version__))
        return made

    own = get(PATH, show, is_open=True, etag=True)
    return [own]

"""Read the limits of one client: `[[client_limits]]`, and `limits` of a listener.

A key that is also a setting of the broker has the same meaning and range here. `core.limits`
decides which limits apply to which client.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from mqtt_broker.core.limits.client_limits import ANY_RATE, ClientLimits
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.tables import Table

RATES: Final = {
    "messages_per_s": 1e9,
    "bytes_per_s": 1e12,
    "sent_messages_per_s": 1e9,
    "sent_bytes_per_s": 1e12,
}
KEYS: Final = tuple(found.name for found in dataclasses.fields(ClientLimits))
_SETTINGS: Final = {found.name: found for found in dataclasses.fields(Settings)}
_UNLIMITED: Final = ClientLimits()


def read_limits(table: Table) -> ClientLimits | None:
    """Return the limits of the table; None when it sets none."""
    values: dict[str, Any] = {}
    for key in KEYS:
        if key not in table:
            continue
        if key in RATES:
            values[key] = table.number(key, 0.0, 0.0, RATES[key]) or ANY_RATE
        elif key == "retain_available":
            values[key] = table.flag(key, True)
        elif key == "subscriptions_max":  # 0 or less: no limit of its own
            values[key] = table.whole(key, 0, 0, 10_000_000) or _UNLIMITED.subscriptions_max
        else:
            meta = _SETTINGS[key].metadata
            values[key] = table.whole(key, 0, meta["low"], meta["high"])
    found = ClientLimits(**values)
    return None if found == _UNLIMITED else found

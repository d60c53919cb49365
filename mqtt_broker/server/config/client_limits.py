"""Limits of one client as the configuration file says them: `[[client_limits]]`, and `limits` of
a listener.

Keys that the settings have too mean what they mean there, and have the same range. Which limits
are in force where is decided in `core.limits`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from mqtt_broker.core.limits.client_limits import ANY_RATE, ClientLimits
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.tables import number, typed, whole

RATES: Final = {
    "messages_per_s": 1e9,
    "bytes_per_s": 1e12,
    "sent_messages_per_s": 1e9,
    "sent_bytes_per_s": 1e12,
}
KEYS: Final = tuple(found.name for found in dataclasses.fields(ClientLimits))
_SETTINGS: Final = {found.name: found for found in dataclasses.fields(Settings)}
_NOTHING: Final = ClientLimits()


def read_limits(row: dict[str, Any], where: str) -> ClientLimits | None:
    """Those of the row; None when it says nothing of them."""
    said: dict[str, Any] = {}
    for key in KEYS:
        if key not in row:
            continue
        if key in RATES:
            said[key] = number(row, key, 0.0, where, 0.0, RATES[key]) or ANY_RATE
        elif key == "retain_available":
            said[key] = typed(row, key, bool, True, where)
        elif key == "subscriptions_max":  # 0, as for a rate: none of its own
            said[key] = whole(row, key, 0, where, 0, 10_000_000) or _NOTHING.subscriptions_max
        else:
            meta = _SETTINGS[key].metadata
            said[key] = whole(row, key, 0, where, meta["low"], meta["high"])
    found = ClientLimits(**said)
    return None if found == _NOTHING else found

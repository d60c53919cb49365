"""The deprecated name of `iot_sim.devices.device_model`, kept for models of users."""

from __future__ import annotations

import warnings
from typing import Any, Final

from iot_sim.devices import device_model

_RENAMED: Final = {"Thing": "DeviceModel", "Order": "CommandHandler"}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    new = _RENAMED.get(name, name)
    value = getattr(device_model, new)
    warnings.warn(
        f"iot_sim.devices.thing.{name} is deprecated: use iot_sim.devices.device_model.{new}",
        DeprecationWarning,
        2,
    )
    return value

"""The catalogue of device models: find one by name, and make a device from a specification.

`make` is the only way to a device. It raises `ModelError`, one line that begins with the key, for
every mistake in a scenario, before anything is sent.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from iot_sim.devices.device import Device, Publication, Spec
from iot_sim.devices.device_model import DeviceModel, inherit
from iot_sim.devices.model_info import Command, ModelError, ModelInfo, Option, did_you_mean
from iot_sim.models.battery_sensor import INFO as BATTERY_SENSOR
from iot_sim.models.camera import INFO as CAMERA
from iot_sim.models.environment import INFO as ENVIRONMENT
from iot_sim.models.gateway import INFO as GATEWAY
from iot_sim.models.machine import INFO as MACHINE
from iot_sim.models.meter import INFO as METER
from iot_sim.models.sparkplug_node import INFO as SPARKPLUG_NODE
from iot_sim.models.tracker import INFO as TRACKER
from iot_sim.payloads import layouts
from iot_sim.payloads.schema import Field

__all__ = [
    "Command", "Field", "ModelError", "ModelInfo", "Option", "command", "find", "make", "models",
]  # fmt: skip

_MODELS: Final[Mapping[str, ModelInfo]] = {
    info.name: info
    for info in (
        ENVIRONMENT, METER, TRACKER, MACHINE, BATTERY_SENSOR, GATEWAY, CAMERA, SPARKPLUG_NODE,
    )
}  # fmt: skip

# The methods that a class of the user's own must have: those of `Device`.
_METHODS: Final = (
    "will", "will_delay_s", "subscriptions", "on_connected", "on_disconnected", "on_message",
    "next_at", "act", "pace", "wants_link", "goodbye",
)  # fmt: skip


def models() -> dict[str, ModelInfo]:
    """Return every model that comes with the simulator, by name."""
    return dict(_MODELS)


def find(name: str) -> ModelInfo:
    """Find a built-in model by its name, or a class of the user's own as `module:Class`."""
    if name in _MODELS:
        return _MODELS[name]
    if ":" in name:
        return _info_of(name, _load(name))
    raise ModelError(
        "model",
        f"no model {name!r}{did_you_mean(name, _MODELS)}; "
        "write a class of your own as package.module:Class",
    )


def make(name: str, spec: Spec) -> Device:
    """Check and complete a specification, and make its device."""
    info = find(name)
    spec = info.complete(spec)
    if spec.payload == layouts.CBOR and importlib.util.find_spec("cbor2") is None:
        raise ModelError("payload", "cbor needs the package cbor2: pip install 'fleetmq[sim]'")
    if name in _MODELS:
        return info.build(spec)
    try:
        device = info.build(spec)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError("model", f"{name} cannot be made: {_one_line(error)}") from error
    if missing := [method for method in _METHODS if not callable(getattr(device, method, None))]:
        raise ModelError("model", f"{name} has no {', '.join(missing)}")
    return device


def command(model: str, spec: Spec, name: str, args: Mapping[str, Any]) -> Publication:
    """Make a command to a device, without response topic and correlation data."""
    info = find(model)
    if name not in info.commands:
        raise ModelError(
            "command", f"{info.name} has no command {name!r}{did_you_mean(name, info.commands)}"
        )
    return info.make_command(info.complete(spec), name, args)


def _load(name: str) -> type:
    path, _, cls = name.partition(":")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ModelError(
            "model", f"{name}: no module {error.name}; add its folder to PYTHONPATH"
        ) from None
    except Exception as error:
        raise ModelError("model", f"{name} cannot be imported: {_one_line(error)}") from error
    found = getattr(module, cls, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ModelError("model", f"{path} has no class {cls!r}{did_you_mean(cls, classes)}")
    return found


def _info_of(name: str, cls: type) -> ModelInfo:
    """Return the class's `INFO`, or one derived from the built-in model that it inherits."""
    declared = getattr(cls, "INFO", None)
    if isinstance(declared, ModelInfo):
        return declared
    if declared is not None:
        raise ModelError("model", f"{name}.INFO must be a ModelInfo, not {type(declared).__name__}")
    summary = (cls.__doc__ or name).strip().partition("\n")[0]
    if issubclass(cls, DeviceModel):
        return inherit(cls, name, summary, _MODELS.values())
    return ModelInfo(
        name=name,
        summary=summary,
        build=cast("Callable[[Spec], Device]", cls),  # `make` checks the object
        options=(),
        payloads=layouts.FORMATS,
        documents={"telemetry": ()},
        commands={},
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

"""The version of FleetMQ, and how it is built."""

import importlib.util
from typing import Final

__version__: Final = "0.1.0"


def build_kind() -> str:
    """Return "compiled" if the packages that do the work are C here, else "interpreted"."""
    found = importlib.util.find_spec("mqtt_broker.codec.decode")
    is_source = found is None or found.origin is None or found.origin.endswith(".py")
    return "interpreted" if is_source else "compiled"

"""The version of FleetMQ, and how it is built."""

import importlib.util
import os
import time
from typing import Final

__version__: Final = "0.1.0"


def build_time() -> str:
    """Return when this installation was made, as far as its files tell; as mosquitto writes it."""
    try:
        made_at = os.stat(__file__).st_mtime
    except OSError:  # in an archive
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S+0000", time.gmtime(made_at))


def build_kind() -> str:
    """Return "compiled" if the packages that do the work are C here, else "interpreted"."""
    found = importlib.util.find_spec("mqtt_broker.codec.decode")
    is_source = found is None or found.origin is None or found.origin.endswith(".py")
    return "interpreted" if is_source else "compiled"

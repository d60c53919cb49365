"""FleetMQ's broker. Each package's docstring says its rules; docs/ARCHITECTURE.md is the map."""

from mqtt_broker.version import __version__

__all__ = ["__version__"]

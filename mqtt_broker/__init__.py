"""FleetMQ's broker. Each room's docstring says its rules; docs/ARCHITECTURE.md is the map."""

from typing import Final

__version__: Final = "0.1.0"

"""Load the user's code that the configuration names: share strategies, partition functions.

Only the configuration can cause an import. Names that clients send over MQTT or HTTP, and names
stored with a stream, select among the functions that were loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.write.partition_functions import load_partition_functions
from mqtt_broker.topics.shared import STRATEGIES, StrategyFactory

if TYPE_CHECKING:
    from mqtt_broker.server.config.config import Config
    from mqtt_broker.streams.format.partitioning import PartitionFunctions


def load_strategy(name: str) -> StrategyFactory:
    """Return the built-in strategy of this name, or the class that `package.module:Class` names."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    module_name, _, class_name = name.partition(":")
    try:
        found: StrategyFactory = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a user's module may raise anything when it is imported
        raise ConfigError(f"shared_strategy {name}: {error}") from error
    if not callable(found):
        raise ConfigError(f"shared_strategy {name}: not a class")
    return found


def partition_functions(config: Config) -> PartitionFunctions:
    """Return the functions that the configuration names."""
    try:
        return load_partition_functions(config.functions)
    except Invalid as error:
        raise ConfigError(str(error)) from None

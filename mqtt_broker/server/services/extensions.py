"""Load the code of others that the configuration names: share strategies, partition functions.

Only the configuration names code. What clients send, over MQTT or HTTP, and what is stored with a
stream chooses among what was loaded, and is never imported.
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
    """Return the strategy of this name, or the user's own class by `package.module:Class`."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    module_name, _, class_name = name.partition(":")
    try:
        found: StrategyFactory = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a user's module may fail in any way when it is imported
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

"""Import partition functions by names from the configuration.

Names in the settings of a stream are never imported: clients of the HTTP API can write them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.partitioning import PartitionFunction


def load_partition_functions(names: Iterable[str]) -> dict[str, PartitionFunction]:
    """Return the functions of these dotted names. Raises Invalid if one cannot be imported."""
    return {name: _load(name) for name in names}


def _load(name: str) -> PartitionFunction:
    module, _, attribute = name.rpartition(".")
    try:
        found: PartitionFunction = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's code may raise anything
        why = f"{type(error).__name__}: {error}"
        raise Invalid("partition function", f"{name}: {why}") from None
    if not callable(found):
        raise Invalid("partition function", f"{name} is not a function")
    return found

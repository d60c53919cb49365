"""Import the functions that choose partitions, by names that the one who runs the program gives.

The settings of a stream are no such names: clients of the HTTP API write them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.partitioning import PartitionFunction


def load_partition_functions(names: Iterable[str]) -> dict[str, PartitionFunction]:
    """Return the functions of these dotted names; Invalid says which cannot be had."""
    return {name: _load(name) for name in names}


def _load(name: str) -> PartitionFunction:
    module, _, attribute = name.rpartition(".")
    try:
        found: PartitionFunction = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # other people's code
        why = f"{type(error).__name__}: {error}"
        raise Invalid("partition function", f"{name}: {why}") from None
    if not callable(found):
        raise Invalid("partition function", f"{name} is not a function")
    return found

"""Public names that are imported when they are first asked for (PEP 562).

A package's `__init__` lists them by the module that has each, so that `import mqtt_broker` loads
none of the modules that its names come from.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def attributes(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package; `places`: a module -> the names that it has."""
    modules = {name: module for module, names in places.items() for name in names.split()}

    def find(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, found)  # once: the next access finds it there
        return found

    return find

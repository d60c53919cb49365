"""Limit the nesting and the size of JSON, before recursive code walks it.

Python's parser accepts about 990 levels and refuses more. Code that writes, copies or compiles the
result may support fewer, and would fail half-way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LEVELS_MAX: Final = 64  # of a schema
VALUES_MAX: Final = 20_000
BODY_LEVELS_MAX: Final = 100  # of a request, which may hold a schema


def json_problem(value: Any, levels_max: int, values_max: int) -> str:
    """Return why a JSON value is too deep or too large, or "" if it is neither."""
    level = [value]
    count = 0
    for _ in range(levels_max):
        count += len(level)
        if count > values_max:
            return f"it has more than {values_max:,} values"
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return ""
    if any(isinstance(outer, Mapping | list | tuple) for outer in level):
        return f"it is nested in more than {levels_max} levels"
    return ""


def _inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()

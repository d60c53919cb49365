"""How deep and how large JSON may be is known without recursion."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from mqtt_broker.streams.format.nesting import json_problem


def nested(levels: int, *, is_list: bool = False) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found] if is_list else {"a": found}
    return found


@pytest.mark.parametrize("is_list", [False, True])
def test_levels_are_counted(is_list: bool) -> None:
    for levels in (0, 1, 9, 10):
        assert json_problem(nested(levels, is_list=is_list), 10, 100) == ""
    for levels in (11, 12, 100_000):
        found = json_problem(nested(levels, is_list=is_list), 10, 100)
        assert found == "it is nested in more than 10 levels"


def test_values_are_counted() -> None:
    assert json_problem([1] * 99, 10, 100) == ""
    assert json_problem([[1] * 49] * 2, 10, 101) == ""
    assert json_problem([1] * 1_000, 10, 1_000) == "it has more than 1,000 values"
    assert json_problem(MappingProxyType({"a": (1, 2)}), 1, 100).startswith("it is nested")


def test_what_holds_itself_ends() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert json_problem(ring, 10, 1_000).startswith("it is nested")
    ring.append(ring)
    assert json_problem(ring, 64, 1_000) == "it has more than 1,000 values"

"""Reading a TOML table with care: every mistake names its key and what would be right."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final


class ScenarioError(Exception):
    """One line: where, which key, and what would be right."""


_A: Final = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}


class Table:
    """One table of the file. Making it refuses the keys nobody knows."""

    def __init__(self, data: Any, where: str, keys: Iterable[str]) -> None:
        if not isinstance(data, Mapping):
            raise ScenarioError(f"{where} is a table, not {shown(data)}")
        self.data = data
        self.where = where
        known = list(keys)
        for key in data:
            if key not in known:
                raise ScenarioError(f"{self.name(key)}: unknown key{did_you_mean(key, known)}")

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def name(self, key: str) -> str:
        """The key as a person finds it."""
        return f"{self.where}.{key}" if self.where else key

    def wrong(self, key: str, what: str) -> ScenarioError:
        return ScenarioError(f"{self.name(key)}: {what}")

    def _typed(self, key: str, kind: type[Any], default: Any) -> Any:
        if key not in self.data:
            if default is None:
                raise self.wrong(key, f"is missing; it is {_A[kind]}")
            return default
        value = self.data[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.wrong(key, f"is {_A[kind]}, not {shown(self.data[key])}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        found: str = self._typed(key, str, default)
        if default is None and not found:
            raise self.wrong(key, "is empty")
        return found

    def flag(self, key: str, default: bool) -> bool:
        found: bool = self._typed(key, bool, default)
        return found

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        found = self.text(key, default)
        if found not in choices:
            near = did_you_mean(found, choices)
            raise self.wrong(key, f"is one of {', '.join(choices)}, not {shown(found)}{near}")
        return found

    def whole(self, key: str, default: int | None, low: int, high: int) -> int:
        found: int = self._typed(key, int, default)
        if not low <= found <= high:
            raise self.wrong(key, f"is {_limits(low, high)}, not {found}")
        return found

    def number(self, key: str, default: float | None, low: float, high: float = math.inf) -> float:
        found: float = self._typed(key, float, default)
        if not low <= found <= high or math.isinf(found):
            raise self.wrong(key, f"is {_limits(low, high)}, not {found:g}")
        return found

    def texts(self, key: str) -> list[str]:
        found = self.data.get(key, [])
        if isinstance(found, str):
            found = [found]
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.wrong(key, f"is a list of texts, not {shown(found)}")
        return list(found)

    def tables(self, key: str) -> list[Any]:
        found = self.data.get(key, [])
        if not isinstance(found, list):
            raise self.wrong(key, f"is written [[{key}]], once for each")
        return list(found)

    def table(self, key: str) -> Mapping[str, Any]:
        found = self.data.get(key, {})
        if not isinstance(found, Mapping):
            raise self.wrong(key, f"is a table, not {shown(found)}")
        return found


def _limits(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low:g} or more"
    return f"from {low:,.15g} to {high:,.15g}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""The tables of a configuration file: rows with their place, values of the right type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

A: Final = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class ConfigError(Exception):
    """One line for the operator."""


def rows(key: str, found: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of `[[key]]`, each with where it stands."""
    if not (isinstance(found, list) and all(isinstance(row, dict) for row in found)):
        raise ConfigError(f"{path}: {key} is written [[{key}]], once for each")
    for number, row in enumerate(found, 1):
        yield f"{path}: {key} {number}", row


def typed(row: dict[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = row.get(key, default)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {key} is {A[kind]}, not {value!r}")
    return value


def whole(row: dict[str, Any], key: str, default: int, where: str, low: int, high: int) -> int:
    value: int = typed(row, key, int, default, where)
    if not low <= value <= high:
        raise ConfigError(f"{where}: {key} is {low} to {high}, not {value}")
    return value


def number(
    row: dict[str, Any], key: str, default: float, where: str, low: float, high: float
) -> float:
    if type(row.get(key)) is int:
        row = {**row, key: float(row[key])}
    value: float = typed(row, key, float, default, where)
    if not low <= value <= high:
        raise ConfigError(f"{where}: {key} is {low:g} to {high:g}, not {value:g}")
    return value

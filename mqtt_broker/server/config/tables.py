"""Read TOML tables: known keys, values of the right type and within limits.

Every error is one line that says where the table is, which key is wrong, its value, and what
would be right. The simulator reads its scenarios with this module too, so of FleetMQ it imports
only `located`, which finds the lines of keys.
"""

from __future__ import annotations

import difflib
import math
import pathlib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from mqtt_broker.server.config.located import LocatedTable, locate

SECRETS: Final = (
    "database_url",
    "http_token",
    "password_hash",
    "token_hash",
)  # never repeated in an error
_LISTED_MAX: Final = 20  # known keys that an error lists
_SHOWN_MAX: Final = 60
_UNLIMITED: Final = 1e15  # an upper limit that errors do not mention
_A: Final = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


class ConfigError(Exception):
    """A mistake in the configuration; one line for the operator."""


def read_toml(path: str) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError."""
    try:
        text = pathlib.Path(path).read_text()
        return locate(tomllib.loads(text), text.replace("\r\n", "\n"), path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:  # also for a number with too many digits
        raise ConfigError(f"{path}: not TOML: {error}") from None


class Table:
    """A table of a TOML file, read key by key. Unknown keys raise ConfigError at once."""

    def __init__(self, data: Any, where: str, keys: Collection[str]) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} is a table, not {shown(data)}")
        self.data: Mapping[str, Any] = data
        self.where = where
        for key in data:
            if key not in keys:
                raise self.error(unknown_key(key, keys), key)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def error(self, text: str, key: str = "") -> ConfigError:
        """Return an error that names the table, and the line of the key in its file."""
        where = self.place(key)
        return ConfigError(f"{where}: {text}" if where else text)

    def place(self, key: str = "") -> str:
        """Return the name of the table, with the line of the key, or else of the table."""
        data = self.data
        if isinstance(data, LocatedTable) and (line := data.lines.get(key, data.line)):
            if self.where == data.file or self.where.startswith(f"{data.file}: "):
                return f"{data.file}:{line}{self.where[len(data.file) :]}"
        return self.where

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string. Without a default the key is required and may not be empty."""
        found: str = self._typed(key, str, default)
        if default is None and not found:
            raise self.error(f"{key} is empty", key)
        return found

    def flag(self, key: str, default: bool) -> bool:
        found: bool = self._typed(key, bool, default)
        return found

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        listed = ", ".join(choices)
        if key not in self.data and default is None:
            raise self.error(f"{key} is missing; it is one of {listed}")
        found = self.text(key, "" if default is None else default)
        if found not in choices:
            near = did_you_mean(found, choices)
            raise self.error(f"{key} is one of {listed}, not {shown(found)}{near}", key)
        return found

    def whole(self, key: str, default: int | None, low: int, high: float = math.inf) -> int:
        found: int = self._typed(key, int, default)
        self._check_limits(key, found, low, high)
        return found

    def number(self, key: str, default: float | None, low: float, high: float = math.inf) -> float:
        found: float = self._typed(key, float, default)
        self._check_limits(key, found, low, high)
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.data.get(key, [])
        if not (isinstance(found, list) and all(isinstance(one, str) and one for one in found)):
            raise self.error(f"{key} is a list of strings, not {shown(found)}", key)
        return tuple(found)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a table whose keys the caller checks; empty if it is missing."""
        found = self.data.get(key, {})
        if not isinstance(found, Mapping):
            raise self.error(f"{key} is a table {{ ... }}, not {shown(found)}", key)
        return found

    def table(self, key: str, keys: Collection[str]) -> Table:
        """Return a subtable; empty if it is missing."""
        return Table(self.mapping(key), f"{self.where}: {key}" if self.where else key, keys)

    def _typed(self, key: str, kind: type[Any], default: Any) -> Any:
        if key not in self.data:
            if default is None:
                raise self.error(f"{key} is missing; it is {_A[kind]}")
            return default
        value = self.data[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            given = "" if key in SECRETS else f", not {shown(value)}"
            raise self.error(f"{key} is {_A[kind]}{given}", key)
        return value

    def _check_limits(self, key: str, found: float, low: float, high: float) -> None:
        if key in self.data and not (low <= found <= high and found < math.inf):
            is_open = high == math.inf or (found < low and high >= _UNLIMITED)
            limits = f"{_plain(low)} or more" if is_open else f"{_plain(low)} to {_plain(high)}"
            raise self.error(f"{key} is {limits}, not {shown(self.data[key])}", key)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def rows(key: str, found: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of `[[key]]`, each with its position for errors."""
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        if isinstance(found, LocatedTable) and found.line:
            where = f"{found.file}:{found.line}"
        prefix = f"{where}: " if where else ""
        raise ConfigError(f"{prefix}{key} is written [[{key}]], once for each")
    for number, row in enumerate(found, 1):
        yield f"{where}: {key} {number}" if where else f"{key} {number}", row


def tables(key: str, found: Any, where: str, keys: Collection[str]) -> Iterator[Table]:
    """Yield the tables of `[[key]]`, in which only these keys are allowed."""
    for place, row in rows(key, found, where):
        yield Table(row, place, keys)


def unknown_key(key: str, known: Collection[str]) -> str:
    """Return the error for an unknown key: suggest a similar one, or list the known ones."""
    hint = did_you_mean(key, known)
    if not hint and len(known) <= _LISTED_MAX:
        hint = f"; it has {', '.join(known)}"
    return f"unknown key {key if key.isprintable() else repr(key)}{hint}"


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Suggest the known word that is most similar to this one, or return ""."""
    near = difflib.get_close_matches(word, known, 1) if word.strip("0123456789.") else []
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: Any) -> str:
    """Format a value for an error: on one line, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."

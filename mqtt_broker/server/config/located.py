"""Find the line of each key in a TOML file, for error messages.

    table = locate(tomllib.loads(text), text, "fleet.toml")
    place_of(table, "port")     # "fleet.toml:3"

`tomllib` reports no positions, so the text is scanned a second time, for its keys alone. By then
it is known to be valid.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PART: Final = re.compile(r""" "(?:\\.|[^"\\])*" | '[^']*' | [A-Za-z0-9_-]+ """, re.VERBOSE)
_TOKEN: Final = re.compile(
    r'"""(?:\\.|(?!""").)*"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
    r"|#[^\n]*|[\[\]{}]|\n",
    re.DOTALL,
)
_KEY: Final = re.compile(r'[ \t\r\n]*(?:#[^\n]*\n[ \t\r\n]*)*(\[\[|\[)?((?:"(?:\\.|[^"\\])*"'
                         r"|'[^']*'|[^\]=#\"'])*)(\]\]|\]|=)")  # fmt: skip


class LocatedTable(dict[str, Any]):
    """A table of a file: the line at which it begins, and the lines of its keys."""

    __slots__ = ("file", "line", "lines")

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        super().__init__(values)
        self.file = file
        self.line = 0  # 0: unknown
        self.lines: dict[str, int] = {}

    def begin_at(self, line: int) -> None:
        """Note the line of the table, unless it is known."""
        self.line = self.line or line


def locate(values: Mapping[str, Any], text: str, file: str) -> LocatedTable:
    """Return the tables of a file with their lines."""
    root: LocatedTable = _copy(values, file)
    places: dict[int, int] = {}  # of a list of tables: how many have been seen
    current = root
    for line, kind, path in _statements(text):
        if kind == "=":
            table = _walk(current, path[:-1], line, places)
            table.lines.setdefault(path[-1], line)
            _mark(table.get(path[-1]), line)
            continue
        parent = _walk(root, path[:-1], line, places)
        parent.lines.setdefault(path[-1], line)
        found = parent[path[-1]]
        if kind == "[[":
            at = places[id(found)] = places.get(id(found), -1) + 1
            found = found[at]
        current = found
        current.begin_at(line)
    return root


def place_of(table: Mapping[str, Any], key: str, default: str) -> str:
    """Return `file:line` of a key, or of its table; `default` if the table is not of a file."""
    if not isinstance(table, LocatedTable):
        return default
    line = table.lines.get(key, table.line)
    return f"{table.file}:{line}" if line else table.file


def _copy(value: Any, file: str) -> Any:
    if isinstance(value, Mapping):
        return LocatedTable({key: _copy(one, file) for key, one in value.items()}, file)
    return [_copy(one, file) for one in value] if isinstance(value, list) else value


def _walk(
    table: LocatedTable, path: tuple[str, ...], line: int, places: dict[int, int]
) -> LocatedTable:
    for key in path:
        table.lines.setdefault(key, line)
        found = table[key]
        table = found[places[id(found)]] if isinstance(found, list) else found
        table.begin_at(line)
    return table


def _mark(value: Any, line: int) -> None:
    """Give tables inside a value the line of that value."""
    if isinstance(value, LocatedTable):
        value.begin_at(line)
    for one in value.values() if isinstance(value, dict) else value if _is_list(value) else ():
        _mark(one, line)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _statements(text: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the line of each header and key, `[`, `[[` or `=`, and its dotted name."""
    at, line = 0, 1
    while found := _KEY.match(text, at):
        line += text.count("\n", at, found.start(2))
        yield line, found[1] or "=", _parts(found[2])
        at = found.end()
        after = at if found[1] else _value_end(text, at)
        line += text.count("\n", found.start(2), after)
        at = after


def _parts(text: str) -> tuple[str, ...]:
    """Split a dotted key, whose parts may be quoted."""
    parts = [found[0] for found in _PART.finditer(text)]
    # The escapes of TOML mean the same in Python.
    return tuple(ast.literal_eval(one) if one[0] in "\"'" else one for one in parts)


def _value_end(text: str, at: int) -> int:
    """Return where the value that begins here ends: at the end of a line outside of brackets."""
    depth = 0
    for found in _TOKEN.finditer(text, at):
        token = found[0]
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        elif token == "\n" and not depth:
            return found.end()
    return len(text)

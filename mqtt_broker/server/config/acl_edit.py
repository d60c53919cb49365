"""Change the `[[acl]]` tables of a configuration file as text: comments and other lines stay.

A table begins with its header and ends before the next header, or before the blank lines and the
comments that stand above that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.config.template import toml_value

_HEADER: Final = re.compile(r"^\s*\[\[?\s*[A-Za-z_\"']")
_ACL: Final = re.compile(r"^\s*\[\[\s*acl\s*\]\]\s*(#.*)?$")
_KEYS: Final = ("permit", "action", "topics", "users", "roles", "clients", "addresses", "anonymous")


def add_rule(text: str, rule: Mapping[str, Any]) -> str:
    """Add a table behind the last of those that hold a rule."""
    lines = text.splitlines()
    found = _blocks(lines)
    rules = [block for block in found if not _names_database(lines, block)]
    at = rules[-1][1] if rules else (found[0][0] if found else len(lines))
    before = [""] if at and lines[at - 1].strip() else []
    after = [""] if at < len(lines) and lines[at].strip() else []
    lines[at:at] = [*before, *_table(rule), *after]
    return "\n".join(lines) + "\n"


def change_rule(text: str, number: int, rule: Mapping[str, Any]) -> str:
    """Put other keys into a table, the first of which has the number 1; its comments stay."""
    lines = text.splitlines()
    begin, end = _block(lines, number)
    comments = [line for line in lines[begin + 1 : end] if line.lstrip().startswith("#")]
    lines[begin:end] = [lines[begin], *comments, *_table(rule)[1:]]
    return "\n".join(lines) + "\n"


def remove_rule(text: str, number: int) -> str:
    """Remove a table; comments above it stay."""
    lines = text.splitlines()
    begin, end = _block(lines, number)
    while end < len(lines) and not lines[end].strip():
        end += 1
    del lines[begin:end]
    return "\n".join(lines) + "\n"


def _table(rule: Mapping[str, Any]) -> list[str]:
    keys = [f"{key} = {toml_value(rule[key])}" for key in _KEYS if rule.get(key)]
    return ["[[acl]]", *keys]


def _block(lines: list[str], number: int) -> tuple[int, int]:
    found = _blocks(lines)
    if not 1 <= number <= len(found):
        raise ConfigError(f"there is no [[acl]] table {number}; tables are written as [[acl]]")
    return found[number - 1]


def _blocks(lines: list[str]) -> list[tuple[int, int]]:
    """Return the first line and the end of each table."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    found: list[tuple[int, int]] = []
    for at, begin in enumerate(headers):
        if not _ACL.match(lines[begin]):
            continue
        end = headers[at + 1] if at + 1 < len(headers) else len(lines)
        while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
            end -= 1
        found.append((begin, end))
    return found


def _names_database(lines: list[str], block: tuple[int, int]) -> bool:
    return any(line.lstrip().startswith("database_url") for line in lines[slice(*block)])

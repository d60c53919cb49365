"""docs/SECURITY.md against the program: every key, every column, every example."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

from mqtt_broker.security import sql
from mqtt_broker.security.protection.bans import Flapping
from mqtt_broker.security.protection.throttle import ConnectLimits
from mqtt_broker.server.config import security as tables
from mqtt_broker.server.config.security import SecurityConfig, read_security

TEXT = (Path(__file__).parents[2] / "docs" / "SECURITY.md").read_text()
AUTH = {"type", "name", "listeners"}


def chapter(title: str) -> str:
    """From a heading of the second level to the next."""
    _, _, rest = TEXT.partition(f"\n## {title}")
    assert rest, title
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_authentication_methods() -> None:
    text = chapter("Authentication")
    table = {named(row[0])[0]: row for row in rows(text) if len(row) == 3}
    del table["type"]  # the head
    assert table.keys() == tables.TYPES.keys()
    for kind, keys in tables.TYPES.items():
        missing = set(keys) - set(named(table[kind][2]))
        assert not missing, (kind, missing)
    for key in AUTH - {"type"}:
        assert f"`{key}" in text


def test_keys_of_rules_stand_in_the_example() -> None:
    examples = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]
    seen = {key for found in examples for row in found.get("acl", ()) for key in row}
    assert seen == {*tables.ACL_KEYS, "database_url"}


def test_examples_can_be_read() -> None:
    way = {"type": "anonymous"}
    for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        table = {k: v for k, v in tomllib.loads(text).items() if k in tables.TABLES}
        read_security({"auth": [way], **table}, "")


def test_keys_of_security_and_their_defaults() -> None:
    """Each once, in the order of the program or another, and as it is when nothing is said."""
    said: dict[str, str] = {}
    for row in rows(chapter("Keys of `[security]`")):
        keys, defaults = named(row[0]), named(row[1]) or [row[1]]
        said.update(zip(keys, defaults * (len(keys) // len(defaults)), strict=True))
    assert said.keys() == set(tables.OWN_KEYS)
    security = read_security({"security": {}}, "")
    assert security == SecurityConfig()
    parts = {
        f"flapping_{f.name}": getattr(Flapping(), f.name) for f in dataclasses.fields(Flapping)
    }
    values = {**dataclasses.asdict(ConnectLimits()), **parts}
    for key, text in said.items():
        default = values[key] if key in values else getattr(security, key)
        assert text == {"": "none", False: "false"}.get(default) or float(text) == default, key


def test_columns_of_tables() -> None:
    table = {
        named(row[0])[0]: named(row[1]) for row in rows(chapter("Authentication")) if len(row) == 2
    }
    assert table == {
        name: [column.name for column in found.columns]
        for name, found in sql.METADATA.tables.items()
    }

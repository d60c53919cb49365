"""`[[http_tokens]]` and `[[http_users]]`: who may use the HTTP server, and with which role.

A token stands in a file, or its SHA-256 digest here; a user's password hash stands here or in a
password file. The files are read by `http_api.credentials`, again whenever they change.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Final

from mqtt_broker.server.config.tables import Table, read_toml, tables

TABLES: Final = ("http_tokens", "http_users")
ROLES: Final = ("viewer", "operator", "admin")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ARGON2: Final = "$argon2id$"


@dataclass(frozen=True, slots=True)
class HttpToken:
    """A token of the API, by its digest or the file that holds it."""

    name: str
    role: str
    digest: str = field(default="", repr=False)
    file: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class HttpUser:
    """A user of the API, whose password hash is given or stands in a password file."""

    name: str
    role: str
    password_hash: str = field(default="", repr=False)
    file: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The tokens and users of a configuration file."""

    tokens: tuple[HttpToken, ...] = ()
    users: tuple[HttpUser, ...] = ()

    @property
    def is_on(self) -> bool:
        return bool(self.tokens or self.users)


def read_http_access(found: dict[str, Any], path: str) -> HttpAccess:
    """Read both tables. Raises ConfigError."""
    access = HttpAccess(
        tuple(
            _token(table, path)
            for table in tables(
                "http_tokens",
                found.get("http_tokens", []),
                path,
                ("name", "role", "token_hash", "file"),
            )
        ),
        tuple(
            _user(table, path)
            for table in tables(
                "http_users",
                found.get("http_users", []),
                path,
                ("name", "role", "password_hash", "file"),
            )
        ),
    )
    for listed in (access.tokens, access.users):
        known: set[str] = set()
        for one in listed:
            if one.name in known:
                raise Table({}, one.place, ()).error(f"name {one.name!r} is given twice")
            known.add(one.name)
    return access


def read_http_access_of(path: str) -> HttpAccess:
    """Read both tables of a file, for a reload."""
    return read_http_access(read_toml(path), path)


def _token(table: Table, path: str) -> HttpToken:
    digest, file = _secret(table, path, "token_hash")
    if digest and not _DIGEST.fullmatch(digest):
        raise table.error("token_hash is the SHA-256 digest of a token: 64 of 0-9 and a-f")
    return HttpToken(_name(table), table.choice("role", ROLES), digest, file, table.place())


def _user(table: Table, path: str) -> HttpUser:
    stored, file = _secret(table, path, "password_hash")
    if stored and not stored.startswith(_ARGON2):
        raise table.error("password_hash is an argon2id hash, as fleetmq passwd writes it")
    return HttpUser(_name(table), table.choice("role", ROLES), stored, file, table.place())


def _name(table: Table) -> str:
    name = table.text("name")
    if not name.isprintable() or name.strip() != name or len(name) > 100:
        raise table.error(
            f"name {name[:40]!r} has more than 100 or other than printable characters"
        )
    return name


def _secret(table: Table, path: str, key: str) -> tuple[str, str]:
    """Return the value of a key or the path of a file: one of both is needed."""
    found, file = table.text(key, ""), table.text("file", "")
    if bool(found) is bool(file):
        raise table.error(f"set {key} or file, one of them")
    return found, os.path.join(os.path.dirname(path), file) if file else ""

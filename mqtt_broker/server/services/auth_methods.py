"""The ways in of a configuration, opened: password files, tables, keys of tokens.

`AuthMethods` is made from the `[[auth]]` tables, at the start and again when they change. A table
that stayed as it is keeps the way it had, with all that was read and is known of its users; what
cannot be opened raises, and nothing has changed. Reading them again is for `server.security`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtt_broker.security.authentication.certificates import CertificateMethod
from mqtt_broker.security.authentication.chain import (
    AnonymousMethod,
    ChainEntry,
    PasswordMethod,
    ScramMethod,
)
from mqtt_broker.security.authentication.password_file import PasswordFile, open_to_others
from mqtt_broker.security.files.atomic_files import write_whole
from mqtt_broker.server.config.security import AuthTable

if TYPE_CHECKING:
    from mqtt_broker.security.authentication.jwt import TokenMethod
    from mqtt_broker.security.sql import SqlAccounts

SALTS: Final = "scram-salts"  # in the data directory
_SALTS_BYTES: Final = 32
_log = logging.getLogger("fleetmq")


class AuthMethods:
    """`steps` for the chain; `files`, `tokens` and `tables` for whoever looks after them."""

    def __init__(
        self,
        tables: Sequence[AuthTable],
        engine: Callable[[str], Any],
        clock: Callable[[], float],
        before: AuthMethods | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._open: list[tuple[AuthTable, Any]] = []
        self.files: dict[str, PasswordFile] = {}  # by the name of the way
        self.tokens: dict[str, TokenMethod] = {}
        self.tables: list[SqlAccounts] = []
        for table in tables:
            kept = [way for known, way in before._open if known == table] if before else []
            self._add(table, kept[0] if kept else self._way(table))
        self.steps = [ChainEntry(way, table.listeners) for table, way in self._open]

    def _add(self, table: AuthTable, way: Any) -> None:
        self._open.append((table, way))
        if table.type == "password_file":
            self.files[table.name] = way.accounts
        elif table.type == "sql":
            self.tables.append(way.accounts)
        elif table.type == "jwt":
            self.tokens[table.name] = way

    def _way(self, table: AuthTable) -> Any:
        values = table.values
        if table.type == "password_file":
            file = PasswordFile(values["file"])
            if open_to_others(file.path):
                _log.warning("%s: every user of this machine may read or write it", file.path)
            return PasswordMethod(table.name, file)
        if table.type == "sql":
            from mqtt_broker.security.sql import SqlAccounts

            engine = self._engine(values["database_url"])
            cache_s = float(values.get("cache_s", 5.0))
            return PasswordMethod(table.name, SqlAccounts(engine, self._clock, cache_s))
        if table.type == "jwt":
            return _token_way(table)
        if table.type == "certificate":
            roles = frozenset(values.get("roles", ()))
            return CertificateMethod(
                values.get("username_from", "cn"), roles=roles, name=table.name
            )
        return ScramMethod(table.name) if table.type == "scram" else AnonymousMethod()

    def salt_secret(self, data_dir: str) -> bytes:
        """What salts of unknown users are made from: whoever compares them over time has to find
        the same, since those of known users do not change.
        """
        if data_dir and os.path.isdir(data_dir):
            try:
                return _kept_secret(Path(data_dir) / SALTS)
            except (OSError, ValueError) as error:
                _log.warning("%s/%s: %s; another is made up", data_dir, SALTS, error)
        # Nothing is kept: of what nobody else knows, the same until the file is another.
        for file in self.files.values():
            return file.digest
        return secrets.token_bytes(_SALTS_BYTES)


def _token_way(table: AuthTable) -> TokenMethod:
    from mqtt_broker.security.authentication.jwt import Claims, TokenMethod

    values = table.values
    claims = Claims(
        values.get("username_claim", "sub"),
        values.get("roles_claim", "roles"),
        values.get("acl_claim", "acl"),
        values.get("client_id_claim", ""),
        values.get("issuer", ""),
        values.get("audience", ""),
        float(values.get("leeway_s", 0.0)),
        values.get("require_expiry", True),
    )
    way = TokenMethod(values["key_file"], claims, name=table.name, wall=time.time)
    if os.stat(way.path).st_mode & stat.S_IWOTH or (way.is_secret and open_to_others(way.path)):
        _log.warning("%s: every user of this machine may make tokens with it", way.path)
    return way


def _kept_secret(path: Path) -> bytes:
    try:
        found = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        found = secrets.token_bytes(_SALTS_BYTES)
        write_whole(str(path), found.hex() + "\n", 0o600)
    if len(found) != _SALTS_BYTES:
        raise ValueError("not what a broker writes")
    return hashlib.sha256(found).digest()

"""The authentication methods of a configuration, opened: password files, tables, token keys.

`AuthMethods` is built from the `[[auth]]` tables, at the start and again when they change. A table
that has not changed keeps its method, with the accounts that it has cached. If a method cannot be
opened, the error is raised and the old methods stay. `services.security` reloads them.
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
from mqtt_broker.security.authentication.password_file import PasswordFile
from mqtt_broker.security.files.atomic_files import open_to_others, write_whole
from mqtt_broker.server.config.security import AuthTable

if TYPE_CHECKING:
    from mqtt_broker.security.authentication.jwt import TokenMethod
    from mqtt_broker.security.sql import SqlAccounts

SALTS: Final = "scram-salts"  # in the data directory
_SALTS_BYTES: Final = 32
_log = logging.getLogger("fleetmq")


class AuthMethods:
    """Open methods: `entries` for the chain; `files`, `tokens` and `tables` for reloading."""

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
        self.files: dict[str, PasswordFile] = {}  # by the name of the method
        self.tokens: dict[str, TokenMethod] = {}
        self.tables: list[SqlAccounts] = []
        for table in tables:
            kept = [method for known, method in before._open if known == table] if before else []
            self._add(table, kept[0] if kept else self._open_method(table))
        self.entries = [ChainEntry(method, table.listeners) for table, method in self._open]

    def _add(self, table: AuthTable, method: Any) -> None:
        self._open.append((table, method))
        if table.type == "password_file":
            self.files[table.name] = method.accounts
        elif table.type == "sql":
            self.tables.append(method.accounts)
        elif table.type == "jwt":
            self.tokens[table.name] = method

    def _open_method(self, table: AuthTable) -> Any:
        values = table.values
        if table.type == "password_file":
            with table.place_errors("file"):
                file = PasswordFile(values["file"])
            if open_to_others(file.path):
                _log.warning(
                    "%s: every user of this machine may read or write it; chmod 640 it", file.path
                )
            return PasswordMethod(table.name, file)
        if table.type == "sql":
            from mqtt_broker.security.sql import SqlAccounts

            with table.place_errors("database_url"):
                engine = self._engine(values["database_url"])
            cache_s = float(values.get("cache_s", 5.0))
            return PasswordMethod(table.name, SqlAccounts(engine, self._clock, cache_s))
        if table.type == "jwt":
            with table.place_errors("key_file"):
                return _token_method(table)
        if table.type == "certificate":
            roles = frozenset(values.get("roles", ()))
            return CertificateMethod(
                values.get("username_from", "cn"), roles=roles, name=table.name
            )
        return ScramMethod(table.name) if table.type == "scram" else AnonymousMethod()

    def salt_secret(self, data_dir: str) -> bytes:
        """Return the secret from which salts of unknown users are derived.

        It is stored, because salts of known users do not change either: a client that compares
        salts over time must not learn which users exist.
        """
        if data_dir and os.path.isdir(data_dir):
            try:
                return _kept_secret(Path(data_dir) / SALTS)
            except (OSError, ValueError) as error:
                _log.warning("%s/%s: %s; a new secret is used", data_dir, SALTS, error)
        # Without a data directory the secret stays the same until the file changes.
        for file in self.files.values():
            return file.digest
        return secrets.token_bytes(_SALTS_BYTES)


def _token_method(table: AuthTable) -> TokenMethod:
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
    method = TokenMethod(values["key_file"], claims, name=table.name, wall=time.time)
    path = method.path
    if os.stat(path).st_mode & stat.S_IWOTH or (method.is_secret and open_to_others(path)):
        _log.warning("%s: every user of this machine may sign tokens with it; chmod 640 it", path)
    return method


def _kept_secret(path: Path) -> bytes:
    try:
        found = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        found = secrets.token_bytes(_SALTS_BYTES)
        write_whole(str(path), found.hex() + "\n", 0o600)
    if len(found) != _SALTS_BYTES:
        raise ValueError(f"not {_SALTS_BYTES} bytes in hexadecimal")
    return hashlib.sha256(found).digest()

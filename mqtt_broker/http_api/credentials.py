"""Tokens and users of the configuration: their files are read at the start and when they change.

A token whose file is gone is withdrawn, and so is a user whom the password file has no more. A file
that cannot be read for another reason changes nothing. A change replaces all credentials at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mqtt_broker.http_api.request.access import (
    ROLES,
    ApiToken,
    ApiUser,
    Credentials,
    credentials_of,
    digest_of,
)
from mqtt_broker.security.authentication.password_file import read_entries
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.http_access import (
    HttpAccess,
    HttpToken,
    HttpUser,
    read_http_access_of,
)
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.reload import Reload

NAME: Final = "tokens and users of the HTTP server"
_TOKEN_BYTES_MAX: Final = 4_096


class CredentialFiles:
    """The credentials in force; `current` may be called from any thread."""

    def __init__(self, config: Config) -> None:
        """Read the files. Raises ConfigError."""
        self._path = config.source.path if config.source is not None else ""
        self._own = credentials_of(config.http_token)
        self._access = config.http_access
        self._must_log_in = config.http_access.is_on or bool(config.http_token)
        self._found = self._read(config.http_access, at_start=True)

    def current(self) -> Credentials:
        """Return the credentials in force."""
        return self._found

    def watch(self, reload: Reload) -> None:
        """Read the files again when they change, and on SIGHUP."""
        files = sorted(_files(self._access))
        paths = [self._path, *files] if self._path else files
        if paths:
            reload.remove(NAME)
            reload.add(NAME, dict.fromkeys(paths), lambda: self._read_again(reload))

    def _read_again(self, reload: Reload) -> None:
        access = read_http_access_of(self._path) if self._path else self._access
        if self._must_log_in and not (access.is_on or self._own.are_needed):
            raise ConfigError(  # a file that was cut off would open everything to everybody
                f"{self._path}: the last of [[http_tokens]] and [[http_users]] was removed; "
                "restart the broker to do without"
            )
        self._found = self._read(access, at_start=False)
        self._must_log_in = self._must_log_in or access.is_on
        if _files(access) != _files(self._access):
            self._access = access
            self.watch(reload)

    def _read(self, access: HttpAccess, *, at_start: bool) -> Credentials:
        tokens = [self._token(one, at_start) for one in access.tokens]
        users = [self._user(one, at_start) for one in access.users]
        return Credentials(
            [*self._own.tokens, *(one for one in tokens if one is not None)],
            [one for one in users if one is not None],
            must_log_in=self._must_log_in or access.is_on,
        )

    def _token(self, one: HttpToken, at_start: bool) -> ApiToken | None:
        digest = one.digest
        if not digest:
            try:
                token = Path(one.file).read_text()[:_TOKEN_BYTES_MAX].strip()
            except FileNotFoundError:
                if at_start:
                    raise ConfigError(f"{one.place}: {one.file}: no such file") from None
                return None
            except (OSError, ValueError) as error:
                raise ConfigError(f"{one.place}: {one.file}: {error}") from None
            if not token:
                raise ConfigError(f"{one.place}: {one.file}: it holds no token")
            digest = digest_of(token)
        return ApiToken(one.name, digest, ROLES[one.role])

    def _user(self, one: HttpUser, at_start: bool) -> ApiUser | None:
        if one.password_hash:
            return ApiUser(one.name, one.password_hash, ROLES[one.role])
        try:
            entries = read_entries(one.file)
        except FileError as error:
            raise ConfigError(f"{one.place}: {error}") from None
        for entry in entries:
            if entry.username == one.name and entry.secret.startswith("$"):
                return ApiUser(one.name, entry.secret, ROLES[one.role])
        if at_start:
            raise ConfigError(f"{one.place}: {one.file} has no password of {one.name!r}")
        return None


def _files(access: HttpAccess) -> set[str]:
    files = [one.file for one in access.tokens] + [one.file for one in access.users]
    return {file for file in files if file}

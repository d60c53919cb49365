"""Change a password file: one user's lines, and every other line as it was.

The file is replaced as a whole while its directory is locked, so that a reader sees the old content
or the new one, and two writers do not lose each other's changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mqtt_broker.security.authentication.password_file import (
    Entry,
    decode_line,
    is_comment,
    read_entries,
)
from mqtt_broker.security.authentication.scram import is_stored_keys
from mqtt_broker.security.files.atomic_files import locked, write_whole
from mqtt_broker.security.files.errors import FileError


def put_user(path: str, username: str, secret: str, roles: tuple[str, ...] | None) -> bool:
    """Add a user, or change a secret of one; True when the user is new.

    An empty secret keeps what the user has; without `roles` the roles stay.
    """
    is_new = True

    def change(lines: list[str]) -> list[str]:
        nonlocal is_new
        mine = [entry for entry in map(_entry, lines) if entry and entry.username == username]
        is_new = not mine
        if is_new and not secret:
            raise FileError(f"{path}: no user {username}")
        known = tuple(dict.fromkeys(role for entry in mine for role in entry.roles))
        return _with_user(lines, username, secret, known if roles is None else roles)

    _rewrite(path, change)
    return is_new


def remove_user(path: str, username: str) -> bool:
    """Remove a user's lines; False when there is none."""
    found = False

    def change(lines: list[str]) -> list[str]:
        nonlocal found
        kept = [line for line in lines if (e := _entry(line)) is None or e.username != username]
        found = len(kept) < len(lines)
        return kept

    _rewrite(path, change)
    return found


def _with_user(lines: list[str], username: str, secret: str, roles: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    is_placed = not secret
    for line in lines:
        entry = _entry(line)
        if entry is None or entry.username != username:
            found.append(line)
        elif secret and is_stored_keys(entry.secret) is is_stored_keys(secret):
            found.append(Entry(username, secret, roles).encode())
            is_placed = True
        else:
            found.append(Entry(username, entry.secret, roles).encode())
    return found if is_placed else [*found, Entry(username, secret, roles).encode()]


def _entry(line: str) -> Entry | None:
    return None if is_comment(line) else decode_line(line.rstrip())


def _rewrite(path: str, change: Callable[[list[str]], list[str]]) -> None:
    try:
        with locked(path):
            lines: list[str] = []
            if Path(path).exists():
                read_entries(path)  # refuses a file with mistakes
                lines = Path(path).read_text().splitlines()
            changed = change(lines)
            if changed != lines:
                write_whole(path, "".join(line + "\n" for line in changed), 0o600)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None

"""The password file: one `user:secret` a line, written by `fleetmq passwd`.

A secret is an argon2id hash or SCRAM-SHA-256 keys; a user may have one line of each. A third
part, `user:secret:role,role`, names roles. Empty lines and lines that begin with # are ignored.
A wrong line makes the whole file invalid; the error names its number.

Hashes of mosquitto's password files are accepted. When their user has logged in, the broker
replaces them: `renew` at once in memory, `write_renewed` later in the file.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from mqtt_broker.security.authentication.accounts import USERNAME_CHARS_MAX, Account
from mqtt_broker.security.authentication.password_hasher import hash_problem
from mqtt_broker.security.authentication.scram import (
    ITERATIONS,
    ScramError,
    StoredKeys,
    decode_stored_keys,
    is_stored_keys,
)
from mqtt_broker.security.files.atomic_files import locked, write_whole
from mqtt_broker.security.files.errors import FileError


@dataclass(frozen=True, slots=True)
class Entry:
    """A user's line in the file."""

    username: str
    secret: str
    roles: tuple[str, ...] = ()

    def encode(self) -> str:
        roles = ":" + ",".join(self.roles) if self.roles else ""
        return f"{self.username}:{self.secret}{roles}"


def username_problem(username: str) -> str:
    """Say why the file cannot hold a user name; empty: it can."""
    if not username:
        return "the user name is empty"
    if ":" in username or "," in username or not username.isprintable() or username[0] == "#":
        return (
            f"invalid user name {username!r}: it must not hold a colon, a comma or a control "
            "character, nor begin with #"
        )
    if username.strip() != username:
        return f"invalid user name {username!r}: it begins or ends with a space"
    if len(username) > USERNAME_CHARS_MAX:
        return f"the user name has {len(username)} characters; the limit is {USERNAME_CHARS_MAX}"
    return ""


def is_comment(line: str) -> bool:
    """Tell whether a line holds no user."""
    return not line.strip() or line.startswith("#")


def decode_line(line: str) -> Entry:
    """Read one line; FileError says what is wrong with it."""
    username, _, rest = line.partition(":")
    if problem := username_problem(username):
        raise FileError(problem)
    roles = ""
    if is_stored_keys(rest):  # these hold two colons of their own
        parts = rest.split(":")
        secret, roles = ":".join(parts[:3]), ":".join(parts[3:])
        try:
            decode_stored_keys(secret)
        except ScramError as error:
            raise FileError(f"user {username}: {error}") from None
    else:
        secret, _, roles = rest.partition(":")
        if problem := hash_problem(secret):
            raise FileError(f"user {username}: {problem}")
    return Entry(username, secret, tuple(role for role in roles.split(",") if role))


def read_entries(path: str) -> list[Entry]:
    """Read all lines; FileError names the file and the line."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path}: not UTF-8") from None
    found: list[Entry] = []
    seen: set[tuple[str, bool]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if is_comment(line):
            continue
        try:
            entry = decode_line(line.rstrip())
        except FileError as error:
            raise FileError(f"{path}: line {number}: {error}") from None
        key = (entry.username, is_stored_keys(entry.secret))
        if key in seen:
            raise FileError(f"{path}: line {number}: user {entry.username} is listed twice")
        seen.add(key)
        found.append(entry)
    return found


class PasswordFile:
    """The accounts of a file, as it was when it was last read."""

    is_slow = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._accounts: dict[str, Account] = {}
        self.digest = b""  # of all secrets
        self.scram_iterations = ITERATIONS
        self._renewed: dict[str, tuple[str, str]] = {}  # by user: the hash of the file, the new one
        self._lock = threading.Lock()  # of what several threads change
        self.load()

    def load(self) -> None:
        """Read the file again; on FileError the accounts of before stay."""
        accounts: dict[str, Account] = {}
        digest = hashlib.sha256()
        for entry in read_entries(self.path):
            digest.update(entry.secret.encode())
            before = accounts.get(entry.username, Account(entry.username))
            keys: StoredKeys | None = before.scram
            hashed = before.password_hash
            if is_stored_keys(entry.secret):
                keys = decode_stored_keys(entry.secret)
            else:
                hashed = entry.secret
                with self._lock:
                    known, fresh = self._renewed.get(entry.username, ("", ""))
                if known == hashed:  # and not yet in the file
                    hashed = fresh
            roles = before.roles | frozenset(entry.roles)
            accounts[entry.username] = Account(entry.username, hashed, keys, roles)
        costs = Counter(a.scram.iterations for a in accounts.values() if a.scram is not None)
        self.scram_iterations = costs.most_common(1)[0][0] if costs else ITERATIONS
        self._accounts = accounts
        self.digest = digest.digest()

    def renew(self, username: str, stored: str, fresh: str) -> None:
        """Use another hash of a user's password from now on. From any thread."""
        with self._lock:
            account = self._accounts.get(username)
            if account is not None and account.password_hash == stored:
                self._renewed[username] = stored, fresh
                self._accounts[username] = replace(account, password_hash=fresh)

    @property
    def has_renewed(self) -> bool:
        """Tell whether hashes were replaced that the file still has."""
        return bool(self._renewed)

    def write_renewed(self) -> int:
        """Replace the hashes in the file too, and return their number; FileError if that fails.

        Lines that somebody has changed meanwhile stay as they are.
        """
        with self._lock:
            renewed = dict(self._renewed)
        changed = 0
        try:
            with locked(self.path):
                lines = Path(self.path).read_text().splitlines()
                for at, line in enumerate(lines):
                    entry = None if is_comment(line) else decode_line(line.rstrip())
                    stored, fresh = renewed.get(entry.username if entry else "", ("", ""))
                    if entry is not None and entry.secret == stored:
                        lines[at] = replace(entry, secret=fresh).encode()
                        changed += 1
                if changed:
                    write_whole(self.path, "".join(f"{line}\n" for line in lines), 0o600)
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror}") from None
        with self._lock:
            for username, pair in renewed.items():
                if self._renewed.get(username) == pair:
                    del self._renewed[username]
        return changed

    def find(self, username: str) -> Account | None:
        return self._accounts.get(username)

    def has(self, username: str) -> bool:
        return username in self._accounts

    def roles(self, username: str) -> frozenset[str] | None:
        account = self._accounts.get(username)
        return account.roles if account is not None else None

    def hashes(self) -> list[str]:
        """Return all password hashes."""
        return [a.password_hash for a in self._accounts.values() if a.password_hash]

    def __len__(self) -> int:
        return len(self._accounts)

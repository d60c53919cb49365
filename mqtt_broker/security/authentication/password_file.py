"""The password file: one `user:secret` a line, written by `fleetmq passwd`.

A secret is an argon2id hash or SCRAM-SHA-256 keys; a user may have one line of each. A third
part, `user:secret:role,role`, names roles. Empty lines and lines that begin with # are left
alone. The file is read whole; one that is wrong is refused whole, by the number of its line.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from dataclasses import dataclass
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
from mqtt_broker.security.files.errors import FileError


@dataclass(frozen=True, slots=True)
class Entry:
    username: str
    secret: str
    roles: tuple[str, ...] = ()

    def encode(self) -> str:
        roles = ":" + ",".join(self.roles) if self.roles else ""
        return f"{self.username}:{self.secret}{roles}"


def username_problem(username: str) -> str:
    if not username:
        return "a user name is empty"
    if ":" in username or "," in username or not username.isprintable() or username[0] == "#":
        return "a user name holds no colon, comma or control character and does not begin with #"
    if username.strip() != username:
        return "a user name begins or ends with a space"
    if len(username) > USERNAME_CHARS_MAX:
        return f"a user name has at most {USERNAME_CHARS_MAX} characters"
    return ""


def is_comment(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def decode_line(line: str) -> Entry:
    username, _, rest = line.partition(":")
    if problem := username_problem(username):
        raise FileError(problem)
    roles = ""
    if is_stored_keys(rest):  # which hold one colon in the cost and one in the keys
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
            raise FileError(f"{path}: line {number}: user {entry.username} stands there twice")
        seen.add(key)
        found.append(entry)
    return found


def open_to_others(path: str) -> bool:
    """Whether other users of the machine may read it."""
    return bool(os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH))


class PasswordFile:
    """Accounts in a file, in memory as it was when it was read last."""

    is_slow = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._accounts: dict[str, Account] = {}
        self.digest = b""  # of all secrets; nobody else knows it
        self.scram_iterations = ITERATIONS
        self.load()

    def load(self) -> None:
        """Read it again; FileError, and what was read before stays."""
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
            roles = before.roles | frozenset(entry.roles)
            accounts[entry.username] = Account(entry.username, hashed, keys, roles)
        costs = Counter(a.scram.iterations for a in accounts.values() if a.scram is not None)
        self.scram_iterations = costs.most_common(1)[0][0] if costs else ITERATIONS
        self._accounts = accounts
        self.digest = digest.digest()

    def find(self, username: str) -> Account | None:
        return self._accounts.get(username)

    def has(self, username: str) -> bool:
        return username in self._accounts

    def roles(self, username: str) -> frozenset[str] | None:
        account = self._accounts.get(username)
        return account.roles if account is not None else None

    def hashes(self) -> list[str]:
        return [a.password_hash for a in self._accounts.values() if a.password_hash]

    def __len__(self) -> int:
        return len(self._accounts)

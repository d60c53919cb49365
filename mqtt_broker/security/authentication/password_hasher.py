"""Hash and verify passwords with argon2id, at the same cost for known and unknown users.

`Passwords.verify` hashes once, whether the user is known or not, so that neither the answer nor
its time tells which. A right password is remembered for a while as a keyed digest, so that a fleet
that reconnects at once is not hashed again; a wrong one is hashed every time.

Hashes that mosquitto made are cheaper, so argon2id is computed beside them: with a right password
for the hash that replaces them (`renewed`), else for nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

from mqtt_broker.security.authentication.mosquitto_hash import (
    decode_hash,
    derive,
    is_mosquitto_hash,
)

PASSWORD_BYTES_MAX: Final = 1024
_REMEMBERED_MAX: Final = 100_000
# OWASP's second choice: 19 MiB, two passes, one lane. About 15 ms on one core, so that a core
# lets 60 devices a second in that were not here before.
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
LANES: Final = 1
MEMORY_KIB_MAX: Final = 1 << 20  # of a stored hash; a higher cost could exhaust memory


def new_hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def hash_password(password: bytes) -> str:
    return new_hasher().hash(password)


def hash_problem(stored: str) -> str:
    """Say what is wrong with a stored hash; empty: nothing."""
    if is_mosquitto_hash(stored):
        try:
            decode_hash(stored)
        except ValueError as error:
            return str(error)
        return ""
    try:
        found = extract_parameters(stored)
    except (InvalidHashError, ValueError):
        return "not an argon2 hash"
    if found.type.name != "ID":
        return "not argon2id"
    if found.memory_cost > MEMORY_KIB_MAX:
        return f"asks for {found.memory_cost} KiB of memory, more than {MEMORY_KIB_MAX}"
    return ""


class Passwords:
    """Verifies passwords; used by several threads at once."""

    def __init__(self, remember_s: float = 0.0) -> None:
        self._remember_s = remember_s
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, float] = {}  # digest: until when
        self._lock = threading.Lock()
        self._hasher = new_hasher()
        self.dummy_hash = self._hasher.hash(secrets.token_bytes(16))
        self.hashes = 0  # computed since the start
        self._mosquitto_iterations = -1  # of most stored hashes of mosquitto; -1: there are none

    def learn_cost(self, hashes: Iterable[str]) -> None:
        """Make a hash for an unknown user cost as much as most stored ones."""
        argon2: list[str] = []
        mosquitto: list[str] = []
        for stored in hashes:
            (mosquitto if is_mosquitto_hash(stored) else argon2).append(stored)
        counts = Counter(decode_hash(stored).iterations for stored in mosquitto)
        self._mosquitto_iterations = counts.most_common(1)[0][0] if counts else -1
        costs = Counter("$".join(stored.split("$")[:4]) for stored in argon2)
        if not costs:
            return
        found = extract_parameters(
            costs.most_common(1)[0][0] + "$" + self.dummy_hash.split("$", 4)[4]
        )
        if found != extract_parameters(self.dummy_hash):
            self.dummy_hash = PasswordHasher.from_parameters(found).hash(secrets.token_bytes(16))

    def verify(self, stored: str | None, username: str, password: bytes, now: float) -> bool:
        """Tell whether the password is right; None as hash costs the same and is False."""
        mark = self._digest(stored or "", username, password)
        if stored is not None and self._remember_s:
            with self._lock:
                if self._remembered.get(mark, 0.0) > now:
                    return True
        with self._lock:
            self.hashes += 1
        if not self._is_right(stored, password):
            return False
        if self._remember_s:
            with self._lock:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[mark] = now + self._remember_s
        return True

    def _is_right(self, stored: str | None, password: bytes) -> bool:
        if stored is not None and is_mosquitto_hash(stored):
            is_right = decode_hash(stored).verify(password)
            if not is_right:  # else a new hash follows, which costs the same
                self._verify_argon2(self.dummy_hash, password)
            return is_right
        if self._mosquitto_iterations >= 0:
            derive(password, b"", self._mosquitto_iterations)
        is_right = self._verify_argon2(self.dummy_hash if stored is None else stored, password)
        return is_right and stored is not None

    def _verify_argon2(self, stored: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (Argon2Error, InvalidHashError):
            return False

    def renewed(self, stored: str, password: bytes) -> str:
        """Return the hash that replaces a right one of mosquitto; empty: it is one of ours."""
        return self._hasher.hash(password) if is_mosquitto_hash(stored) else ""

    def _digest(self, stored: str, username: str, password: bytes) -> bytes:
        """Digest all three, so that a changed hash invalidates what is remembered."""
        parts = (stored.encode(), username.encode("utf-8", "surrogatepass"), password)
        data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, data, hashlib.sha256)

"""Hash and verify passwords with argon2id, at the same cost for known and unknown users.

`Passwords.verify` hashes once, whether the user is known or not, so that neither the answer nor
its time tells which. A right password is remembered for a while as a keyed digest, so that a fleet
that reconnects at once is not hashed again; a wrong one is hashed every time.
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
        self._dummy = self._hasher.hash(secrets.token_bytes(16))
        self.hashes = 0  # computed since the start

    def learn_cost(self, hashes: Iterable[str]) -> None:
        """Make a hash for an unknown user cost as much as most stored ones."""
        costs = Counter("$".join(stored.split("$")[:4]) for stored in hashes)
        if not costs:
            return
        found = extract_parameters(costs.most_common(1)[0][0] + "$" + self._dummy.split("$", 4)[4])
        if found != extract_parameters(self._dummy):
            self._dummy = PasswordHasher.from_parameters(found).hash(secrets.token_bytes(16))

    def verify(self, stored: str | None, username: str, password: bytes, now: float) -> bool:
        """Tell whether the password is right; None as hash costs the same and is False."""
        mark = self._digest(stored or "", username, password)
        if stored is not None and self._remember_s:
            with self._lock:
                if self._remembered.get(mark, 0.0) > now:
                    return True
        with self._lock:
            self.hashes += 1
        try:
            self._hasher.verify(self._dummy if stored is None else stored, password)
        except (Argon2Error, InvalidHashError):
            return False
        if stored is None:
            return False
        if self._remember_s:
            with self._lock:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[mark] = now + self._remember_s
        return True

    def _digest(self, stored: str, username: str, password: bytes) -> bytes:
        """Digest all three, so that a changed hash invalidates what is remembered."""
        parts = (stored.encode(), username.encode("utf-8", "surrogatepass"), password)
        data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, data, hashlib.sha256)

"""Password hashes of mosquitto's password files: `$7$`, PBKDF2-SHA512, and `$6$`, salted SHA-512.

They are verified so that a fleet can move without new passwords, and replaced by argon2id when
their user logs in. `mosquitto_passwd` writes `$7$iterations$salt$hash` and before version 2
`$6$salt$hash`, with salt and hash in Base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

ITERATIONS_MAX: Final = 1_000_000  # more would keep a thread busy for a second
_HASH_BYTES: Final = 64
_SALT_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class MosquittoHash:
    """A decoded hash."""

    iterations: int  # 0: SHA-512, once
    salt: bytes
    digest: bytes

    def verify(self, password: bytes) -> bool:
        return hmac.compare_digest(self.digest, derive(password, self.salt, self.iterations))


def is_mosquitto_hash(stored: str) -> bool:
    """Tell whether a stored secret begins as mosquitto's do."""
    return stored.startswith(("$6$", "$7$"))


def decode_hash(stored: str) -> MosquittoHash:
    """Read a stored hash; ValueError says in one line what is wrong."""
    kind, *rest = stored.split("$")[1:]
    iterations = 0
    if kind == "7":
        count = rest.pop(0) if rest else ""
        if not (count.isascii() and count.isdecimal() and 0 < len(count) <= 9):
            raise ValueError("a $7$ hash without a number of iterations")
        iterations = int(count)
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"asks for {iterations} iterations, not 1 to {ITERATIONS_MAX}")
    if len(rest) != 2:
        raise ValueError(f"a ${kind}$ hash has a salt and a hash with $ between")
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in rest)
    except ValueError:
        raise ValueError(f"the salt or the hash of a ${kind}$ hash is not Base64") from None
    if len(digest) != _HASH_BYTES or not 1 <= len(salt) <= _SALT_BYTES_MAX:
        raise ValueError(f"the salt or the hash of a ${kind}$ hash has a wrong length")
    return MosquittoHash(iterations, salt, digest)


def derive(password: bytes, salt: bytes, iterations: int) -> bytes:
    """Hash a password as mosquitto does."""
    if not iterations:
        return hashlib.sha512(password + salt).digest()
    return hashlib.pbkdf2_hmac("sha512", password, salt, iterations, _HASH_BYTES)

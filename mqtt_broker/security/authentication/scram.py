"""SCRAM-SHA-256, the server's side (RFC 5802, RFC 7677): a proof without the password.

The stored keys cannot be used to log in: `StoredKey` checks a client's proof, `ServerKey` makes
the server's. The exchange of an unknown user goes on to its end with a dummy salt, the same each
time for the same name, and fails there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

METHOD: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 10_000
ITERATIONS_MIN: Final = 4_096  # RFC 7677
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
_NONCE_CHARS_MAX: Final = 256
_MESSAGE_BYTES_MAX: Final = 4_096
_PREFIX: Final = METHOD + "$"


class ScramError(ValueError):
    """The exchange fails. The text is for the audit log and holds nothing of the client's proof."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The keys that the broker stores in place of a password."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def encode(self) -> str:
        """Write the keys as PostgreSQL does."""
        salt, stored, server = map(_base64, (self.salt, self.stored_key, self.server_key))
        return f"{_PREFIX}{self.iterations}:{salt}${stored}:{server}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    """Decode base64 strictly: padding bits are 0, so that no proof has a second spelling."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("not base64") from None
    if _base64(found) != text:
        raise ScramError("not base64")
    return found


def is_stored_keys(text: str) -> bool:
    return text.startswith(_PREFIX)


def decode_stored_keys(text: str) -> StoredKeys:
    try:
        cost, keys = text.removeprefix(_PREFIX).split("$")
        iterations, salt = cost.split(":")
        stored, server = keys.split(":")
        found = StoredKeys(int(iterations), _bytes(salt), _bytes(stored), _bytes(server))
    except ValueError:
        raise ScramError("not SCRAM-SHA-256 keys") from None
    if not ITERATIONS_MIN <= found.iterations <= ITERATIONS_MAX:
        raise ScramError(f"SCRAM iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if len(found.stored_key) != 32 or len(found.server_key) != 32 or not found.salt:
        raise ScramError("SCRAM keys of a wrong length")
    return found


def make_keys(password: bytes, salt: bytes, iterations: int = ITERATIONS) -> StoredKeys:
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return StoredKeys(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def dummy_keys(secret: bytes, username: str, iterations: int = ITERATIONS) -> StoredKeys:
    """Return the keys of an unknown user: always the same, and no proof fits them."""
    name = username.encode("utf-8", "surrogatepass")
    salt = hmac.digest(secret, b"salt" + name, "sha256")[:SALT_BYTES]
    stored = hmac.digest(secret, b"stored" + name, "sha256")
    return StoredKeys(iterations, salt, stored, hmac.digest(secret, b"server" + name, "sha256"))


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message, decoded."""

    username: str
    nonce: str
    binding: str  # the GS2 header as it came
    bare: str


def decode_client_first(data: bytes) -> ClientFirst:
    text = _text(data)
    parts = text.split(",", 2)
    if len(parts) != 3:
        raise ScramError("malformed first message")
    flag, authzid, bare = parts
    if flag.startswith("p="):
        raise ScramError("channel binding is not supported")
    if flag not in ("n", "y"):
        raise ScramError("malformed first message")
    fields = bare.split(",")
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        raise ScramError("malformed first message")  # also `m=`, a mandatory extension
    username, nonce = _unescaped(fields[0][2:]), fields[1][2:]
    if authzid and (not authzid.startswith("a=") or _unescaped(authzid[2:]) != username):
        raise ScramError("authzid differs from the user name")
    if not username:
        raise ScramError("empty user name")
    _check_nonce(nonce)
    return ClientFirst(username, nonce, f"{flag},{authzid},", bare)


def _text(data: bytes) -> str:
    if len(data) > _MESSAGE_BYTES_MAX:
        raise ScramError("message too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScramError("message that is not UTF-8") from None


def _unescaped(name: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(name):
        if name[at] != "=":
            out.append(name[at])
            at += 1
            continue
        code = name[at : at + 3]
        if code not in ("=2C", "=3D"):
            raise ScramError("malformed user name")
        out.append("," if code == "=2C" else "=")
        at += 3
    return "".join(out)


def _check_nonce(nonce: str) -> None:
    if not 8 <= len(nonce) <= _NONCE_CHARS_MAX:
        raise ScramError("nonce with a wrong length")
    if any(not "!" <= character <= "~" for character in nonce):
        raise ScramError("malformed nonce")


class Exchange:
    """A SCRAM exchange, from the client's first message to the server's last."""

    __slots__ = ("_first", "_keys", "_nonce", "_server_first")

    def __init__(self, first: ClientFirst, keys: StoredKeys, nonce: str) -> None:
        self._first = first
        self._keys = keys
        self._nonce = first.nonce + nonce
        salt = _base64(keys.salt)
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}"

    @property
    def server_first(self) -> bytes:
        """The server's first message."""
        return self._server_first.encode("ascii")

    def finish(self, data: bytes) -> bytes:
        """Return the server's last message when the proof is right; ScramError when it is not."""
        without_proof, _, proof_text = _text(data).rpartition(",p=")
        fields = without_proof.split(",")
        if len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise ScramError("malformed last message")
        proof = _bytes(proof_text)
        binding = self._first.binding.encode()
        # Everything is compared before the answer, and in constant time.
        fits = hmac.compare_digest(_bytes(fields[0][2:]), binding)
        fits &= hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode())
        message = f"{self._first.bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(self._keys.stored_key, message, "sha256")
        if len(proof) != len(signature):
            raise ScramError("proof with a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        found = hashlib.sha256(client_key).digest()
        fits &= hmac.compare_digest(found, self._keys.stored_key)
        if not fits:
            raise ScramError("wrong proof")
        return b"v=" + base64.b64encode(hmac.digest(self._keys.server_key, message, "sha256"))

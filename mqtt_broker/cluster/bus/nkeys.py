"""Credentials of NATS that are keys: a seed (NKey), or a file with a JWT and a seed.

NATS sends a nonce, and the client answers with its signature. The seed never leaves the node.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mqtt_broker.cluster.bus.problems import BusConfigError

_SEED: Final = 18 << 3  # of the first byte: "S" in base 32
_USER: Final = 20 << 3  # "U"
_SEED_BYTES: Final = 36  # two of its kind, 32 of its own, two of a checksum
_FILE_BYTES_MAX: Final = 65_536
_SECTION: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END [A-Z ]+-{3,}")


class Credentials:
    """A user's seed, and the JWT that vouches for it, if there is one."""

    __slots__ = ("_key", "jwt", "public_key")

    def __init__(self, seed: str, jwt: str = "") -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(_decode_seed(seed))
        self.jwt = jwt
        self.public_key = _encode_user(self._key.public_key().public_bytes_raw())

    def sign(self, nonce: str) -> str:
        """Return the signature of a nonce, as CONNECT has it."""
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")


def read_credentials(path: str) -> Credentials:
    """Read a file of credentials (`.creds`), or a file with a seed alone (`.nk`)."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise BusConfigError(f"cannot read the credentials of NATS in {path}: {error}") from None
    sections: dict[str, str] = dict(_SECTION.findall(text))
    try:
        if sections:
            return Credentials(sections["USER NKEY SEED"], sections["NATS USER JWT"])
        return Credentials(text.strip())
    except (KeyError, ValueError):
        raise BusConfigError(
            f"{path} has no credentials of a user of NATS: expected the file that "
            "'nsc generate creds' writes, or a seed that begins with SU"
        ) from None


def _decode_seed(seed: str) -> bytes:
    data = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if len(data) != _SEED_BYTES or data[0] & 0xF8 != _SEED:
        raise ValueError
    if (data[0] & 7) << 5 | data[1] >> 3 != _USER:
        raise ValueError
    if binascii.crc_hqx(data[:-2], 0).to_bytes(2, "little") != data[-2:]:
        raise ValueError
    return data[2:-2]


def _encode_user(key: bytes) -> str:
    data = bytes([_USER]) + key
    data += binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data).decode().rstrip("=")

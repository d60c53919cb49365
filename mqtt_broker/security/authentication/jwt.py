"""Authenticate clients by a JSON Web Token, sent as the password and signed with a known key.

The key decides which algorithms are valid, never the token: a public key is not secret, and a
token that was signed with it as an HMAC secret is refused. Claims name the user, roles and topics,
and `exp` ends the connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import ConnectRequest
from mqtt_broker.security.authentication.chain import Denied, Outcome, Proof
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.rules.identity import TokenRule
from mqtt_broker.security.rules.rule import RuleError, check_topic

_HS: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # the bytes a secret needs. [RFC 7518, 3.2]
_RS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SECRET_BYTES_MIN: Final = 32
_RSA_BITS_MIN: Final = 2048
_TOKEN_RULES_MAX: Final = 200
_TOKEN_BYTES_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies signatures, with the algorithms it is valid for."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any

    def __repr__(self) -> str:
        return f"Key(kid={self.kid!r}, algorithms={self.algorithms!r})"


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims that are read from a token, and what they must be."""

    username: str = "sub"
    roles: str = "roles"
    acl: str = "acl"
    client_id: str = ""  # the claim that must equal the client id; empty: none
    issuer: str = ""
    audience: str = ""
    leeway_s: float = 0.0
    needs_expiry: bool = True


def read_keys(path: str) -> list[Key]:
    """Read the keys of a file: a JWKS (a JSON object with `keys`), a public key or certificate in
    PEM, or a secret.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    stripped = data.strip()
    if stripped.startswith(b"{"):
        return _read_jwks(path, stripped)
    if b"PRIVATE KEY" in stripped:
        raise FileError(f"{path}: this is a private key; the broker needs the public key")
    if stripped.startswith(b"-----BEGIN"):
        return [_public_key(path, stripped)]
    secret = data.rstrip(b"\r\n")
    if len(secret) < _SECRET_BYTES_MIN:
        raise FileError(
            f"{path}: the secret has {len(secret)} bytes; at least {_SECRET_BYTES_MIN} are needed"
        )
    return [Key(None, _secret_algorithms(secret), secret)]


def _public_key(path: str, pem: bytes) -> Key:
    try:
        if b"BEGIN CERTIFICATE" in pem:
            key: Any = load_pem_x509_certificate(pem).public_key()
        else:
            key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise FileError(f"{path}: not a public key in PEM") from None
    return Key(None, _algorithms_of(path, key), key)


def _secret_algorithms(secret: bytes) -> tuple[str, ...]:
    return tuple(name for name, size in _HS.items() if len(secret) >= size)


def _algorithms_of(path: str, key: object) -> tuple[str, ...]:
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_MIN:
            raise FileError(
                f"{path}: the RSA key has {key.key_size} bits; at least {_RSA_BITS_MIN} are needed"
            )
        return _RS
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _ES:
        return (_ES[key.curve.name],)
    raise FileError(f"{path}: the key is neither RSA nor on curve P-256, P-384 or P-521")


def _read_jwks(path: str, data: bytes) -> list[Key]:
    try:
        found = json.loads(data)["keys"]
        rows: list[Mapping[str, Any]] = [dict(row) for row in found]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileError(f"{path}: not a JSON Web Key Set") from None
    keys: list[Key] = []
    for number, row in enumerate(rows, 1):
        where = f"{path}: key {number}"
        if row.get("use", "sig") != "sig":
            continue
        if "d" in row:
            raise FileError(f"{where}: this is a private key; the broker needs the public key")
        try:
            key = jwt.PyJWK(dict(row)).key
        except Exception:  # of many types, and their texts quote the key
            raise FileError(f"{where}: not a valid key") from None
        if isinstance(key, bytes):
            if len(key) < _SECRET_BYTES_MIN:
                raise FileError(
                    f"{where}: the secret has {len(key)} bytes; at least {_SECRET_BYTES_MIN} are "
                    "needed"
                )
            algorithms = _secret_algorithms(key)
        else:
            algorithms = _algorithms_of(where, key)
        named = row.get("alg")
        if named is not None:
            if named not in algorithms:
                raise FileError(f"{where}: alg {named!r} is not valid for this key")
            algorithms = (named,)
        keys.append(Key(row.get("kid"), algorithms, key))
    if not keys:
        raise FileError(f"{path}: the set has no key for signatures")
    return keys


class TokenMethod:
    """Accepts tokens that a key of one file verifies."""

    def __init__(
        self,
        path: str,
        claims: Claims,
        *,
        name: str = "jwt",
        wall: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self._claims = claims
        self._wall = wall  # the time of day; None: `now` follows it
        self._keys: list[Key] = []
        self.load()

    def load(self) -> None:
        """Read the keys again; on FileError the keys of before stay."""
        self._keys = read_keys(self.path)

    @property
    def is_secret(self) -> bool:
        """Tell whether the file holds a shared secret, so that its readers could sign tokens."""
        return any(isinstance(key.key, bytes) for key in self._keys)

    def prove(self, request: ConnectRequest, now: float) -> Outcome:
        token = request.password
        if token is None or len(token) > _TOKEN_BYTES_MAX or token.count(b".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, RecursionError):  # JSON, as deep as the client likes
            return None
        for key in self._keys:
            if header.get("alg") not in key.algorithms:
                continue
            if key.kid is not None and header.get("kid") not in (None, key.kid):
                continue
            try:
                claims = jwt.decode(
                    token,
                    key.key,
                    algorithms=list(key.algorithms),
                    # Times are compared below.
                    options={
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_aud": False,
                        "verify_iss": False,
                        "verify_sub": False,
                        "verify_jti": False,
                    },
                )
            except (jwt.InvalidTokenError, RecursionError):
                continue
            return self._judge(request, claims, now)
        return None

    def _judge(self, request: ConnectRequest, claims: Mapping[str, Any], now: float) -> Outcome:
        wanted = self._claims
        # The broker's clock is read once and then counts on: it differs from the time of day when
        # the machine slept, or its clock was set after the broker's start.
        ahead = self._wall() - now if self._wall is not None else 0.0
        problem = _time_problem(wanted, claims, now + ahead)
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        username = claims.get(wanted.username)
        if problem:
            return _denied(problem)
        if wanted.issuer and claims.get("iss") != wanted.issuer:
            return _denied("wrong issuer")
        if wanted.audience and wanted.audience not in audiences:
            return _denied("wrong audience")
        if audience is not None and not wanted.audience:  # another service's. [RFC 7519, 4.1.3]
            return _denied("it has an audience, but the configuration has none")
        if not isinstance(username, str) or not username:
            return _denied(f"claim {wanted.username} has no user name")
        if wanted.client_id and claims.get(wanted.client_id) != request.client_id:
            return _denied(f"claim {wanted.client_id} is not the client id")
        try:
            token_rules = _token_rules(claims.get(wanted.acl) if wanted.acl else None)
            roles = _texts(claims.get(wanted.roles) if wanted.roles else None)
        except RuleError as error:
            return _denied(str(error))
        exp = claims.get("exp")
        expires_at = float(exp) + wanted.leeway_s - ahead if exp is not None else 0.0
        return Proof(username, frozenset(roles), token_rules, expires_at, self.name)


def _denied(why: str) -> Denied:
    return Denied(reasons.BAD_USER_NAME_OR_PASSWORD, f"token: {why}")


def _time_problem(wanted: Claims, claims: Mapping[str, Any], now: float) -> str:
    for name in ("exp", "nbf"):
        value = claims.get(name)
        if value is None:
            if name == "exp" and wanted.needs_expiry:
                return "exp is missing"
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return f"{name} is not a time"
        if not 0 < value < 1e11:
            return f"{name} is not a time"
        if name == "exp" and now >= value + wanted.leeway_s:
            return "expired"
        if name == "nbf" and now < value - wanted.leeway_s:
            return "not valid yet"
    return ""


def _texts(value: Any) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise RuleError("roles and topics must be lists of texts")


def _token_rules(value: Any) -> tuple[TokenRule, ...] | None:
    """Read `{"publish": [...], "subscribe": [...], "all": [...], "deny": [...]}`, denials first."""
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - {"publish", "subscribe", "all", "deny"}:
        raise RuleError("the ACL must be an object with keys publish, subscribe, all and deny")
    found: list[TokenRule] = []
    for action in ("deny", "publish", "subscribe", "all"):
        for topic in _texts(value.get(action)):
            check_topic(topic)
            found.append(
                TokenRule(action != "deny", action != "subscribe", action != "publish", topic)
            )
    if len(found) > _TOKEN_RULES_MAX:
        raise RuleError(f"the ACL has {len(found)} topics; the limit is {_TOKEN_RULES_MAX}")
    return tuple(found)

"""Tokens: what the key says counts, never what the token says of itself."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.security.authentication.chain import ChainEntry, PasswordMethod
from mqtt_broker.security.authentication.jwt import Claims, TokenMethod, read_keys
from mqtt_broker.security.files.errors import FileError
from tests.core.peers import START
from tests.security.gate import Gate, reason_of

SECRET: Final = b"s" * 40
OTHER: Final = b"o" * 40
RSA: Final = rsa.generate_private_key(65537, 2048)
EC: Final = ec.generate_private_key(ec.SECP256R1())
BAD: Final = reasons.BAD_USER_NAME_OR_PASSWORD


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def token(claims: dict[str, Any], key: Any = SECRET, alg: str = "HS256", **header: Any) -> bytes:
    return jwt.encode(claims, key, algorithm=alg, headers=header or None).encode()


def way(tmp_path: Path, data: bytes = SECRET, **claims: Any) -> TokenMethod:
    path = tmp_path / "key"
    path.write_bytes(data)
    return TokenMethod(str(path), Claims(**claims))


def gate(way: TokenMethod, **fields: Any) -> Gate:
    return Gate(ChainEntry(way), **fields)


GOOD: Final = {"sub": "ann", "exp": START + 60}


def test_each_kind_of_key(tmp_path: Path) -> None:
    for data, key, alg in (
        (SECRET, SECRET, "HS256"), (SECRET * 2 + b"\n", SECRET * 2, "HS512"),
        (pem(RSA), RSA, "RS256"),
        (pem(RSA), RSA, "PS384"), (pem(EC), EC, "ES256"),
    ):  # fmt: skip
        found = gate(way(tmp_path, data))
        found.enter("c", password=token(GOOD, key, alg))
        assert found.world.broker.connections["c"].username == "ann"


def test_expiry_ends_the_session(tmp_path: Path) -> None:
    found = gate(way(tmp_path))
    lines: list[str] = []
    found.world.broker.state.log = lines.append
    peer = found.enter("c", password=token(GOOD))
    found.world.wait(59.5)
    assert not peer.is_closed
    found.world.wait(1)
    (goodbye,) = peer.take()
    assert isinstance(goodbye, Disconnect) and goodbye.reason == reasons.MAXIMUM_CONNECT_TIME
    assert lines == ["c (192.0.2.1:1): credentials expired at 00:17:40Z"]  # START + 60
    assert reason_of(found.come("c", password=token(GOOD))) == BAD
    for _ in range(100):
        found.enter("c", password=token({"sub": "ann", "exp": START + 1e6})).drop()
    assert found.world.timers < 70, "timers of those who have gone stay"


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "ann"},
        {"sub": "ann", "exp": START},
        {"sub": "ann", "exp": "soon"},
        {"sub": "ann", "exp": True},
        {"sub": "ann", "exp": float("inf")},
        {"sub": "ann", "exp": -5},
        {**GOOD, "nbf": START + 5},
        {"exp": START + 60},
        {**GOOD, "sub": ""},
        {**GOOD, "sub": 7},
        {**GOOD, "acl": ["a"]},
        {**GOOD, "acl": {"read": ["a"]}},
        {**GOOD, "acl": {"publish": ["a#"]}},
        {**GOOD, "acl": {"publish": [f"t/{n}" for n in range(201)]}},
        {**GOOD, "roles": {"a": 1}},
        {**GOOD, "aud": "another service"},
        {**GOOD, "aud": ["one", "two"]},
        {**GOOD, "aud": []},
    ],
)
def test_claims_that_do_not_do(tmp_path: Path, claims: dict[str, Any]) -> None:
    try:
        sent = token(claims)
    except TypeError:  # the library refuses to write it, others do not
        head, body = (
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
            for part in ({"alg": "HS256", "typ": "JWT"}, claims)
        )
        import hmac

        mac = hmac.digest(SECRET, head + b"." + body, "sha256")
        sent = head + b"." + body + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")
    assert reason_of(gate(way(tmp_path)).come("c", password=sent)) == BAD


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> bytes:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def deep() -> list[bytes]:
    """Header or claims nested deeper than a parser goes; the claims rightly signed."""
    import hmac

    nested = b'{"alg":' + b"[" * 3_000 + b"]" * 3_000 + b"}"
    found = []
    for head, body in ((nested, b"{}"), (b'{"alg": "HS256"}', nested)):
        signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (head, body))
        mac = hmac.digest(SECRET, signed, "sha256")
        found.append(signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"="))
    return found


def test_claims_that_are_deep_are_no_mistake_of_ours(tmp_path: Path) -> None:
    for sent in deep():
        assert reason_of(gate(way(tmp_path)).come("c", password=sent)) == BAD


def test_forgeries(tmp_path: Path) -> None:
    import hmac

    public = pem(RSA)
    found = gate(way(tmp_path, public))
    body = forged({"alg": "HS256"}, GOOD)[:-1]
    confused = body + b"." + base64.urlsafe_b64encode(hmac.digest(public, body, "sha256"))
    right = token(GOOD, RSA, "RS256")
    for sent in (
        confused.rstrip(b"="), forged({"alg": "none"}, GOOD), forged({"alg": "None"}, GOOD),
        forged({}, GOOD), b"a.b.c", b"..", b"\xff.\xff.\xff", right[:-4], right[:-4] + b"AAAA",
        token(GOOD, RSA, "RS256", jwk={"kty": "oct", "k": "AA"})[:-2], b"x" * 20_000,
        token(GOOD, EC, "ES256"), *deep(),
    ):  # fmt: skip
        assert reason_of(found.come("c", password=sent)) == BAD
    assert reason_of(found.come("c", password=right)) == 0


def test_a_key_set(tmp_path: Path) -> None:
    rows = []
    for kid, text in (
        ("r", jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key())),
        ("e", jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key())),
    ):
        row = json.loads(text)
        rows.append({**row, "kid": kid})
    rows.append({"kty": "RSA", "use": "enc"})
    data = json.dumps({"keys": rows}).encode()
    found = gate(way(tmp_path, data))
    assert reason_of(found.come("c", password=token(GOOD, RSA, "RS256", kid="r"))) == 0
    assert reason_of(found.come("c", password=token(GOOD, EC, "ES256", kid="e"))) == 0
    assert reason_of(found.come("c", password=token(GOOD, EC, "ES256"))) == 0
    assert reason_of(found.come("c", password=token(GOOD, EC, "ES256", kid="r"))) == BAD
    assert reason_of(found.come("c", password=token(GOOD, SECRET, "HS256", kid="r"))) == BAD


def test_issuer_audience_and_client_id(tmp_path: Path) -> None:
    found = gate(way(tmp_path, issuer="us", audience="mqtt", client_id="cid", username="name"))
    good = {"name": "ann", "exp": START + 60, "iss": "us", "aud": ["x", "mqtt"], "cid": "c"}
    assert reason_of(found.come("c", password=token(good))) == 0
    for key in ("iss", "aud", "cid", "name"):
        for value in ("other", None):
            bad = {k: v for k, v in good.items() if k != key} | ({key: value} if value else {})
            if key == "name" and value:
                continue
            assert reason_of(found.come("c", password=token(bad))) == BAD


def test_what_a_token_lets_do(tmp_path: Path) -> None:
    found = gate(way(tmp_path), rules=[("deny", "all", "x")])
    claims = {**GOOD, "acl": {"subscribe": ["t/%c/#"], "deny": ["t/c/no"]}, "roles": "a b"}
    peer = found.enter("c", password=token(claims))
    for text, code in (("t/c/yes", 0), ("t/c/no", 0x87), ("t/c/#", 0x87), ("t/d/x", 0x87)):
        peer.subscribe(text)
        assert peer.take()[0].reasons == [code], text


def test_a_token_of_somebody_else_leaves_the_password_its_turn(tmp_path: Path) -> None:
    found = gate(way(tmp_path))
    found.use(
        ChainEntry(way(tmp_path)), ChainEntry(PasswordMethod("file", found.known))
    )  # fmt: skip
    assert reason_of(found.come("c", "ann")) == 0
    assert reason_of(found.come("c", "ann", password=token(GOOD, OTHER))) == BAD
    found.workers.room = 0  # a token is not hashed, and waits for nobody
    assert reason_of(found.come("d", password=token(GOOD))) == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"short", "5 bytes; at least 32"),
        (b"{}", "not a JSON Web Key Set"),
        (b'{"keys": []}', "no key"),
        (b'{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "5 bytes; at least 32"),
        (b'{"keys": [{"kty": "what"}]}', "not a valid key"),
        (b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----", "not a public key"),
        (
            RSA.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            "a private key",
        ),
        (pem(rsa.generate_private_key(65537, 1024)), "1024 bits; at least 2048"),
        (pem(ec.generate_private_key(ec.SECP256K1())), "neither RSA nor"),
        (b'{"keys": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", "not a JSON Web Key Set"),
    ],
)  # fmt: skip
def test_bad_keys(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(FileError, match=why):
        read_keys(str(path))
    with pytest.raises(FileError, match="No such file"):
        read_keys(str(path) + "x")


def test_keys_that_are_broken_leave_the_old_ones(tmp_path: Path) -> None:
    found = way(tmp_path)
    Path(found.path).write_bytes(b"short")
    with pytest.raises(FileError):
        found.load()
    assert reason_of(gate(found).come("c", password=token(GOOD))) == 0
    Path(found.path).write_bytes(OTHER)
    found.load()
    assert reason_of(gate(found).come("c", password=token(GOOD))) == BAD

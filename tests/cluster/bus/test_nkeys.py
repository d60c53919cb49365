"""Credentials that are keys, with the examples of NATS' own documents."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from mqtt_broker.cluster.bus.nkeys import Credentials, read_credentials
from mqtt_broker.cluster.bus.problems import BusConfigError

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
CREDENTIALS = f"""\
-----BEGIN NATS USER JWT-----
eyJ0eXAi.eyJqdGkiOi.c2lnbmF0
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""


def test_the_public_key_of_a_seed() -> None:
    assert Credentials(SEED).public_key == PUBLIC


def test_a_signature() -> None:
    signature = Credentials(SEED).sign("nonce")
    raw = base64.b32decode(PUBLIC + "=" * (-len(PUBLIC) % 8))[1:-2]
    padded = signature + "=" * (-len(signature) % 4)
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.urlsafe_b64decode(padded), b"nonce")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "user"
    path.write_text(CREDENTIALS)
    found = read_credentials(str(path))
    assert (found.public_key, found.jwt) == (PUBLIC, "eyJ0eXAi.eyJqdGkiOi.c2lnbmF0")
    path.write_text(f"{SEED}\n")
    found = read_credentials(str(path))
    assert (found.public_key, found.jwt) == (PUBLIC, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        PUBLIC,
        SEED[:-1] + "A",  # its checksum is wrong
        "SAACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",  # of an account
        CREDENTIALS.replace("USER NKEY", "OTHER"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "user"
    path.write_text(text)
    with pytest.raises(BusConfigError, match="has no credentials of a user") as caught:
        read_credentials(str(path))
    assert SEED[2:-1] not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BusConfigError, match="cannot read the credentials of NATS in"):
        read_credentials(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(BusConfigError, match="cannot read the credentials of NATS in"):
        read_credentials(str(tmp_path / "binary"))

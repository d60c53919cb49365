"""SCRAM-SHA-256: the RFC's example, whole exchanges through a broker, and all that can be wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Auth, Connack, Disconnect
from mqtt_broker.security.authentication import scram
from mqtt_broker.security.authentication.accounts import Account
from mqtt_broker.security.authentication.chain import ChainEntry, PasswordMethod, ScramMethod
from mqtt_broker.security.authentication.scram import METHOD, ScramError
from tests.core.peers import Peer
from tests.security.gate import Gate, Known, auth, connect, reason_of

SALT: Final = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS: Final = scram.make_keys(b"pencil", SALT, 4096)
DENIED: Final = reasons.NOT_AUTHORIZED


def test_the_example_of_rfc_7677() -> None:
    first = scram.decode_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange = scram.Exchange(first, KEYS, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.server_first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = exchange.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


class Client:
    """The other side, written from the RFC."""

    def __init__(self, username: str = "ann", password: bytes = b"pencil") -> None:
        self.password = password
        self.nonce = "clientnonce"
        self.bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"
        self.signature = b""

    @property
    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def last(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce) and len(fields["r"]) > len(self.nonce)
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password, salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        message = f"{self.bare},{server_first.decode()},{without}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self.signature = b"v=" + base64.b64encode(hmac.digest(server_key, message, "sha256"))
        return without.encode() + b",p=" + proof


def gate(*, is_slow: bool = False, **fields: Any) -> Gate:
    known = Known(Account("ann", scram=KEYS), Account("a,b=c", scram=KEYS), is_slow=is_slow)
    return Gate(ChainEntry(PasswordMethod("file", known)), ChainEntry(ScramMethod()), **fields)


def data_of(packet: Any) -> bytes:
    found: bytes = packet.properties.binary(prop.AUTHENTICATION_DATA)
    return found


def challenged(found: Gate, client: Client, client_id: str = "c") -> tuple[Peer, bytes]:
    peer = found.come(client_id, method=METHOD, data=client.first)
    (packet,) = peer.take()
    assert isinstance(packet, Auth) and packet.reason == reasons.CONTINUE_AUTHENTICATION
    return peer, data_of(packet)


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("username", ["ann", "a,b=c"])
def test_exchange_and_again(is_slow: bool, username: str) -> None:
    found = gate(is_slow=is_slow)
    client = Client(username)
    peer, server_first = challenged(found, client)
    peer.send(auth(reasons.CONTINUE_AUTHENTICATION, METHOD, client.last(server_first)))
    (connack,) = peer.take()
    assert isinstance(connack, Connack) and connack.reason == 0
    assert data_of(connack) == client.signature
    assert found.world.broker.connections["c"].username == username
    again = Client(username)
    peer.send(auth(reasons.REAUTHENTICATE, METHOD, again.first))
    found.workers.do_all(found.world)
    peer.send(auth(0x18, METHOD, again.last(data_of(peer.take()[0]))))
    (done,) = peer.take()
    assert isinstance(done, Auth) and done.reason == 0 and data_of(done) == again.signature


def test_a_client_that_asks_to_be_asked() -> None:
    found = gate()
    client = Client()
    peer = found.come("c", method=METHOD)
    assert data_of(peer.take()[0]) is None
    peer.send(auth(0x18, METHOD, client.first))
    peer.send(auth(0x18, METHOD, client.last(data_of(peer.take()[0]))))
    assert reason_of(peer) == 0


def test_as_somebody_else_again() -> None:
    found = gate()
    client, other = Client(), Client("a,b=c")
    peer, server_first = challenged(found, client)
    peer.send(auth(0x18, METHOD, client.last(server_first)))
    peer.take()
    peer.send(auth(reasons.REAUTHENTICATE, METHOD, other.first))
    peer.send(auth(0x18, METHOD, other.last(data_of(peer.take()[0]))))
    (goodbye,) = peer.take()
    assert isinstance(goodbye, Disconnect) and goodbye.reason == DENIED


@pytest.mark.parametrize("username", ["ann", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(username: str) -> None:
    """Same packets, of the same size; the salt of a user is the same each time."""
    found = gate()
    salts = set()
    for _ in range(2):
        client = Client(username, b"wrong")
        peer, server_first = challenged(found, client)
        assert len(server_first) == len("r=") + 11 + 24 + len(",s=") + 24 + len(",i=4096")
        salts.add(server_first.split(b",")[1])
        peer.send(auth(0x18, METHOD, client.last(server_first)))
        assert reason_of(peer) == DENIED and peer.is_closed
    assert len(salts) == 1


ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def twin(proof: bytes) -> bytes:
    """The same in base64: of the last character before "=" two bits stand for nothing."""
    place = ALPHABET.find(proof[-2:-1]) if len(proof) > 1 else 0
    return proof[:-2] + ALPHABET[place + 1 : place + 2] + b"="


def spoil(last: bytes) -> dict[str, bytes]:
    head, _, proof = last.rpartition(b",p=")
    return {
        "another nonce": head[:-3] + b"xyz,p=" + proof,
        "no proof": head,
        "empty proof": head + b",p=",
        "short proof": head + b",p=AAAA",
        "not base64": head + b",p=!!!!" + proof,
        "bits that stand for nothing": head + b",p=" + twin(proof),
        "another binding": b"c=eSws" + last[6:],
        "nothing": b"",
        "rubbish": b"\xff" * 50,
        "long": last + b"A" * 5_000,
        "an extension": head + b",m=x,p=" + proof,
        "zeros": head + b",p=" + base64.b64encode(bytes(32)),
    }


@pytest.mark.parametrize("what", spoil(b"c=biws,r=abcdef,p=x"))
def test_last_messages_that_do_not_do(what: str) -> None:
    found = gate()
    client = Client()
    peer, server_first = challenged(found, client)
    peer.send(auth(0x18, METHOD, spoil(client.last(server_first))[what]))
    assert reason_of(peer) == DENIED


def test_a_proof_counts_once() -> None:
    found = gate()
    client = Client()
    peer, server_first = challenged(found, client)
    last = client.last(server_first)
    peer.send(auth(0x18, METHOD, last))
    assert reason_of(peer) == 0
    replayed, _ = challenged(found, client, "d")
    replayed.send(auth(0x18, METHOD, last))
    assert reason_of(replayed) == DENIED


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n,,", b"p=tls-unique,,n=ann,r=clientnonce", b"n,a=bob,n=ann,r=clientnonce",
        b"n,,m=x,n=ann,r=clientnonce", b"n,,n=,r=clientnonce", b"n,,n=ann,r=short",
        b"n,,n=an=n,r=clientnonce", b"n,,n=ann", b"n,,n=ann,r=client\x01nonce", b"\xff\xfe",
        b"x,,n=ann,r=clientnonce", b"n,,n=ann,r=" + b"x" * 300, b"n,,n=ann,r=" + b"x" * 5_000,
    ],
)  # fmt: skip
def test_first_messages_that_do_not_do(first: bytes) -> None:
    assert reason_of(gate().come("c", method=METHOD, data=first)) == DENIED


@given(st.binary(max_size=200))
def test_any_input_is_an_answer_or_a_scram_error(data: bytes) -> None:
    first = scram.decode_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    calls: tuple[Callable[[bytes], object], ...] = (
        scram.decode_client_first,
        scram.Exchange(first, KEYS, "nonce").finish,
        lambda raw: scram.decode_stored_keys(raw.decode("latin-1")),
    )
    for call in calls:
        with contextlib.suppress(ScramError):
            call(data)


def test_stored_keys() -> None:
    assert scram.decode_stored_keys(KEYS.encode()) == KEYS
    assert KEYS.encode().split("$")[1].startswith("4096:")
    assert "stored_key" not in repr(KEYS) and "salt" not in repr(KEYS)
    for bad in (
        "SCRAM-SHA-256$", "SCRAM-SHA-256$4096:AA==$AA==:AA==", KEYS.encode().replace("4096", "1"),
        KEYS.encode().replace("4096", "99999999"), KEYS.encode()[:-3], "x",
    ):  # fmt: skip
        with pytest.raises(ScramError):
            scram.decode_stored_keys(bad)


def test_auth_before_the_answer_is_a_protocol_error() -> None:
    found = gate(is_slow=True)
    client = Client()
    peer, server_first = challenged(found, client)
    peer.send(auth(0x18, METHOD, client.last(server_first)))
    peer.take()
    peer.send(auth(reasons.REAUTHENTICATE, METHOD, client.first))
    peer.send(auth(reasons.REAUTHENTICATE, METHOD, client.first))
    assert reason_of(peer) == reasons.PROTOCOL_ERROR
    found.workers.do_all(found.world)


def test_a_user_without_such_keys() -> None:
    found = Gate()
    found.use(
        ChainEntry(PasswordMethod("file", found.known)), ChainEntry(ScramMethod())
    )  # fmt: skip
    peer, server_first = challenged(found, Client("ann"))
    peer.send(auth(0x18, METHOD, Client("ann").last(server_first)))
    assert reason_of(peer) == DENIED
    assert connect("c")  # and with a password it may still come
    assert reason_of(found.come("d", "ann")) == 0

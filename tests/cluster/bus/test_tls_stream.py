"""TLS over memory, against a peer that is memory, too."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from mqtt_broker.cluster.bus.settings import NatsSettings
from mqtt_broker.cluster.bus.tls_stream import TlsStream
from tests.server.certificates import Authority


class Peer:
    """The server's half."""

    def __init__(self, cert: str, key: str) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def handshake(self, data: bytes) -> bytes:
        self.incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def say(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def hear(self, data: bytes) -> bytes:
        self.incoming.write(data)
        return self.tls.read(len(data))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    authority = Authority()
    return (
        authority.write(tmp_path),
        *authority.issue("nats", dns=["nats.example"]).write(tmp_path, "nats"),
    )


def stream(ca: str, host: str = "nats.example") -> TlsStream:
    return TlsStream(NatsSettings("fleet", ["tls://x"], ca=ca).tls, host)


def shake_hands(mine: TlsStream, peer: Peer) -> None:
    assert mine.receive(b"") == b""
    while not mine.is_open:
        mine.receive(peer.handshake(mine.pending()))
    mine.receive(peer.handshake(mine.pending()))  # tickets


@pytest.mark.parametrize("step", [1, 1_000, 1_000_000])
def test_both_say_what_they_like(files: tuple[str, str, str], step: int) -> None:
    mine, peer = stream(files[0]), Peer(*files[1:])
    shake_hands(mine, peer)
    assert peer.hear(mine.encrypt(b"to the server")) == b"to the server"
    text = bytes(range(256)) * (1 if step == 1 else 1_000)
    data = peer.say(text)
    heard = [mine.receive(data[at : at + step]) for at in range(0, len(data), step)]
    assert b"".join(heard) == text


def test_another_host_is_not_believed(files: tuple[str, str, str]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(stream(files[0], "other.example"), Peer(*files[1:]))


def test_another_authority_is_not_believed(files: tuple[str, str, str], tmp_path: Path) -> None:
    mine, peer = stream(Authority().write(tmp_path, "other")), Peer(*files[1:])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(mine, peer)
    assert mine.pending(), "an alert says why"


def test_bytes_that_are_no_tls(files: tuple[str, str, str]) -> None:
    mine = stream(files[0])
    mine.receive(b"")
    with pytest.raises(ssl.SSLError):
        mine.receive(b"-ERR 'no TLS here'\r\n")

"""TLS with real certificates: who comes in, who does not, and what happens to the stream."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Will
from mqtt_broker.core.interfaces.access import PeerCertificate
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net import handshake_queue
from mqtt_broker.server.net.tls import TlsLayer, read_certificate
from tests.core.peers import connect, publish, subscribe
from tests.server.certificates import Authority
from tests.server.running import LOOPS, PATIENCE_S, Raw, Running
from tests.server.transports import HOST, Files, connected, endpoint, over_tls, tls_context

PING = b"\xc0\x00"
PONG = b"\xd0\x00"
any_loop = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@any_loop
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_message_goes_through(files: Files, loop: str, version: ssl.TLSVersion) -> None:
    context = tls_context(files.ca)
    context.minimum_version = context.maximum_version = version
    with (
        Running(endpoint(files.rules()), loop=loop) as broker,
        over_tls(broker.port, files.ca, context=context) as one,
        over_tls(broker.port, files.ca) as two,
    ):
        connected(one, "one").send(subscribe(V5, "a"))
        assert one.packet()[0] == 0x90
        connected(two, "two").send(publish("a", b"x" * 200_000))
        assert one.packet().endswith(b"x" * 200_000)


def test_a_packet_cut_anywhere(files: Files) -> None:
    """Records and packets need not begin together."""
    with (
        Running(endpoint(files.rules())) as broker,
        over_tls(broker.port, files.ca) as client,
    ):
        for byte in connect("c") + PING:
            client.send(bytes((byte,)))
        assert client.packet()[0] == 0x20
        assert client.packet() == PONG


def test_the_wrong_host_is_for_the_client_to_find_out(files: Files, tmp_path: Path) -> None:
    other = files.authority.issue("elsewhere", ip="192.0.2.1").write(tmp_path, "other")
    with (
        Running(endpoint(files.rules())) as good,
        Running(endpoint(type(files.rules())(*other))) as bad,
    ):
        over_tls(good.port, files.ca).sock.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            over_tls(bad.port, files.ca)


def test_an_old_version_is_refused(files: Files) -> None:
    context = tls_context(files.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Running(endpoint(files.rules(min_version="1.3"))) as broker:
        with pytest.raises(ssl.SSLError):
            over_tls(broker.port, files.ca, context=context)
        broker.wait_until(lambda: broker.refusals == {"TLS": 1})
        connected(over_tls(broker.port, files.ca)).sock.close()


def test_plain_mqtt_on_a_tls_listener_is_refused(files: Files) -> None:
    with Running(endpoint(files.rules())) as broker, broker.raw() as client:
        client.send(connect("c"))
        assert client.rest() == b""
        broker.wait_until(lambda: broker.refusals == {"TLS": 1})
        broker.wait_until(lambda: len(broker.server.net.handshakes) == 0)


# Certificates of clients.


def certified(broker: Running) -> list[PeerCertificate | None]:
    return [getattr(one.link, "certificate", None) for one in broker.server.broker.links]


def refused_in_handshake(broker: Running, files: Files, cert: tuple[str, str] | None) -> None:
    """TLS 1.3 tells a client only after its handshake is over; then nothing gets through."""

    def come() -> None:
        with over_tls(broker.port, files.ca, cert) as client:
            connected(client)

    with pytest.raises((ssl.SSLError, EOFError, OSError)):
        come()
    assert not broker.ask(lambda: broker.server.broker.connections)


def test_a_certificate_is_asked_for_and_told(files: Files) -> None:
    issued = files.authority.issue("device-7", dns=["device-7.fleet.example"])
    cert = files.client("device", issued)
    with (
        Running(endpoint(files.mutual(), name="devices")) as broker,
        over_tls(broker.port, files.ca, cert) as client,
    ):
        connected(client)
        links = [one.link for one in broker.server.broker.links]
        found = broker.ask(lambda: certified(broker))[0]
        assert found is not None
        assert found.common_name == "device-7"
        assert found.names == ("DNS:device-7.fleet.example",)
        assert int(found.serial, 16) == issued.certificate.serial_number
        assert found.issuer == "O=FleetMQ tests,CN=Test CA"
        assert [getattr(link, "listener", "") for link in links] == ["devices"]


@pytest.mark.parametrize("why", ["none", "expired", "another CA", "revoked"])
def test_a_certificate_that_does_not_count(files: Files, why: str) -> None:
    good = files.client("good", files.authority.issue("good"))
    bad = {
        "none": None,
        "expired": files.authority.issue("old", days=-1),
        "another CA": Authority("Other CA").issue("stranger"),
        "revoked": files.authority.issue("lost"),
    }[why]
    crl = files.authority.write_crl(files.folder, *([bad] if bad and why == "revoked" else []))
    with Running(endpoint(files.mutual(crl=crl))) as broker:
        refused_in_handshake(broker, files, files.client("bad", bad) if bad else None)
        broker.wait_until(lambda: sum(broker.refusals.values()) == 1)
        expected = "TLS" if why == "none" else "certificate"
        assert set(broker.refusals) == {expected}
        with over_tls(broker.port, files.ca, good) as client:
            connected(client)


def test_an_optional_certificate(files: Files) -> None:
    cert = files.client("device", files.authority.issue("device"))
    stranger = files.client("stranger", Authority("Other CA").issue("stranger"))
    with Running(endpoint(files.mutual(verify="optional"))) as broker:
        with over_tls(broker.port, files.ca) as one, over_tls(broker.port, files.ca, cert) as two:
            connected(one, "one")
            connected(two, "two")
            found = broker.ask(lambda: certified(broker))
            assert sorted(one.common_name if one else "" for one in found) == ["", "device"]
        broker.wait_until(lambda: not broker.server.broker.connections)
        refused_in_handshake(broker, files, stranger)


# Time, and who harms whom.


@any_loop
@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_who_does_not_finish_is_closed_in_time(files: Files, loop: str, start: bytes) -> None:
    ends = endpoint(files.rules(), handshake_timeout_s=0.05)
    with Running(ends, loop=loop) as broker, broker.raw() as slow:
        slow.send(start)
        assert slow.rest() == b""
        broker.wait_until(lambda: broker.refusals == {"handshake timeout": 1})
        assert broker.ask(lambda: len(broker.server.net.handshakes)) == 0


def test_silence_after_the_handshake_has_a_time_of_its_own(files: Files) -> None:
    ends = endpoint(files.rules(), connect_timeout_s=0.05)
    with Running(ends) as broker, over_tls(broker.port, files.ca) as silent:
        assert silent.rest() == b""
        broker.wait_until(lambda: not broker.server.broker.links)


def test_when_too_many_are_on_the_way_the_quietest_goes(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_queue, "OPENING_MAX", 8)
    with Running(endpoint(files.rules())) as broker:
        quiet = [broker.raw() for _ in range(12)]
        with over_tls(broker.port, files.ca) as client:
            connected(client)
        broker.wait_until(lambda: broker.refusals == {"too many handshakes": 5})
        assert broker.ask(lambda: len(broker.server.net.handshakes)) == 7
        assert quiet[0].rest() == b""
        for one in quiet:
            one.sock.close()


def test_a_flood_of_handshakes_lets_the_connected_through(files: Files) -> None:
    """However many wait in line, a turn of the sockets comes between two shares of it."""
    with Running(Endpoint(HOST, 0), endpoint(files.rules())) as broker:
        port = broker.bound[1].port
        context = tls_context(files.ca)
        plain = broker.client("c")
        flood = [socket.create_connection((HOST, port), PATIENCE_S) for _ in range(60)]
        done: list[Raw] = []

        def shake(sock: socket.socket) -> None:
            done.append(connected(Raw(context.wrap_socket(sock, server_hostname=HOST)), f"{sock}"))

        threads = [threading.Thread(target=shake, args=(sock,)) for sock in flood]
        for thread in threads:
            thread.start()
        for _ in range(20):
            plain.send(PING)
            assert plain.packet() == PONG
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(done) == 60
        for one in (*done, plain):
            one.sock.close()


def test_the_listener_waits_while_the_line_is_long(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_queue, "QUEUE_MAX", 2)
    monkeypatch.setattr(handshake_queue, "SHARE_S", 0.0)
    with Running(endpoint(files.rules())) as broker:
        threads = []
        done: list[Raw] = []

        def come(number: int) -> None:
            done.append(connected(over_tls(broker.port, files.ca), f"c{number}"))

        for number in range(20):
            threads.append(threading.Thread(target=come, args=(number,)))
            threads[-1].start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(done) == 20
        for one in done:
            one.sock.close()


# The stream.


def test_a_slow_reader_is_congested_as_on_a_plain_link(files: Files) -> None:
    with (
        Running(endpoint(files.rules()), outbox_bytes_max=100_000) as broker,
        over_tls(broker.port, files.ca) as slow,
        over_tls(broker.port, files.ca) as fast,
    ):
        connected(slow, "slow").send(subscribe(V5, "a"))
        slow.packet()
        connected(fast, "fast")
        budget = broker.server.broker.backlog
        payload = bytes(100_000)
        for _ in range(200):
            fast.send(publish("a", payload), PING)
            assert fast.packet() == PONG
        assert broker.ask(lambda: sum(budget.dropped.values())) > 0
        connection = broker.server.broker.connections["slow"]
        waiting = broker.ask(lambda: connection.link.backlog_bytes)  # type: ignore[attr-defined]
        assert 0 < waiting < 500_000
        assert slow.packet().endswith(payload)


def test_who_makes_tls_speak_and_does_not_read_is_a_slow_reader(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may ask for new keys as often as it likes; each time TLS answers."""

    def pending_output(layer: TlsLayer, *, may_wait: bool) -> bytes:
        said: bytes = layer._outgoing.read()
        return said + bytes(100_000) if layer.is_open and said == b"" else said

    with (
        Running(endpoint(files.rules()), outbox_bytes_max=1_000_000) as broker,
        over_tls(broker.port, files.ca) as client,
    ):
        connected(client)
        monkeypatch.setattr(TlsLayer, "pending_output", pending_output)
        link: Any = broker.server.broker.connections["c"].link
        while broker.ask(lambda: link.is_reading):
            client.send(PING)
        assert broker.ask(lambda: link.backlog_bytes) < 2_000_000


def test_the_end_is_said_both_ways(files: Files) -> None:
    with Running(endpoint(files.rules())) as broker:
        with over_tls(broker.port, files.ca) as client:
            connected(client).send(b"\xe0\x00")
            assert client.sock.recv(1) == b"", "close_notify, not a truncated stream"
        with over_tls(broker.port, files.ca) as client:
            connected(client)
            assert isinstance(client.sock, ssl.SSLSocket)
            client.sock.unwrap().close()  # ours is answered
            broker.wait_until(lambda: not broker.server.broker.connections)
        assert not broker.refusals


def test_a_client_that_says_everything_at_once_is_heard(files: Files) -> None:
    """The end of its handshake, CONNECT, PUBLISH, DISCONNECT and close_notify in one piece."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = tls_context(files.ca).wrap_bio(incoming, outgoing, server_hostname=HOST)
    with (
        Running(endpoint(files.rules())) as broker,
        over_tls(broker.port, files.ca) as witness,
        broker.raw() as client,
    ):
        connected(witness, "witness").send(subscribe(V5, "a"))
        witness.packet()
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.send(outgoing.read())
                incoming.write(client.sock.recv(65_536))
        tls.write(connect("c") + publish("a", b"all at once") + b"\xe0\x00")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        client.send(outgoing.read())
        assert witness.packet().endswith(b"all at once")
        assert client.rest()
        assert not broker.refusals


def test_a_truncated_stream_sends_the_will(files: Files) -> None:
    with (
        Running(endpoint(files.rules())) as broker,
        over_tls(broker.port, files.ca) as witness,
        over_tls(broker.port, files.ca) as client,
    ):
        connected(witness, "witness").send(subscribe(V5, "gone"))
        witness.packet()
        client.send(connect("c", will=Will("gone", b"!")))
        client.packet()
        client.reset()
        assert witness.packet().endswith(b"!")


def test_a_broken_record_ends_that_connection_alone(files: Files) -> None:
    with (
        Running(endpoint(files.rules())) as broker,
        over_tls(broker.port, files.ca) as other,
        over_tls(broker.port, files.ca) as client,
    ):
        connected(other, "other")
        connected(client, "c")
        with socket.socket(fileno=client.sock.detach()) as sock:
            sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            broker.wait_until(lambda: broker.refusals == {"TLS": 1})
        other.send(PING)
        assert other.packet() == PONG


def test_a_client_that_leaves_in_the_handshake(files: Files) -> None:
    with Running(endpoint(files.rules())) as broker:
        raw = broker.raw()
        raw.send(b"\x16\x03\x01")
        raw.reset()
        broker.wait_until(lambda: bool(broker.refusals))
        assert broker.ask(lambda: len(broker.server.net.handshakes)) == 0


def test_stopping_says_why_and_lets_half_open_ones_go(files: Files) -> None:
    with Running(endpoint(files.rules())) as broker:
        half = broker.raw()
        half.send(b"\x16\x03\x01")
        with over_tls(broker.port, files.ca) as client:
            connected(client)
            stopping = threading.Thread(target=broker.stop)
            stopping.start()
            assert client.packet() == b"\xe0\x01\x8b"
            stopping.join(PATIENCE_S)
        assert half.rest() == b""
        half.sock.close()


# Files.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cert": "missing.pem"}, ("tls.cert", "missing.pem", "No such file")),
        ({"key": "other.key"}, ("tls.key", "not the key of")),
        ({"cert": "nonsense"}, ("tls.cert", "not a certificate")),
        ({"key": "locked.key"}, ("tls.key", "encrypted")),
        ({"verify": "required", "ca": "nonsense"}, ("tls.ca", "PEM")),
        ({"verify": "required", "ca": "missing"}, ("tls.ca", "No such file")),
        ({"verify": "required", "ca": "ca.pem", "crl": "ca.pem"}, ("tls.crl", "no CRL")),
        ({"ciphers": "ROT13"}, ("tls.ciphers", "ROT13")),
    ],
)
def test_wrong_files_are_named(files: Files, fields: dict[str, str], words: Any) -> None:
    folder = files.folder
    files.authority.issue("other").write(folder, "other")
    (folder / "nonsense").write_text("nonsense")
    from cryptography.hazmat.primitives import serialization as s

    (folder / "locked.key").write_bytes(
        files.server.key.private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
        )
    )
    named = {
        key: str(folder / value) if key in ("cert", "key", "ca", "crl") else value
        for key, value in fields.items()
    }
    base = {"cert": files.cert, "key": files.key}
    rules = type(files.rules())(**{**base, **named})
    with pytest.raises(ConfigError) as caught, Running(endpoint(rules, name="devices")):
        pass
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("devices: ")
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(("names", "found"), [(["d7"], "d7"), (["d7", "admin"], ""), ([], "")])
def test_of_several_common_names_none_counts(names: list[str], found: str) -> None:
    subject = tuple((("commonName", name),) for name in names)
    assert read_certificate({"subject": subject}).common_name == found

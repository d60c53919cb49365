"""The further listeners of a broker in a test: TLS with a certificate of its own, and WebSocket."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.test_support.certificates import write_certificate
from mqtt_broker.test_support.listeners import urls_of
from mqtt_broker.testing import ThreadedBroker
from tests.core.peers import connect, publish
from tests.server.running import Raw
from tests.server.transports import connected, over_tls, over_websocket
from tests.test_support.peers import opened


def port_of(broker: ThreadedBroker, scheme: str) -> int:
    port = urlsplit(broker.urls[scheme]).port
    assert port is not None
    return port


def test_plain_alone_unless_asked_for() -> None:
    with ThreadedBroker() as broker:
        assert broker.urls == {"mqtt": f"mqtt://127.0.0.1:{broker.port}"}
        assert broker.urls["mqtt"] == broker.url
        assert broker.ca_file == ""


def test_the_first_of_a_scheme_has_the_url() -> None:
    found = urls_of((Endpoint(path="x"), Endpoint("::1", 1), Endpoint("127.0.0.1", 2)))
    assert found == {"mqtt": "mqtt://[::1]:1"}


def test_tls_and_websocket_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadedBroker(tls=True, websocket=True) as broker:
        assert caplog.text == ""  # nobody else may read the key
        assert list(broker.urls) == ["mqtt", "ws", "mqtts", "wss"]
        assert broker.urls["wss"].endswith("/mqtt")
        with (
            over_tls(port_of(broker, "mqtts"), broker.ca_file) as tls,
            over_websocket(port_of(broker, "ws")) as websocket,
            opened(broker) as plain,
        ):
            for number, peer in enumerate((tls, websocket, plain)):
                connected(peer, f"c{number}").send(publish("t", b"%d" % number))
            found = broker.wait_for_messages(3, "t")
            assert {one.client_id for one in found} == {"c0", "c1", "c2"}
        before = dict(broker.urls)
        broker.restart()
        assert broker.urls == before
        over_tls(port_of(broker, "mqtts"), broker.ca_file).sock.close()
    assert not Path(broker.ca_file).exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_strict_client_trusts_the_certificate(host: str) -> None:
    with ThreadedBroker(tls=True) as broker:
        context = ssl.create_default_context(cafile=broker.ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        sock = socket.create_connection(("127.0.0.1", port_of(broker, "mqtts")))
        with Raw(context.wrap_socket(sock, server_hostname=host)) as peer:
            peer.send(connect("c"))
            assert peer.packet()[3] == 0


def test_who_does_not_know_the_authority_does_not_trust_it(tmp_path: Path) -> None:
    other = write_certificate(tmp_path)
    with ThreadedBroker(tls=True) as broker, pytest.raises(ssl.SSLCertVerificationError):
        over_tls(port_of(broker, "mqtts"), other.ca)


def test_without_the_package_it_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match="pip install cryptography") as caught:
        write_certificate(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError), ThreadedBroker(tls=True):
        pass


@pytest.mark.parametrize("scheme", ["mqtts", "ws"])
def test_faults_are_the_same_over_every_listener(scheme: str) -> None:
    with ThreadedBroker(tls=True, websocket=True) as broker:
        port = port_of(broker, scheme)

        def client() -> Raw:
            raw = over_tls(port, broker.ca_file) if scheme == "mqtts" else over_websocket(port)
            return connected(raw)

        with client() as peer:
            broker.delay("c", 0.05)
            peer.send(publish("t", b"late", qos=1))
            assert peer.packet()[0] == 0x40
            broker.kick("c")
            assert peer.packet() == b"\xe0\x01\x98"
        with client() as peer:
            broker.drop("c")
            assert broker.clients == []
            with pytest.raises((EOFError, OSError)):
                peer.exactly(1)
        with client(), client():
            broker.restart(kill=True)
            assert broker.clients == []
        with client():
            broker.wait_for_clients("c")

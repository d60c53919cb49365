"""Settings of the bus: what is wrong is said, and a password never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.cluster.bus.problems import BusConfigError
from mqtt_broker.cluster.bus.settings import NatsServer, NatsSettings
from tests.server.certificates import Authority

URL = "nats://localhost"


def test_a_url() -> None:
    server = NatsServer("tls://us%40er:p%3Ass@nats.example:4333")
    assert (server.host, server.port, server.needs_tls) == ("nats.example", 4333, True)
    assert (server.user, server.password, server.token) == ("us@er", "p:ss", "")
    assert str(server) == "tls://nats.example:4333"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://localhost", "nats://localhost:4222"),
        ("nats://t0ken@[::1]:1/", "nats://[::1]:1"),
        ("nats://user:@host", "nats://host:4222"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert str(NatsServer(url)) == shown


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:4222", "has the scheme 'none'"),
        ("http://user:s3cret@x", "has the scheme 'http'"),
        ("nats://", "has no host"),
        ("nats://s3cret@", "has no host"),
        ("nats://s3cret@x:port", "cannot be read"),
        ("nats://s3cret@[::1", "cannot be read"),
        ("nats://s3cret@x/path", "goes on behind its port"),
        ("nats://s3cret@x?y", "goes on behind its port"),
    ],
)
def test_wrong_urls(url: str, reason: str) -> None:
    with pytest.raises(BusConfigError, match=reason) as caught:
        NatsServer(url)
    assert "s3cret" not in str(caught.value) and "nats://host:4222" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "ä", "a\n", "x" * 33])
def test_names_of_clusters(name: str) -> None:
    with pytest.raises(BusConfigError, match="expected 1 to 32 letters, digits, - or _"):
        NatsSettings(name, [URL])


def test_subjects() -> None:
    settings = NatsSettings("fleet-1_A", [URL])
    assert settings.subject(17) == "fleetmq.fleet-1_A.17"
    assert settings.subject_of_all == "fleetmq.fleet-1_A.all"
    assert settings.subjects == "fleetmq.fleet-1_A.>"


def test_no_url() -> None:
    with pytest.raises(BusConfigError, match="no URL of NATS"):
        NatsSettings("fleet", [])


def test_files_of_tls(tmp_path: Path) -> None:
    authority = Authority()
    ca = authority.write(tmp_path)
    cert, key = authority.issue("node").write(tmp_path, "node")
    assert NatsSettings("fleet", [URL], ca=ca, cert=cert, key=key).tls.get_ca_certs()
    for files in ({"ca": cert + "x"}, {"cert": cert}, {"cert": ca, "key": key}, {"ca": key}):
        with pytest.raises(BusConfigError, match="NATS"):
            NatsSettings("fleet", [URL], **files)

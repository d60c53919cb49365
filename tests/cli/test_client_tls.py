"""TLS and WebSocket of `pub`, `sub` and `rr`: what connects, and what is said where it does not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from mqtt_broker.cli import client_tls
from mqtt_broker.cli import commands as entry
from mqtt_broker.server.config.endpoints import WebSocketRules
from tests.server.running import Running
from tests.server.transports import HOST, Files, endpoint


def pub(*argv: str) -> int:
    return entry.run_command(["pub", "-t", "a", "-m", "x", "-q", "1", *argv])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("more", [[], ["--tls-version", "tlsv1.2"], ["--tls-alpn", "mqtt"]])
def test_over_tls(files: Files, more: list[str]) -> None:
    with Running(endpoint(tls=files.rules())) as broker:
        assert pub("-h", HOST, "-p", str(broker.port), "--cafile", files.ca, *more) == 0
        assert pub("-L", f"mqtts://{HOST}:{broker.port}/a", "--cafile", files.ca, *more) == 0


@pytest.mark.parametrize("has_tls", [False, True])
def test_over_a_websocket(files: Files, has_tls: bool) -> None:
    listener = endpoint(tls=files.rules() if has_tls else None, websocket=WebSocketRules())
    with Running(listener) as broker:
        scheme = "wss" if has_tls else "ws"
        more = ["--cafile", files.ca] if has_tls else []
        assert pub("-L", f"{scheme}://{HOST}:{broker.port}", *more) == 0
        assert pub("-L", f"{scheme}://{HOST}:{broker.port}/mqtt", *more) == 0
        assert pub("-L", f"{scheme}://{HOST}:{broker.port}/other", *more) == 1


def test_with_a_certificate(files: Files) -> None:
    cert, key = files.client("device", files.authority.issue("device"))
    with Running(endpoint(tls=files.mutual())) as broker:
        where = ["-h", HOST, "-p", str(broker.port), "--cafile", files.ca]
        assert pub(*where, "--cert", cert, "--key", key) == 0
        assert pub(*where) == 1


def test_who_signed_it_is_checked_even_insecure(
    files: Files, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Files(tmp_path)
    with Running(endpoint(tls=files.rules())) as broker:
        where = ["-p", str(broker.port)]
        assert pub("-h", "localhost", *where, "--cafile", files.ca) == 1
        assert "its certificate is not trusted" in capfd.readouterr().err
        assert pub("-h", "localhost", *where, "--cafile", files.ca, "--insecure") == 0
        assert pub("-h", HOST, *where, "--cafile", other.ca, "--insecure") == 1
        assert "its certificate is not trusted: " in capfd.readouterr().err
        assert pub("-h", HOST, *where, "--tls-use-os-certs") == 1


def test_the_wrong_port_is_named(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    with Running(endpoint(tls=files.rules())) as broker:
        assert pub("-h", HOST, "-p", str(broker.port)) == 1
    assert "perhaps its port wants TLS" in capfd.readouterr().err
    with Running(endpoint()) as broker:
        assert pub("-h", HOST, "-p", str(broker.port), "--cafile", files.ca) == 1
        assert "does not speak TLS" in capfd.readouterr().err


def test_the_version_is_the_only_one() -> None:
    argv = ["-t", "a", "-n", "--tls-version", "tlsv1.3"]
    made = client_tls.context(entry.parser_of("pub").parse_args(argv))
    assert made.minimum_version is made.maximum_version is ssl.TLSVersion.TLSv1_3


def test_the_address_to_connect_from() -> None:
    with Running(endpoint()) as broker:
        assert pub("-h", HOST, "-p", str(broker.port), "-A", "127.0.0.1") == 0
        assert pub("-h", HOST, "-p", str(broker.port), "-A", "192.0.2.1") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--psk", "00"], "pre-shared key"),
        (["--psk-identity", "me"], "pre-shared key"),
        (["--cafile", "/no/such/file"], "--cafile /no/such/file: No such file"),
        (["--capath", "/no/such/dir"], "--capath /no/such/dir"),
        (["--key", "k"], "--key needs --cert"),
        (["--tls-alpn", ""], "--tls-alpn"),
        (["--tls-alpn", "x" * 256], "--tls-alpn"),
        (["--tls-version", "tlsv1.1"], "--tls-version"),
        (["--insecure", "--ciphers", "none"], "--ciphers"),
        (["--unix", "/a", "--insecure"], "--unix has no TLS"),
        (["--unix", "/a", "-A", "127.0.0.1"], "--unix replaces"),
        (["--cafile", __file__], __file__),
        (["-L", "http://host"], "its scheme is not"),
    ],
)
def test_a_wrong_option_is_one_line(
    argv: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        pub(*argv)
    assert ended.value.code == 2
    [line] = capfd.readouterr().err.splitlines()
    assert words in line

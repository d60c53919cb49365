"""Certificates, authorities and CRLs that change under a running broker."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import threading
from pathlib import Path

import pytest

from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.tls import TlsContext
from mqtt_broker.server.process.reload import Reload
from tests.server.broker_process import Process
from tests.server.certificates import Authority
from tests.server.running import Raw, Running
from tests.server.transports import HOST, Files, connected, endpoint, over_tls, tls_context

PING = b"\xc0\x00"
PONG = b"\xd0\x00"


def serial(raw: Raw) -> int:
    assert isinstance(raw.sock, ssl.SSLSocket)
    found = raw.sock.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def settle(broker: Running) -> None:
    """Two looks: a change counts when it is over."""
    broker.ask(broker.server.reload.look)
    broker.ask(broker.server.reload.look)


def test_a_new_certificate_is_shown_and_nobody_is_dropped(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with (
        Running(endpoint(files.rules())) as broker,
        over_tls(broker.port, files.ca) as before,
    ):
        connected(before, "before")
        new = files.authority.issue("broker", ip=HOST)
        new.write(tmp_path, "server")
        settle(broker)
        with over_tls(broker.port, files.ca) as after:
            connected(after, "after")
            assert serial(before) == files.server.certificate.serial_number
            assert serial(after) == new.certificate.serial_number
        before.send(PING)
        assert before.packet() == PONG


def test_half_a_change_waits_for_the_other_half(tmp_path: Path) -> None:
    files = Files(tmp_path)
    new = files.authority.issue("broker", ip=HOST)
    with Running(endpoint(files.rules())) as broker:
        Path(files.cert).write_bytes(new.pem)
        broker.ask(broker.server.reload.look)
        Path(files.key).write_bytes(new.key_pem)
        broker.ask(broker.server.reload.look)
        assert broker.server.reload.failures == broker.server.reload.count == 0
        broker.ask(broker.server.reload.look)
        assert broker.server.reload.count == 1


@pytest.mark.parametrize("how", ["nonsense", "gone", "another key"])
def test_a_broken_file_changes_nothing(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    key = Path(files.key)
    with Running(endpoint(files.rules(), name="devices")) as broker:
        good = key.read_bytes()
        if how == "gone":
            key.unlink()
        else:
            other = files.authority.issue("x").key_pem
            key.write_bytes(b"nonsense" if how == "nonsense" else other)
        settle(broker)
        assert "TLS of devices: not reloaded, the old content stays in force: " in caplog.text
        assert broker.server.reload.failures == 1
        with over_tls(broker.port, files.ca) as client:
            connected(client)
        settle(broker)
        assert broker.server.reload.failures == 1, "it is said once"
        key.write_bytes(good)
        settle(broker)
        assert broker.server.reload.count == 1


def test_whoever_is_revoked_does_not_come_back(tmp_path: Path) -> None:
    """Not with a ticket either."""
    files = Files(tmp_path)
    issued = files.authority.issue("device")
    cert = files.client("device", issued)
    crl = files.authority.write_crl(tmp_path)
    context = tls_context(files.ca, cert)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Running(endpoint(files.mutual(crl=crl))) as broker:
        with over_tls(broker.port, files.ca, context=context) as before:
            connected(before)
            assert isinstance(before.sock, ssl.SSLSocket)
            session = before.sock.session
            files.authority.write_crl(tmp_path, issued)
            settle(broker)
            before.send(PING)
            assert before.packet() == PONG
        with broker.raw() as again, pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(again.sock.dup(), server_hostname=HOST, session=session)
        broker.wait_until(lambda: broker.refusals == {"certificate": 1})


def test_a_new_authority_counts(tmp_path: Path) -> None:
    files, other = Files(tmp_path), Authority("Other CA")
    stranger = files.client("stranger", other.issue("stranger"))
    shown = Path(shutil.copy(files.ca, tmp_path / "shown.pem"))
    with Running(endpoint(files.mutual())) as broker:
        both = Path(other.write(tmp_path, "both"))
        both.write_bytes(both.read_bytes() + shown.read_bytes())
        os.replace(both, files.ca)
        settle(broker)
        with over_tls(broker.port, str(shown), stranger) as client:
            connected(client)


def test_sighup_reads_again(tmp_path: Path) -> None:
    files = Files(tmp_path)
    config = tmp_path / "broker.toml"
    config.write_text(
        "[[listeners]]\nname = 'tls'\nport = 0\n"
        f"tls = {{ cert = '{files.cert}', key = '{files.key}' }}\n"
    )
    with Process("--config", str(config)) as broker:
        port = broker.addresses[0][1]
        assert "mqtts://127.0.0.1:" in broker.greeting
        with over_tls(port, files.ca) as before:
            connected(before, "before")
            new = files.authority.issue("broker", ip=HOST)
            new.write(tmp_path, "server")
            broker.process.send_signal(signal.SIGHUP)
            broker.wait_for("TLS of tls: reloaded")
            with over_tls(port, files.ca) as after:
                assert serial(after) == new.certificate.serial_number
            Path(files.key).write_text("nonsense")
            broker.process.send_signal(signal.SIGHUP)
            assert "tls.cert" in broker.wait_for("not reloaded, the old content stays in force")
            before.send(PING)
            assert before.packet() == PONG
        broker.end()


def test_looks_by_itself_and_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtt_broker.server.process.reload.LOOK_S", 0.01)
    path = tmp_path / "f"
    path.write_text("1")
    seen = threading.Event()
    with Running() as broker:
        reload = broker.server.reload
        assert isinstance(reload, Reload)
        broker.ask(lambda: reload.add("f", [str(path)], seen.set))
        path.write_text("22")
        broker.wait_until(seen.is_set)
        broker.ask(lambda: reload.remove("f"))
        assert broker.ask(lambda: reload.timer) is None


def test_what_could_not_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Descriptors were out for a moment: the revoked certificate may not stay in force for that."""
    files = Files(tmp_path)
    load = TlsContext.reload
    tries: list[int] = []
    is_short = True

    def reload(context: TlsContext) -> None:
        if not is_short:
            load(context)
            return
        tries.append(1)
        try:
            raise OSError(24, "Too many open files")
        except OSError:
            raise ConfigError("tls.cert: Too many open files") from None

    monkeypatch.setattr(TlsContext, "reload", reload)
    with Running(endpoint(files.rules(), name="devices")) as broker:
        new = files.authority.issue("broker", ip=HOST)
        new.write(tmp_path, "server")
        settle(broker)
        settle(broker)
        assert len(tries) == 3
        assert caplog.text.count("Too many open files") == 1, "it is said once"
        is_short = False
        settle(broker)
        settle(broker)
        assert (broker.server.reload.failures, broker.server.reload.count) == (1, 1)
        with over_tls(broker.port, files.ca) as after:
            assert serial(after) == new.certificate.serial_number

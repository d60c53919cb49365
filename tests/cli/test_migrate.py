"""`fleetmq migrate`: what becomes of a mosquitto.conf, line by line."""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from mqtt_broker.cli import migrate as command
from mqtt_broker.cli.main import main
from mqtt_broker.cli.mosquitto_acl import NEEDS_AUTH, read_acl
from mqtt_broker.cli.mosquitto_config import Translation, read_lines
from mqtt_broker.server.config.config import Config, load
from tests.security.gate import connect
from tests.server.broker_process import environment
from tests.server.running import Running
from tests.server.transports import Files

EXAMPLES = [
    Path("/etc/mosquitto/mosquitto.conf"),
    Path("/usr/share/doc/mosquitto/examples/mosquitto.conf"),
]
TOOL = shutil.which("mosquitto_passwd")


class Migrated(NamedTuple):
    config: Config
    text: str
    told: str
    lines: dict[str, str]  # the number of the line: what became of it


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = {key: text for key, text in environment().items() if not key.startswith("FLEETMQ_")}
    monkeypatch.setattr("os.environ", kept)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def migrate(capfd: pytest.CaptureFixture[str], text: str) -> Migrated:
    Path("m.conf").write_text(text)
    assert main(["migrate", "m.conf", "--force"]) == 0, capfd.readouterr()
    told = capfd.readouterr().out
    assert main(["broker", "--check", "--config", "fleet.toml"]) == 0, capfd.readouterr()
    capfd.readouterr()
    written = Path("fleet.toml").read_text()
    for line in told.splitlines()[:-1]:
        assert f"# {line}" in written.splitlines()
    lines = dict(re.findall(r"^m\.conf:(\d+): .*? -> (.*)$", told, re.MULTILINE))
    return Migrated(load("fleet.toml", {}, {}), written, told, lines)


def hash_of(password: bytes) -> str:
    salt = b"0123456789ab"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, 101, 64)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def test_general_keys(capfd: pytest.CaptureFixture[str]) -> None:
    found = migrate(
        capfd,
        "max_inflight_messages 30\nmax_queued_messages 0\nmax_packet_size 5000\npersistence false\n"
        "persistent_client_expiration 14d\nqueue_qos0_messages true\nauto_id_prefix 7\n"
        "log_type all\nnonsense 1\nmax_keepalive 99999\nmax_qos 1\n",
    )
    settings = found.config.settings
    assert settings.inflight_max == 30 and settings.packet_bytes_max == 5_000
    assert settings.queue_messages_max == Config().settings.queue_messages_max
    assert settings.session_expiry_s_max == 14 * 86_400
    assert settings.queue_qos0 and settings.auto_id_prefix == "7" and settings.maximum_qos == 1
    assert found.config.durability == "memory"
    assert "no limit there" in found.lines["2"]
    assert found.lines["8"].startswith("not taken over: the log")
    assert found.lines["9"] == "not taken over: unknown: no key of mosquitto 2"
    assert "1 to 65535" in found.lines["10"]
    assert "7 lines taken over, 4 not" in found.told
    assert "inflight_max = 30  # m.conf:1" in found.text


def test_without_listeners_it_is_loopback_for_everybody(capfd: pytest.CaptureFixture[str]) -> None:
    (one,) = migrate(capfd, "# nothing\n").config.endpoints
    assert (str(one), one.rules.allow_anonymous) == ("127.0.0.1:1883", True)


def test_a_listener_that_lets_nobody_in_stays_on_loopback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = migrate(capfd, "listener 1884\n")
    assert [str(one) for one in found.config.endpoints] == ["127.0.0.1:1884"]
    assert "mosquitto refuses everybody" in found.told


def test_listeners(capfd: pytest.CaptureFixture[str]) -> None:
    text = (
        "port 1885\nbind_address 127.0.0.1\nallow_anonymous true\n"
        "listener 9001\nprotocol websockets\nwebsockets_origin https://a\nmax_connections 5\n"
        "listener 0 /run/m.sock\nlistener 1886 ::1\nmax_connections -1\nmount_point x/\n"
    )
    found = migrate(capfd, text)
    first, websocket, unix, six = found.config.endpoints
    assert str(first) == "127.0.0.1:1885" and first.rules.allow_anonymous
    assert str(websocket) == "0.0.0.0:9001" and websocket.rules.max_connections == 5
    assert websocket.rules.websocket is not None
    assert websocket.rules.websocket.origins == ("https://a",)
    assert unix.path == "/run/m.sock" and str(six) == "[::1]:1886"
    assert "mount_point" not in found.text.split("# The lines")[0]


def test_tls(capfd: pytest.CaptureFixture[str], place: Path) -> None:
    files = Files(place)
    text = (
        f"listener 8883\ncertfile {files.cert}\nkeyfile {files.key}\ncafile {files.ca}\n"
        "tls_version tlsv1.3\nuse_identity_as_username true\nrequire_certificate true\n"
        f"listener 8884\ncertfile {files.cert}\nkeyfile {files.key}\ncafile {files.ca}\n"
        "tls_version tlsv1.1\ncapath /x\npsk_hint x\nallow_anonymous true\n"
    )
    found = migrate(capfd, text)
    mutual, plain = (one.rules.tls for one in found.config.endpoints)
    assert mutual is not None and plain is not None
    assert (mutual.verify, mutual.ca, mutual.min_version) == ("required", files.ca, "1.3")
    assert (plain.verify, plain.ca, plain.min_version) == ("none", "", "1.2")
    (method,) = found.config.security.auth
    assert method.type == "certificate" and method.listeners == {"listener-1"}
    assert "tlsv1.1 is not spoken" in found.lines["12"]
    assert "pre-shared keys" in found.lines["14"]


def test_users_rules_and_listeners_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    Path("pw").write_text(f"ann:{hash_of(b'a')}\nbob:plain\nann:{hash_of(b'b')}\na,b:x\n")
    Path("acl").write_text(
        "# rules\ntopic read public/#\nuser ann\ntopic fleet/#\ntopic deny fleet/secret\n"
        "topic write a b/c\npattern readwrite own/%u/#\npattern deny own/%u/x\nnonsense\n"
        "topic read a/#/b\n"
    )
    found = migrate(capfd, "listener 1883\npassword_file pw\nacl_file acl\nallow_anonymous true\n")
    assert Path("fleet.users").read_text() == f"ann:{hash_of(b'a')}\n"
    assert Path("fleet.users").stat().st_mode & 0o777 == 0o600
    assert "pw:2: bob:*** -> not taken over: not an argon2 hash" in found.told
    assert "pw:3: ann:*** -> not taken over: listed twice" in found.told
    assert "plain" not in found.told + found.text
    rules = [(rule.describe(), rule.topic) for rule in found.config.security.rules]
    assert [text for text, _ in rules] == [
        "deny all fleet/secret for user ann",
        "allow subscribe public/# for without a user name",
        "allow all fleet/# for user ann",
        "allow publish a b/c for user ann",
        "deny all own/%u/x",
        "allow all own/%u/#",
    ]
    assert "acl:9: nonsense -> not taken over" in found.told
    (one,) = found.config.endpoints
    assert str(one) == "0.0.0.0:1883" and one.rules.allow_anonymous


def test_rules_that_become_nothing_open_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    Path("acl").write_text("user ann\ntopic fleet/#\n")
    found = migrate(capfd, "acl_file acl\n")
    assert "needs a password_file" in found.told
    assert found.config.security.has_rules
    assert [rule.is_allowed for rule in found.config.security.rules] == [False]


def test_settings_of_each_listener(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("pw1", "pw2", "unused"):
        Path(name).write_text(f"ann:{hash_of(b'a')}\n")
    text = (
        "per_listener_settings true\npassword_file unused\nlistener 1884\npassword_file pw1\n"
        "listener 1885 127.0.0.1\nallow_anonymous true\nlistener 1886\npassword_file pw2\n"
    )
    found = migrate(capfd, text).config
    assert [one.rules.allow_anonymous for one in found.endpoints] == [None, True, None]
    first, second = found.security.auth
    assert first.listeners == {"listener-1"} and second.listeners == {"listener-3"}


def test_bridges_and_plugins_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    text = (
        "connection cloud\naddress example.org\ntopic # both\nremote_password hunter2\n"
        "bridge_psk hunter2\nplugin /usr/lib/x.so\nplugin_opt_key hunter2\nauth_opt_a hunter2\n"
    )
    found = migrate(capfd, text)
    for number in "12345":
        assert "bridges are not supported" in found.lines[number]
    for number in "678":
        assert "plugins of mosquitto are not supported" in found.lines[number]
    assert "hunter2" not in found.told + found.text


def test_include_dir(capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "d").mkdir()
    (place / "d" / "b.conf").write_text("max_qos 1\n")
    (place / "d" / "A.conf").write_text("max_qos 0\n")
    (place / "d" / "c.txt").write_text("max_qos 2\n")
    found = migrate(capfd, f"include_dir {place}/d\n")
    assert found.config.settings.maximum_qos == 1
    assert found.told.index("A.conf:1") < found.told.index("b.conf:1")


WRONG = {
    "password_file none\n": "m.conf:1: password_file 'none': No such file or directory",
    "acl_file none\n": "m.conf:1: acl_file 'none': No such file or directory",
    "include_dir none\n": "m.conf:1: include_dir 'none': No such file or directory",
    "include_dir \0\n": "m.conf:1: include_dir '\\x00': embedded null byte",
    "listener 1\ncertfile a\n": "m.conf:1: TLS needs certfile and keyfile",
    "listener 1\nlistener 1\nallow_anonymous true\n": "two listeners on one address",
    "listener 1\ncertfile a\nkeyfile b\nallow_anonymous true\n": "tls.cert: a: No such file",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_converted_is_one_line(capfd: pytest.CaptureFixture[str], text: str) -> None:
    Path("m.conf").write_text(text)
    assert main(["migrate", "m.conf"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("fleetmq migrate: ") and err.count("\n") == 1 and WRONG[text] in err


@pytest.mark.parametrize(("name", "why"), [("none", "no such file"), (".", "is a directory")])
def test_a_file_that_is_none(capfd: pytest.CaptureFixture[str], name: str, why: str) -> None:
    with pytest.raises(SystemExit):
        main(["migrate", name])
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and why in err and "name mosquitto's configuration" in err


def test_a_file_of_something_else(capfd: pytest.CaptureFixture[str]) -> None:
    Path("m.conf").write_text("hello world\n[mqtt]\nport: 1883\n")
    with pytest.raises(SystemExit) as ended:
        main(["migrate", "m.conf"])
    err = capfd.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1 and "no key of mosquitto" in err
    assert not Path("fleet.toml").exists()


def test_files_are_not_replaced_unasked(capfd: pytest.CaptureFixture[str]) -> None:
    Path("m.conf").write_text("")
    Path("fleet.toml").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["migrate", "m.conf"])
    assert ended.value.code == 2 and "--force" in capfd.readouterr().err
    assert Path("fleet.toml").read_text() == "mine"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_configurations_of_the_package(capfd: pytest.CaptureFixture[str], path: Path) -> None:
    if not path.exists():
        pytest.skip("mosquitto is not installed")
    assert main(["migrate", str(path)]) == 0
    assert main(["broker", "--check", "--config", "fleet.toml"]) == 0


def test_every_key_of_the_package_s_example_is_known(capfd: pytest.CaptureFixture[str]) -> None:
    """Its comments, taken as lines."""
    if not EXAMPLES[1].exists():
        pytest.skip("mosquitto is not installed")
    lines = re.findall(r"^#([a-z_0-9.]+(?: .*)?)$", EXAMPLES[1].read_text(), re.MULTILINE)
    left_out = (
        "include_dir",
        "certfile",
        "keyfile",
        "cafile",
        "crlfile",
        "password_file",
        "acl_file",
    )
    kept = [line for line in lines if not line.startswith(left_out)]
    assert len(kept) > 80
    found = migrate(capfd, "\n".join(kept) + "\n")
    assert "unknown" not in found.told


def test_each_line_is_reported_once() -> None:
    Path("m.conf").write_text("# no\n\nport 1\nport x\n  max_qos 1\n")
    assert read_lines("m.conf") == [
        ("m.conf:3", "port 1"), ("m.conf:4", "port x"), ("m.conf:5", "max_qos 1")
    ]  # fmt: skip
    found = Translation()
    found.read("m.conf")
    assert [(fate.place, bool(fate.became), fate.why) for fate in found.fates] == [
        ("m.conf:3", True, ""), ("m.conf:4", False, "not a number: 'x'"), ("m.conf:5", True, "")
    ]  # fmt: skip


def test_a_user_name_that_nobody_proves_is_no_rule() -> None:
    told: list[str] = []
    lines = [("a:1", "user ann"), ("a:2", "topic x"), ("a:3", "pattern read own/%u")]
    rules = read_acl(lines, has_users=False, report=lambda *facts: told.append(facts[3]))
    assert rules == [] and told == ["", NEEDS_AUTH, NEEDS_AUTH]


def test_options_of_the_command() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    found = parser.parse_args(["m.conf"])
    assert (found.file, found.output, found.force) == ("m.conf", "fleet.toml", False)


@pytest.mark.skipif(TOOL is None, reason="mosquitto_passwd is not installed")
def test_a_user_of_mosquitto_passwd_logs_in(capfd: pytest.CaptureFixture[str]) -> None:
    assert TOOL is not None
    subprocess.run([TOOL, "-c", "-b", "pw", "ann", "secret"], check=True, timeout=120)
    found = migrate(capfd, "port 0\nbind_address 127.0.0.1\npassword_file pw\npersistence false\n")
    with Running(config=found.config) as broker:
        for password, code in ((b"secret", 0), (b"wrong", 0x86)):
            raw = broker.raw()
            raw.send(connect("c", "ann", password=password))
            assert raw.packet()[3] == code
            raw.sock.close()

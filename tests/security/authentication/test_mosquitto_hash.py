"""Hashes of mosquitto's password files: verified as they are, and replaced at the next login."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mqtt_broker.security.authentication import (
    mosquitto_hash,
    password_file,
    password_hasher,
)
from mqtt_broker.security.authentication.mosquitto_hash import decode_hash, derive
from mqtt_broker.security.authentication.password_file import PasswordFile
from mqtt_broker.security.authentication.password_hasher import (
    Passwords,
    hash_password,
    hash_problem,
    new_hasher,
)
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.server.config.config import Config, load
from tests.security.gate import connect
from tests.server.running import Running

# Of mosquitto 2.0.11: `mosquitto_passwd`, and with -H sha512.
PBKDF2 = (
    "$7$101$FinC4QB/hX+BG5WJ$3F2to0MI/VfQVKn4OtnulQEVfnTO7ZsOC80NQ0OM4M/MEI4MxTpSgIrbWTgLlB1kiPGzkb"
    "HcwHPpbSWgQkuovw=="
)
PASSWORD = b"secret1"
TOOL = shutil.which("mosquitto_passwd")


def sha512(password: bytes, salt: bytes = b"0123456789ab") -> str:
    digest = hashlib.sha512(password + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("stored", [PBKDF2, sha512(PASSWORD)], ids=["7", "6"])
def test_a_hash_is_verified_as_it_is(stored: str) -> None:
    passwords = Passwords(60.0)
    assert hash_problem(stored) == ""
    assert passwords.verify(stored, "ann", PASSWORD, 0.0)
    assert not passwords.verify(stored, "ann", b"secret2", 0.0)
    assert passwords.hashes == 2
    fresh = passwords.renewed(stored, PASSWORD)
    assert fresh.startswith("$argon2id$") and passwords.verify(fresh, "ann", PASSWORD, 0.0)
    assert passwords.renewed(fresh, PASSWORD) == ""


@pytest.mark.parametrize(
    "stored",
    [
        "$7$", "$6$", "$7$101", "$7$$YQ==$YQ==", "$7$0$YQ==$YQ==", "$7$-1$YQ==$YQ==",
        "$7$101$YQ==$YQ==", "$6$YQ==$YQ==$YQ==", "$6$!$!", PBKDF2[:-4], PBKDF2 + "$",
        PBKDF2.replace("101", "9" * 5_000), PBKDF2.replace("101", "999999999"),
        PBKDF2.replace("101", "\u0661"), f"$6$${sha512(b'').split('$')[3]}", "$6$\u00e9$\u00e9",
    ],
)  # fmt: skip
def test_a_wrong_hash_is_named_and_never_verified(stored: str) -> None:
    problem = hash_problem(stored)
    assert problem and "\n" not in problem and len(problem) < 100 + len(stored)
    with pytest.raises(ValueError):
        decode_hash(stored)


def test_an_unknown_user_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    work: list[object] = []

    def counted(password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append(iterations)
        return derive(password, salt, iterations)

    monkeypatch.setattr(mosquitto_hash, "derive", counted)
    monkeypatch.setattr(password_hasher, "derive", counted)
    inner = new_hasher()

    class Hasher:
        hash = inner.hash

        def verify(self, stored: str, password: bytes) -> bool:
            work.append("argon2")
            return inner.verify(stored, password)

    monkeypatch.setattr(password_hasher, "new_hasher", Hasher)
    passwords = Passwords()
    passwords.learn_cost([PBKDF2, inner.hash(b"x"), PBKDF2.replace("101", "7")])
    amounts = []
    for stored in (None, PBKDF2, inner.hash(b"x")):
        work.clear()
        assert not passwords.verify(stored, "ann", b"wrong", 0.0)
        amounts.append(sorted(map(str, work)))
    assert amounts == [["101", "argon2"]] * 3


def test_a_replaced_hash_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# people\nann:{PBKDF2}:operator\nbob:{sha512(b'b')}\n")
    path.chmod(0o640)
    file = PasswordFile(str(path))
    fresh = hash_password(PASSWORD)
    file.renew("ann", "another", fresh)
    assert file.write_renewed() == 0
    file.renew("ann", PBKDF2, fresh)
    assert file.has_renewed and PBKDF2 in path.read_text()
    file.load()  # of the old file: the new hash stays
    found = file.find("ann")
    assert found is not None and found.password_hash == fresh
    assert file.write_renewed() == 1
    assert path.read_text() == f"# people\nann:{fresh}:operator\nbob:{sha512(b'b')}\n"
    assert path.stat().st_mode & 0o777 == 0o640
    file.load()
    found = file.find("ann")
    assert found is not None and found.roles == {"operator"} and found.password_hash == fresh


def test_a_line_that_somebody_has_changed_stays(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"ann:{PBKDF2}\n")
    file = PasswordFile(str(path))
    file.renew("ann", PBKDF2, hash_password(PASSWORD))
    newer = hash_password(b"newer")
    path.write_text(f"ann:{newer}\n")
    assert file.write_renewed() == 0 and path.read_text() == f"ann:{newer}\n"
    file.load()
    found = file.find("ann")
    assert found is not None and found.password_hash == newer


def test_a_file_that_cannot_be_written_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "users"
    path.write_text(f"ann:{PBKDF2}\n")
    file = PasswordFile(str(path))
    file.renew("ann", PBKDF2, hash_password(PASSWORD))
    os.rename(tmp_path / "d", tmp_path / "e")
    with pytest.raises(FileError):
        file.write_renewed()
    assert file.has_renewed


def secret_of(path: Path, name: str) -> str:
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return lines[name]


def log_in(broker: Running, name: str, password: bytes) -> int:
    raw = broker.raw()
    raw.send(connect(f"c-{name}", name, password=password))
    answer = raw.packet()[3]
    raw.sock.close()
    return answer


@pytest.mark.skipif(TOOL is None, reason="mosquitto_passwd is not installed")
def test_users_of_mosquitto_passwd_log_in_and_get_our_hash(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert TOOL is not None
    for name, kind in (("ann", "sha512-pbkdf2"), ("bob", "sha512")):
        options = [] if path.exists() else ["-c"]
        made = [TOOL, "-H", kind, *options, "-b", str(path), name, f"{name}-secret"]
        subprocess.run(made, check=True, timeout=120)
    assert secret_of(path, "ann").startswith("$7$") and secret_of(path, "bob").startswith("$6$")
    config_file = tmp_path / "f.toml"
    config_file.write_text(f"[[auth]]\ntype = 'password_file'\nfile = '{path}'")
    config = load(str(config_file), {}, {"durability": "memory"})
    with Running(config=config) as broker:
        assert log_in(broker, "ann", b"ann-secret") == 0
        assert log_in(broker, "ann", b"bob-secret") == 0x86
        assert log_in(broker, "bob", b"bob-secret") == 0
        assert log_in(broker, "eve", b"eve-secret") == 0x86
        assert log_in(broker, "ann", b"ann-secret") == 0
    for name in ("ann", "bob"):  # written at the latest when the broker stops
        assert secret_of(path, name).startswith("$argon2id$")
    with Running(config=config) as broker:
        assert log_in(broker, "ann", b"ann-secret") == 0
        assert log_in(broker, "bob", b"ann-secret") == 0x86


def configured(tmp_path: Path) -> tuple[Path, Config]:
    path = tmp_path / "users"
    path.write_text(f"ann:{PBKDF2}\n")
    path.chmod(0o600)
    config_file = tmp_path / "f.toml"
    config_file.write_text(
        f"[[auth]]\ntype = 'password_file'\nfile = '{path}'\n[security]\npoll_s = 0.1"
    )
    return path, load(str(config_file), {}, {"durability": "memory"})


def test_the_file_is_written_while_the_broker_runs(tmp_path: Path) -> None:
    path, config = configured(tmp_path)
    with Running(config=config) as broker:
        assert log_in(broker, "ann", PASSWORD) == 0
        broker.wait_until(lambda: secret_of(path, "ann").startswith("$argon2id$"))
        assert log_in(broker, "ann", PASSWORD) == 0


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def refuse(path: str, text: str, mode: int) -> None:
        tries.append(path)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(password_file, "write_whole", refuse)
    path, config = configured(tmp_path)
    with Running(config=config) as broker:
        assert log_in(broker, "ann", PASSWORD) == 0
        broker.wait_until(lambda: len(tries) >= 3)
        assert log_in(broker, "ann", PASSWORD) == 0
    said = [one.getMessage() for one in caplog.records if "cannot be replaced" in one.getMessage()]
    assert len(said) == 1 and said[0].startswith(f"{path}: Permission denied; mosquitto's")
    assert secret_of(path, "ann") == PBKDF2

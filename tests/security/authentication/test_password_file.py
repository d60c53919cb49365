"""The password file: its lines, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.security.authentication.password_file import PasswordFile, decode_line
from mqtt_broker.security.authentication.password_hasher import hash_password
from mqtt_broker.security.authentication.scram import make_keys
from mqtt_broker.security.files.errors import FileError
from tests.security.gate import HASHES

KEYS = make_keys(b"x", b"salt" * 4).encode()


def test_a_password_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    lines = [f"ann:{HASHES['ann']}:ops,dev", f"ann:{KEYS}:dev", f"bob:{KEYS}"]
    path.write_text("\n".join(["# people", "", *lines, f"cyd:{HASHES['bob']}", ""]))
    file = PasswordFile(str(path))
    ann = file.find("ann")
    assert ann is not None and ann.password_hash == HASHES["ann"] and ann.scram is not None
    assert ann.roles == {"ops", "dev"}
    bob = file.find("bob")
    assert bob is not None and bob.password_hash is None
    assert file.find("nobody") is None and len(file) == 3
    assert HASHES["ann"] not in repr(ann) and KEYS not in repr(ann)
    digest = file.digest
    path.write_text("ann:nonsense\n")
    with pytest.raises(FileError, match="line 1: user ann: not an argon2 hash"):
        file.load()
    assert file.find("bob") == bob and file.digest == digest


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x", "argon2"), (":{hash}", "empty"), ("a b\x07:{hash}", "control"),
        ("ann:plain", "not an argon2"), ("ann:SCRAM-SHA-256$1:a$b:c", "SCRAM"),
        ("ann:{argon2i}", "argon2id"), ("ann:{huge}", "KiB"), (" ann:{hash}", "space"),
        ("a,b:{hash}", "comma"), ("#ann:{hash}", "begin with #"),
    ],
)  # fmt: skip
def test_bad_lines(line: str, why: str) -> None:
    hashed = hash_password(b"x")
    filled = line.format(
        hash=hashed,
        argon2i=hashed.replace("argon2id", "argon2i"),
        huge=hashed.replace("m=19456", "m=99999999"),
    )
    with pytest.raises(FileError, match=why) as caught:
        decode_line(filled)
    assert hashed.split("$")[-1] not in str(caught.value)


def test_a_user_twice(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"ann:{HASHES['ann']}\nann:{HASHES['bob']}\n")
    with pytest.raises(FileError, match="line 2: user ann is listed twice"):
        PasswordFile(str(path))
    with pytest.raises(FileError, match="No such file"):
        PasswordFile(str(tmp_path / "none"))
    path.write_bytes(b"\xff\n")
    with pytest.raises(FileError, match="not UTF-8"):
        PasswordFile(str(path))

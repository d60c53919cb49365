"""`[[http_tokens]]` and `[[http_users]]` of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.http_access import HttpToken, HttpUser, read_http_access_of
from mqtt_broker.server.config.tables import ConfigError

DIGEST = "0" * 64


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "f.toml"
    path.write_text(text)
    return load(str(path), {}, {})


def test_both_tables(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f'http = "0.0.0.0:8080"\n[[http_tokens]]\nname = "g"\nrole = "viewer"\n'
        f'token_hash = "{DIGEST}"\n[[http_tokens]]\nname = "h"\nrole = "operator"\nfile = "t"\n'
        '[[http_users]]\nname = "ann"\nrole = "admin"\npassword_hash = "$argon2id$x"\n',
    )
    assert config.http_access.tokens == (
        HttpToken("g", "viewer", DIGEST), HttpToken("h", "operator", "", str(tmp_path / "t")),
    )  # fmt: skip
    assert config.http_access.users == (HttpUser("ann", "admin", "$argon2id$x"),)
    assert DIGEST not in repr(config) and "argon2id" not in repr(config)
    assert read_http_access_of(str(tmp_path / "f.toml")) == config.http_access


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('name = "x"\nrole = "viewer"', "set token_hash or file, one of them"),
        ('name = "x"\nrole = "root"\nfile = "t"', "role is one of viewer, operator, admin"),
        ('role = "viewer"\nfile = "t"', "name is missing"),
        ('name = "x"\nrole = "viewer"\ntoken_hash = "secret"', "64 of 0-9 and a-f"),
        ('name = "a\\nb"\nrole = "viewer"\nfile = "t"', "printable"),
        ('name = "x"\nrole = "viewer"\nfile = "t"\ntoken = "t"', "unknown key token"),
        ('name = "x"\nrole = "viewer"\nfile = "t"\ntoken_hash = "s"', "one of them"),
    ],
)
def test_what_is_no_token(tmp_path: Path, table: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        read(tmp_path, f"[[http_tokens]]\n{table}\n")
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_a_name_is_given_once_and_a_hash_is_of_argon2(tmp_path: Path) -> None:
    one = '[[http_users]]\nname = "x"\nrole = "viewer"\nfile = "t"\n'
    with pytest.raises(ConfigError, match="'x' is given twice"):
        read(tmp_path, one + one)
    with pytest.raises(ConfigError, match="argon2id"):
        read(tmp_path, one.replace('file = "t"', 'password_hash = "plain"'))

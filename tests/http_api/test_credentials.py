"""Tokens and users of files: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqtt_broker.http_api.credentials import NAME, CredentialFiles
from mqtt_broker.http_api.request.access import OPERATOR, VIEWER, digest_of
from mqtt_broker.security.authentication.password_hasher import hash_password
from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.reload import Reload

TOKEN = '[[http_tokens]]\nname = "g"\nrole = "viewer"\nfile = "g.token"\n'
USER = '[[http_users]]\nname = "ann"\nrole = "operator"\nfile = "people"\n'


class Files:
    """A configuration file with a token and a user in files of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "g.token").write_text("secret\n")
        (path / "people").write_text(f"ann:{hash_password(b'x')}\n")
        self.write(TOKEN + USER)

    def write(self, text: str) -> None:
        (self.path / "f.toml").write_text(text)

    def config(self) -> Config:
        return load(str(self.path / "f.toml"), {}, {})


def reloaded(found: CredentialFiles) -> str:
    """Reload, as SIGHUP does; return what is said of a failure."""

    async def work() -> str:
        reload = Reload(asyncio.get_running_loop())
        found.watch(reload)
        reload.all()
        said = reload.watched[NAME].said
        reload.close()
        return said

    return asyncio.run(work())


def test_tokens_and_users_come_from_their_files(tmp_path: Path) -> None:
    found = CredentialFiles(Files(tmp_path).config()).current()
    token = found.token(digest_of("secret"))
    assert token is not None and (token.name, token.role) == ("g", VIEWER)
    user = found.user("ann")
    assert user is not None and user.role == OPERATOR


def test_what_goes_from_a_file_is_withdrawn(tmp_path: Path) -> None:
    files = Files(tmp_path)
    found = CredentialFiles(files.config())
    (tmp_path / "g.token").unlink()
    (tmp_path / "people").write_text("")
    assert reloaded(found) == ""
    assert found.current().token(digest_of("secret")) is None
    assert found.current().user("ann") is None
    assert found.current().are_needed  # it is not open to everybody then
    (tmp_path / "g.token").write_text("another")
    assert reloaded(found) == ""
    assert found.current().token(digest_of("another")) is not None


def test_tables_that_change_are_in_force(tmp_path: Path) -> None:
    files = Files(tmp_path)
    found = CredentialFiles(files.config())
    files.write(TOKEN.replace("viewer", "operator"))
    assert reloaded(found) == ""
    token = found.current().token(digest_of("secret"))
    assert token is not None and token.role == OPERATOR and not found.current().users


@pytest.mark.parametrize(
    ("text", "why"), [("", "the last of"), ("x = [", "not TOML"), (TOKEN + "x = 1", "unknown key")]
)
def test_a_mistake_changes_nothing(tmp_path: Path, text: str, why: str) -> None:
    files = Files(tmp_path)
    found = CredentialFiles(files.config())
    files.write(text)
    assert why in reloaded(found)
    assert found.current().token(digest_of("secret")) is not None


def test_files_are_needed_at_the_start(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / "people").write_text("bob:x\n")
    with pytest.raises(ConfigError, match="people"):
        CredentialFiles(files.config())
    (tmp_path / "g.token").write_text(" \n")
    with pytest.raises(ConfigError, match="holds no token"):
        CredentialFiles(files.config())
    (tmp_path / "g.token").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        CredentialFiles(files.config())


def test_one_token_of_the_configuration_stays_the_admin() -> None:
    found = CredentialFiles(Config(http_token="x")).current()
    assert found.token(digest_of("x")) is not None
    assert not CredentialFiles(Config()).current().are_needed

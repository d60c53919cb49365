"""`fleetmq passwd` and the commands of `fleetmq ctl` that are about access."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.security import sql
from mqtt_broker.security.authentication.password_file import PasswordFile
from mqtt_broker.security.authentication.password_hasher import Passwords
from mqtt_broker.security.protection.bans import read_bans


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


def run(monkeypatch: pytest.MonkeyPatch, *args: object, stdin: bytes = b"") -> int:
    monkeypatch.setattr(sys, "stdin", Stdin(stdin))
    try:
        return main([str(arg) for arg in args])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


def fits(file: PasswordFile, username: str, password: bytes) -> bool:
    account = file.find(username)
    assert account is not None
    return Passwords().verify(account.password_hash, username, password, 0.0)


def test_a_user_is_added_changed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users"
    assert run(monkeypatch, "passwd", path, "ann", "--role", "ops", stdin=b"one\n") == 0
    assert run(monkeypatch, "passwd", path, "bob", stdin=b"two\r\n") == 0
    assert path.stat().st_mode & 0o777 == 0o600
    file = PasswordFile(str(path))
    assert fits(file, "ann", b"one") and fits(file, "bob", b"two")
    path.chmod(0o640)
    assert run(monkeypatch, "passwd", path, "ann", stdin=b"three") == 0
    assert run(monkeypatch, "passwd", path, "ann", "--scram", stdin=b"three") == 0
    assert path.stat().st_mode & 0o777 == 0o640
    file.load()
    ann = file.find("ann")
    assert ann is not None and ann.scram is not None and ann.roles == {"ops"}
    assert fits(file, "ann", b"three")
    assert run(monkeypatch, "passwd", path, "ann", "--delete") == 0
    assert run(monkeypatch, "passwd", path, "ann", "--delete") == 1
    file.load()
    assert len(file) == 1 and [p.name for p in tmp_path.iterdir()] == ["users"]


def test_two_at_a_time_lose_nothing(tmp_path: Path) -> None:
    from mqtt_broker.security.files.atomic_files import locked, write_whole

    path = tmp_path / "count"
    path.write_text("0")

    def add() -> None:
        for _ in range(50):
            with locked(str(path)):
                write_whole(str(path), str(int(path.read_text()) + 1), 0o600)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "200"


@pytest.mark.parametrize(
    ("args", "stdin", "code", "why"),
    [
        (["FILE", "ann"], b"", 1, "the password is empty"),
        (["FILE", "ann"], b"x" * 2000, 1, "the limit is 1024"),
        (["FILE", "a:b"], b"x", 2, "must not hold a colon"),
        (["FILE", ""], b"x", 2, "give FILE USER"),
        (["FILE"], b"x", 2, "give FILE USER"),
        (["FILE", "ann", "--database-url", "sqlite://"], b"x", 2, "give FILE USER"),
        (["FILE", "ann", "--role", "a,b"], b"x", 2, "a comma"),
        (["FILE", "ann", "--delete", "--scram"], b"x", 2, "the whole user"),
        (["DIR/no/where", "ann"], b"x", 1, "No such file"),
        (["DIR", "ann"], b"x", 1, "directory"),
        (["BAD", "ann"], b"x", 1, "line 1"),
        (["ann", "--database-url", "what://u:hunter2@h"], b"x", 1, "invalid database URL"),
    ],
)
def test_what_goes_wrong_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    stdin: bytes,
    code: int,
    why: str,
) -> None:
    (tmp_path / "bad").write_text("rubbish\n")
    names = {"FILE": tmp_path / "users", "BAD": tmp_path / "bad"}
    filled = [names.get(arg, arg.replace("DIR", str(tmp_path))) for arg in args]
    assert run(monkeypatch, "passwd", *filled, stdin=stdin) == code
    told = capsys.readouterr().err
    assert why in told and told.count("\n") == 1 and "hunter2" not in told
    assert not (tmp_path / "users").exists()
    assert (tmp_path / "bad").read_text() == "rubbish\n"


def test_users_in_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    args = ("passwd", "--database-url", url, "ann")
    assert run(monkeypatch, *args, "--role", "ops", stdin=b"x\n") == 0
    assert run(monkeypatch, *args, "--scram", stdin=b"x\n") == 0
    engine = sql.open_engine(url)
    ann = sql.SqlAccounts(engine, lambda: 0.0).find("ann")
    assert ann is not None and ann.password_hash and ann.scram and ann.roles == {"ops"}
    assert run(monkeypatch, *args, "--delete") == 0
    assert run(monkeypatch, *args, "--delete") == 1
    engine.dispose()


def test_a_database_that_does_not_answer_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://u:hunter2@127.0.0.1:{unused.getsockname()[1]}/d"
        path = tmp_path / "f.toml"
        path.write_text(f"[[acl]]\ndatabase_url = '{url}'\n")
        assert run(monkeypatch, "passwd", "--database-url", url, "ann", stdin=b"x\n") == 3
        explain = ("ctl", "acl", "explain", "c", "t/c", "--config", path)
        assert run(monkeypatch, *explain) == 3
        assert run(monkeypatch, "ctl", "export", "--database-url", url, tmp_path / "x") == 3
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3 and all("database" in line for line in told)
    assert "hunter2" not in "".join(told)


FILE = """
[[auth]]
type = "password_file"
file = "users"

[[acl]]
permit = "deny"
topics = ["fleet/+/secret"]

[[acl]]
permit = "allow"
action = "publish"
topics = ["x", "fleet/%c/#"]

[[acl]]
permit = "allow"
topics = ["ops/#"]
roles = ["ops"]

[[roles]]
role = "ops"
users = ["ann"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(FILE + f'[security]\nbans_file = "{tmp_path}/bans"\n')
    return path


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["c", "fleet/c/x"], 0, "allowed\nby PATH:10: allow publish fleet/%c/#\n"),
        (["c", "fleet/d/x"], 1, "denied\nno rule applies\n"),
        (["c", "fleet/c/secret"], 1, "denied\nby PATH:6: deny all fleet/+/secret\ndenied for"),
        (["c", "fleet/c/#"], 2, ""),
        (["c", "ops/#", "--action", "subscribe", "--user", "ann"], 0, "role ops"),
        (["c", "$share/g/ops/#", "--action", "subscribe", "--role", "ops"], 0, "PATH:15"),
        (["c", "#", "--action", "subscribe", "--user", "ann"], 1, "denied for fleet/+/secret"),
        (
            ["c", "+/x", "--action", "subscribe", "--user", "ann"],
            1,
            "only allowed in part: ops/x",
        ),
        (["c", "a\x01", "--user", "ann"], 2, ""),
        (["c", "", "--user", "ann"], 2, ""),
        (["c", "a", "--address", "lan"], 2, ""),
    ],
)
def test_explain(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: int,
    told: str,
) -> None:
    assert run(monkeypatch, "ctl", "acl", "explain", *args, "--config", config) == code
    out = capsys.readouterr()
    assert told.replace("PATH", str(config)) in out.out
    assert bool(out.err) is (code == 2)


def test_explain_with_rules_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sqlalchemy import insert

    url = f"sqlite:///{tmp_path}/a.db"
    engine = sql.open_engine(url)
    sql.create_tables(engine)
    with engine.begin() as connection:
        row = {"position": 7, "permit": "allow", "action": "all", "topic": "t/%c"}
        connection.execute(insert(sql.ACL).values(**row))
    engine.dispose()
    path = tmp_path / "f.toml"
    path.write_text(f'[[acl]]\ndatabase_url = "{url}"\n')
    assert run(monkeypatch, "ctl", "acl", "explain", "c", "t/c", "--config", path) == 0
    assert "by fleetmq_acl position 7: allow all t/%c" in capsys.readouterr().out


def test_bans(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ctl(*args: str) -> int:
        return run(monkeypatch, "ctl", *args, "--config", config)

    assert ctl("ban", "client", "c") == ctl("ban", "client", "c", "--why", "noise") == 0
    assert ctl("ban", "address", "10.1.2.3/8", "--for", "2h") == 0
    assert len(read_bans(str(tmp_path / "bans"))) == 2
    capsys.readouterr()
    assert ctl("bans") == 0
    told = capsys.readouterr().out
    assert "client 'c' until it is lifted: noise" in told and "address '10.0.0.0/8' for 7" in told
    assert ctl("unban", "address", "10.0.0.0/8") == 0 and ctl("unban", "address", "10.0.0.0/8") == 1
    assert ctl("ban", "address", "lan") == 1 and ctl("ban", "client", "x", "--for", "soon") == 2
    (tmp_path / "bans").write_text("rubbish\n")
    assert ctl("bans") == ctl("ban", "client", "c") == 1
    config.write_text("")
    assert ctl("bans") == 2


def test_comments_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"
    assert run(monkeypatch, "passwd", path, "ann", stdin=b"one") == 0
    path.write_text("# people\n\n" + path.read_text() + "# machines\n")
    assert run(monkeypatch, "passwd", path, "bob", stdin=b"two") == 0
    assert run(monkeypatch, "passwd", path, "ann", stdin=b"three") == 0
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# people", ""] and lines[3] == "# machines"
    assert [line.partition(":")[0] for line in (lines[2], lines[4])] == ["ann", "bob"]
    assert run(monkeypatch, "passwd", path, "ann", "--delete") == 0
    assert [line.partition(":")[0] for line in path.read_text().splitlines()] == [
        "# people", "", "# machines", "bob"
    ]  # fmt: skip


def test_links_lead_secrets_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in the way of the unfinished file is not followed; one to the file itself is."""
    victim, real = tmp_path / "victim", tmp_path / "real"
    victim.write_text("mine")
    real.mkdir()
    (tmp_path / "users").symlink_to(real / "users")
    (real / "users.part").symlink_to(victim)
    (tmp_path / "users.part").symlink_to(victim)
    assert run(monkeypatch, "passwd", tmp_path / "users", "ann", stdin=b"one") == 0
    assert victim.read_text() == "mine" and victim.stat().st_mode & 0o777 != 0o600
    assert (tmp_path / "users").is_symlink() and fits(
        PasswordFile(str(real / "users")), "ann", b"one"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_writes_can_be_read_by_whose_directory_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 10_001, 10_001)
    assert run(monkeypatch, "passwd", home / "users", "ann", stdin=b"one") == 0
    config = home / "f.toml"
    config.write_text(f'[security]\nbans_file = "{home}/bans"\n')
    assert run(monkeypatch, "ctl", "ban", "client", "x", "--config", config) == 0
    for name in ("users", "bans"):
        assert (home / name).stat().st_uid == 10_001

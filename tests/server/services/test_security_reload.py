"""The configuration is reloaded while clients are connected: methods, and what is logged."""

from __future__ import annotations

import errno
import logging
import os
import time
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Executable, insert
from sqlalchemy.schema import DropTable

from mqtt_broker.security import sql
from mqtt_broker.security.protection.bans import make_ban, write_bans
from mqtt_broker.server.config.config import DatabaseUnreachable
from tests.security.authentication.test_jwt import SECRET, token
from tests.security.gate import HASHES
from tests.server.running import Running
from tests.server.services.test_security import (
    FILE,
    RULES,
    code,
    enter,
    running,
    suback,
    take_up,
    write,
)

TOKENS = '[[auth]]\ntype = "jwt"\nkey_file = "DIR/key"\n'


def bearer(name: str = "eve") -> bytes:
    return token({"sub": name, "exp": time.time() + 600})


def files(tmp_path: Path, text: str) -> Path:
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "key").chmod(0o600)
    return write(tmp_path, text)


def taken_up(broker: Running, path: Path, text: str) -> None:
    """The file as it is to be, and the moment when it counts."""
    reload = broker.server.reload
    after = reload.count + reload.failures + len(reload.watched)
    path.write_text(text.replace("DIR", str(path.parent)))
    take_up(broker)
    broker.wait_until(lambda: reload.count + reload.failures == after)


def test_another_way_in_counts_at_once_and_harms_nobody(tmp_path: Path) -> None:
    path = files(tmp_path, FILE)
    with running(path) as broker:
        ann = enter(broker, "a", "ann")
        assert code(broker, "x", "u", password=bearer()) == 0x86
        taken_up(broker, path, FILE + TOKENS)
        eve = enter(broker, "e", "u", password=bearer())
        bob = enter(broker, "b", "bob")
        security = broker.server.security
        assert security is not None and security.authenticator.policy.chain is not None
        hashes = security.authenticator.policy.chain.passwords.hashes
        enter(broker, "b2", "bob").sock.close()  # what is remembered stays remembered
        assert security.authenticator.policy.chain.passwords.hashes == hashes
        # Without the password file: who came in by it stays, and nobody else comes.
        taken_up(broker, path, TOKENS)
        assert code(broker, "x", "bob") == 0x86
        enter(broker, "e2", "u", password=bearer()).sock.close()
        for raw in (ann, bob, eve):
            assert suback(raw, "t") == 0
            raw.sock.close()
        names = [name for name in broker.server.reload.watched if name.startswith(("pass", "keys"))]
        assert names == [f"keys of jwt, {tmp_path}/key"]


def test_a_way_that_stays_keeps_what_it_knows(tmp_path: Path) -> None:
    path = files(tmp_path, FILE)
    with running(path) as broker:
        ann, bob = enter(broker, "a", "ann"), enter(broker, "b", "bob")
        taken_up(broker, path, TOKENS + FILE)
        (tmp_path / "users").write_text(f"ann:{HASHES['ann']}\n")
        take_up(broker)
        assert bob.packet()[0] == 0xE0  # still looked after: he is no user any more
        assert suback(ann, "t") == 0
        for raw in (ann, bob):
            raw.sock.close()


def test_two_ways_with_one_file_are_both_read_again(tmp_path: Path) -> None:
    twice = FILE + 'name = "one"\n' + FILE + 'name = "two"\n'
    with running(files(tmp_path, twice)) as broker:
        found = [name for name in broker.server.reload.watched if "users" in name]
        assert len(found) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FILE + '[[auth]]\ntype = "jwt"\nkey_file = "DIR/none"\n', "none: No such file"),
        (FILE + 'listeners = ["nowhere"]\n', "no listener is named 'nowhere'"),
        ("", "the first [[auth]] was added or the last removed; restart"),
        (FILE, "the last [[acl]] was removed; restart"),  # as a full disk leaves it
        ("acl = []" + FILE, "an empty list"),
        (FILE + "[[auth", "not TOML"),
        (
            FILE + RULES.replace('"allow"', '"perhaps"'),
            "invalid permit 'perhaps'",
        ),
        (FILE + '[[acl]]\ndatabase_url = "sqlite:///x"\n', "restart the broker"),
    ],
)
def test_what_is_wrong_changes_nothing_and_is_said_each_time(
    tmp_path: Path, text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fleetmq")
    path = files(tmp_path, FILE + RULES)
    with running(path) as broker:
        ann = enter(broker, "a", "ann")
        for _ in range(2):
            caplog.clear()
            taken_up(broker, path, text)
            said = [r.getMessage() for r in caplog.records if r.name == "fleetmq"]
            said = [line for line in said if "rules of" in line]
            assert len(said) == 1 and "not reloaded, the old content stays in force: " in said[0]
            assert why in said[0]
        assert suback(ann, "d/a/x") == 0 and suback(ann, "other") == 0x87
        assert code(broker, "b", "bob") == 0
        ann.sock.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do users, keys and bans: without descriptors nothing is open to more than before."""
    bans = tmp_path / "bans"
    write_bans(str(bans), [make_ban("client", "evil")])
    text = f'[security]\nbans_file = "{bans}"\n' + FILE + TOKENS + RULES
    path = files(tmp_path, text)
    with running(path) as broker:
        ann = enter(broker, "a", "ann")

        def fail(*args: object, **named: object) -> object:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            for name in ("read_text", "read_bytes", "open"):
                patch.setattr(Path, name, fail)
            reload = broker.server.reload
            after = reload.failures + len(reload.watched)
            take_up(broker)
            broker.wait_until(lambda: reload.failures == after)
        assert suback(ann, "d/a/x") == 0 and suback(ann, "other") == 0x87
        assert code(broker, "evil", "ann") == 0x8A
        assert code(broker, "x", "ann", password=b"wrong") == 0x86
        assert code(broker, "x", "bob") == 0
        ann.sock.close()


def test_a_role_in_a_table_that_is_taken_away(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/accounts.db"
    engine = sql.open_engine(url)
    sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops"])
    text = f'[[auth]]\ntype = "sql"\ndatabase_url = "{url}"\ncache_s = 0\n'
    with running(write(tmp_path, text + RULES + "[security]\npoll_s = 0.1\n")) as broker:
        ann = enter(broker, "a", "ann")
        assert suback(ann, "ops/#") == 0
        sql.put_user(engine, "ann", "password", HASHES["ann"], [])
        assert ann.packet()[0] == 0xE0
        again = enter(broker, "a", "ann")
        assert suback(again, "ops/#") == 0x87
        security = broker.server.security
        assert security is not None and len(security.engines) == 1
        taken_up(broker, tmp_path / "fleetmq.toml", FILE + RULES)
        assert not security.engines and suback(again, "d/a/x") == 0
        assert code(broker, "b", "bob") == 0
        for raw in (ann, again):
            raw.sock.close()
    engine.dispose()


def test_a_ban_in_a_file_of_another_kind_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, FILE + '[security]\nbans_file = "DIR/bans"\n')
    write_bans(str(tmp_path / "bans"), [make_ban("client", "x")])
    with running(path) as broker:
        assert code(broker, "x", "ann") == 0x8A
        (tmp_path / "bans").write_text('{"kind": "client", "value": 7}\n')
        take_up(broker)
        broker.wait_until(lambda: broker.server.reload.failures == 1)
        assert code(broker, "x", "ann") == 0x8A
    assert f"bans {tmp_path}/bans: not reloaded" in caplog.text
    assert "line 1: not a ban" in caplog.text


def test_salts_of_strangers_outlive_a_restart(tmp_path: Path) -> None:
    from mqtt_broker.server.services.auth_methods import SALTS, AuthMethods

    (tmp_path / "data").mkdir()
    data_dir = str(tmp_path / "data")
    ways = AuthMethods((), lambda url: None, time.time)
    secret = ways.salt_secret(data_dir)
    assert AuthMethods((), lambda url: None, time.time).salt_secret(data_dir) == secret
    kept = tmp_path / "data" / SALTS
    assert kept.stat().st_mode & 0o777 == 0o600 and secret.hex() not in kept.read_text()
    kept.write_text("rubbish")
    assert ways.salt_secret(data_dir) != secret  # it starts all the same
    assert ways.salt_secret("") != ways.salt_secret(str(tmp_path / "none"))


def _is_at_least(counts: dict[str, int], count: int) -> bool:
    return counts.get("reload_failed", 0) >= count


def test_rules_in_a_database_that_is_away(tmp_path: Path) -> None:
    """Without its rules the broker does not start; when they are gone, the known ones hold."""
    url = f"sqlite:///{tmp_path}/rules.db"
    text = FILE + f'[[acl]]\ndatabase_url = "{url}"\n[security]\npoll_s = 0.1\n'
    with pytest.raises(DatabaseUnreachable, match="database"), running(write(tmp_path, text)):
        pass
    engine = sql.open_engine(url)
    sql.create_tables(engine)
    row = {"permit": "allow", "action": "all", "topic": "d/%u/#"}
    with engine.begin() as connection:
        connection.execute(insert(sql.ACL).values(position=1, **row))
    path = write(tmp_path, text)
    with running(path) as broker:
        ann = enter(broker, "a", "ann")
        assert suback(ann, "d/ann/x") == 0 and suback(ann, "d/bob/x") == 0x87
        security = broker.server.security
        assert security is not None
        counts = security.audit.counts
        wrong: list[Executable] = [
            insert(sql.ACL).values(position=0, permit="allow", action="all", topic="#/"),
            DropTable(sql.ACL),
        ]
        for number, change in enumerate(wrong, 1):
            with engine.begin() as connection:
                connection.execute(change)
            broker.wait_until(partial(_is_at_least, counts, number))
            taken_up(broker, path, text)  # the file is read again meanwhile
            assert suback(ann, "d/ann/y") == 0
            assert suback(ann, "d/bob/x") == suback(ann, "#") == 0x87
            bob = enter(broker, "b", "bob")
            assert suback(bob, "d/bob/x") == 0 and suback(bob, "d/ann/x") == 0x87
            bob.sock.close()
        ann.sock.close()
    engine.dispose()

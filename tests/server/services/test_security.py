"""The security service of a running broker: threads, files, tables, storms; on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert

from mqtt_broker.codec.constants import V5
from mqtt_broker.security import sql
from mqtt_broker.security.authentication.password_hasher import hash_password
from mqtt_broker.security.protection.bans import make_ban, write_bans
from mqtt_broker.server.config.config import DatabaseUnreachable, load
from mqtt_broker.server.config.security import SecurityConfig
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.services.security import check_access
from tests.core.peers import publish, subscribe
from tests.security.gate import HASHES, PASSWORDS, connect
from tests.server.running import Raw, Running

# Hashes of the usual cost: some tests need workers that are busy for a while.
USERS = "".join(f"{name}:{hash_password(password)}\n" for name, password in PASSWORDS.items())


def write(tmp_path: Path, text: str, *, users: str = USERS) -> Path:
    (tmp_path / "users").write_text(users)
    os.chmod(tmp_path / "users", 0o600)
    path = tmp_path / "fleetmq.toml"
    path.write_text(text.replace("DIR", str(tmp_path)))
    return path


PATIENT = "connect_timeout_s = 300\n"  # on a busy machine hashes take long
FILE = """
[[auth]]
type = "password_file"
file = "DIR/users"
"""


def running(path: Path, **settings: Any) -> Running:
    return Running(config=load(str(path), {}, {"durability": "memory"}), **settings)


def enter(broker: Running, client_id: str, username: str | None = None, **fields: Any) -> Raw:
    raw = broker.raw()
    raw.send(connect(client_id, username, **fields))
    answer = raw.packet()
    assert answer[0] == 0x20 and answer[3] == 0, answer.hex()
    return raw


def code(broker: Running, client_id: str, username: str | None = None, **fields: Any) -> int:
    with broker.raw() as raw:
        raw.send(connect(client_id, username, **fields))
        return raw.packet()[3]


def suback(raw: Raw, text: str) -> int:
    raw.send(subscribe(V5, text))
    return raw.packet()[-1]


@pytest.mark.parametrize("loop", ["turns", "uvloop"])
def test_passwords_are_hashed_in_threads(tmp_path: Path, loop: str) -> None:
    with running(write(tmp_path, FILE), loop=loop) as broker:
        enter(broker, "a", "ann").sock.close()
        assert code(broker, "b", "ann", password=b"wrong") == 0x86
        assert code(broker, "c", "nobody", password=b"wrong") == 0x86
        assert code(broker, "d") == 0x87


def test_who_is_connected_does_not_wait_for_a_storm(tmp_path: Path) -> None:
    """While hundreds wait for their hashes, messages between two clients go through."""
    with running(write(tmp_path, PATIENT + FILE + "[security]\nhash_threads = 1\n")) as broker:
        ann, bob = enter(broker, "a", "ann"), enter(broker, "b", "bob")
        assert suback(bob, "t") == 0
        security = broker.server.security
        assert security is not None
        crowd = [broker.raw() for _ in range(60)]
        for number, raw in enumerate(crowd):
            raw.send(connect(f"c{number}", "ann", password=b"wrong"))
        broker.wait_until(lambda: security.workers.waiting > 40)
        for number in range(20):
            ann.send(publish("t", b"%d" % number))
            assert bob.packet().endswith(b"%d" % number)
        assert security.workers.waiting > 0, "it was over before it was measured"
        for raw in crowd[30:]:
            raw.reset()  # who goes is not hashed for
        assert all(raw.packet()[3] == 0x86 for raw in crowd[:30])
        for raw in (*crowd[:30], ann, bob):
            raw.sock.close()


def test_a_storm_of_known_clients_comes_in(tmp_path: Path) -> None:
    """Remembered passwords: 300 clients at once are hashed for once."""
    with running(write(tmp_path, FILE)) as broker:
        enter(broker, "first", "ann").sock.close()
        crowd = [broker.raw() for _ in range(300)]
        for number, raw in enumerate(crowd):
            raw.send(connect(f"c{number}", "ann"))
        assert all(raw.packet()[3] == 0 for raw in crowd)
        assert broker.ask(lambda: broker.server.broker.clients.users) == {"ann": 300}
        security = broker.server.security
        assert security is not None and security.authenticator.policy.chain is not None
        assert security.authenticator.policy.chain.passwords.hashes == 1
        for raw in crowd:
            raw.sock.close()
        broker.wait_until(lambda: not broker.server.broker.clients.users)


def take_up(broker: Running) -> None:
    """As SIGHUP does."""
    broker.ask(broker.server.reload.all)


def test_a_password_file_that_changes(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    with running(path) as broker:
        ann, bob = enter(broker, "a", "ann"), enter(broker, "b", "bob")
        (tmp_path / "users").write_text(f"ann:{HASHES['bob']}\n")
        take_up(broker)
        assert bob.packet()[0] == 0xE0  # he is no user any more
        assert code(broker, "x", "ann") == 0x86
        (tmp_path / "users").write_text("rubbish")
        take_up(broker)
        assert code(broker, "x", "ann", password=b"bob's") == 0  # what was read stays
        for raw in (ann, bob):
            raw.sock.close()


RULES = """
[[acl]]
permit = "allow"
topics = ["d/%c/#"]
[[acl]]
permit = "allow"
topics = ["ops/#"]
roles = ["ops"]
"""


def test_rules_that_change(tmp_path: Path) -> None:
    path = write(tmp_path, FILE + RULES + '[[roles]]\nrole = "ops"\nusers = ["ann"]\n')
    before = path.read_text()
    with running(path) as broker:
        ann, bob = enter(broker, "a", "ann"), enter(broker, "b", "bob")
        assert suback(ann, "ops/#") == suback(bob, "d/b/x") == 0
        assert suback(bob, "ops/#") == suback(bob, "#") == 0x87
        path.write_text(before.replace('["ann"]', '["bob"]'))
        take_up(broker)
        assert ann.packet()[:1] == b"\xe0"
        assert _until(lambda: suback(bob, "ops/#") == 0)
        path.write_text(before.replace('"allow"', '"perhaps"'))
        take_up(broker)
        assert suback(bob, "ops/#") == 0
        for raw in (ann, bob):
            raw.sock.close()


def _until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if is_so():
            return True
    return False


def test_tables_that_change(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/accounts.db"
    engine = sql.open_engine(url)
    for name, hashed in HASHES.items():
        sql.put_user(engine, name, "password", hashed, None)
    text = f"""
[[auth]]
type = "sql"
database_url = "{url}"
cache_s = 0
[[acl]]
database_url = "{url}"
[security]
poll_s = 0.1
"""
    with running(write(tmp_path, text)) as broker:
        ann, bob = enter(broker, "a", "ann"), enter(broker, "b", "bob")
        assert suback(ann, "t") == 0x87  # a table without rules lets nobody do anything
        with engine.begin() as connection:
            connection.execute(
                insert(sql.ACL).values(position=1, permit="allow", action="all", topic="t")
            )
        assert _until(lambda: suback(ann, "t") == 0)
        with engine.begin() as connection:
            connection.execute(delete(sql.USERS).where(sql.USERS.c.username == "bob"))
        assert bob.packet()[0] == 0xE0
        assert code(broker, "x", "bob") == 0x86
        with engine.begin() as connection:
            connection.execute(delete(sql.ACL))
        assert ann.packet()[0] == 0xE0
        for raw in (ann, bob):
            raw.sock.close()
    engine.dispose()


def test_bans_and_the_audit_log(tmp_path: Path) -> None:
    more = '[security]\nbans_file = "DIR/bans"\naudit_file = "DIR/audit"\naudit_connects = true\n'
    with running(write(tmp_path, FILE + more)) as broker:
        ann = enter(broker, "a", "ann")
        write_bans(str(tmp_path / "bans"), [make_ban("user", "ann"), make_ban("client", "x")])
        take_up(broker)
        assert ann.packet()[0] == 0xE0
        assert code(broker, "b", "ann") == 0x8A
        assert code(broker, "x", "bob") == 0x8A
        write_bans(str(tmp_path / "bans"), [make_ban("address", "127.0.0.0/8")])
        security = broker.server.security
        assert security is not None
        counts = security.audit.counts
        reloads = counts["reloaded"]
        take_up(broker)
        broker.wait_until(lambda: counts["reloaded"] > reloads + 2)
        with broker.raw() as raw, contextlib.suppress(ConnectionError):
            assert raw.rest() == b""  # not a word
        os.rename(tmp_path / "audit", tmp_path / "audit.1")
        take_up(broker)
        broker.wait_until((tmp_path / "audit").exists)
        ann.sock.close()
    told = [json.loads(line) for line in (tmp_path / "audit.1").read_text().splitlines()]
    events = {(row["event"], row.get("reason")) for row in told}
    assert {("connected", None), ("refused", "banned"), ("reloaded", None)} <= events
    secrets = ("ann's", "argon2")
    assert not [row for row in told for secret in secrets if secret in json.dumps(row)]


def test_connections_of_an_address(tmp_path: Path) -> None:
    with running(write(tmp_path, "[security]\nconnections_per_address = 2\n")) as broker:
        one, two = enter(broker, "1"), enter(broker, "2")
        with broker.raw() as three, contextlib.suppress(ConnectionError):
            three.send(connect("3"))
            assert three.rest() == b""
        one.sock.close()
        broker.wait_until(lambda: len(broker.server.broker.connections) == 1)
        enter(broker, "4").sock.close()
        two.sock.close()


def test_stopping_with_clients_that_wait(tmp_path: Path) -> None:
    with running(write(tmp_path, FILE + "[security]\nhash_threads = 1\n")) as broker:
        crowd = [broker.raw() for _ in range(40)]
        for number, raw in enumerate(crowd):
            raw.send(connect(f"c{number}", "ann", password=b"wrong"))
    assert not [t for t in threading.enumerate() if t.name.startswith("fleetmq-access")]
    for raw in crowd:
        raw.sock.close()


# The tables of the file.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[auth]]\ntype = "ldap"', "auth 1: type is one of password_file"),
        ('[[auth]]\ntype = "password_file"', "password_file needs file"),
        ('[[auth]]\ntype = "password_file"\nfiel = "x"', "unknown key fiel; did you mean file"),
        ('[[auth]]\ntype = "password_file"\nfile = "DIR/none"', "none: No such file"),
        ('[[auth]]\ntype = "sql"\ndatabase_url = "what://u:hunter2@x"', "invalid database URL"),
        ('[[auth]]\ntype = "jwt"\nkey_file = "DIR"', "Is a directory"),
        ('[[auth]]\ntype = "scram"', "scram needs a password_file or sql"),
        ('[[auth]]\ntype = "certificate"\nusername_from = "sn"', "username_from is one of cn"),
        ('[[auth]]\ntype = "anonymous"\n' * 2 + 'name = "anonymous"', "is used twice"),
        ('[[auth]]\ntype = "anonymous"\nlisteners = ["x"]', "no listener is named 'x'"),
        ('[auth]\ntype = "anonymous"', "auth is written [[auth]]"),
        ("acl = []", "acl is an empty list"),
        ("auth = []", "auth is an empty list"),
        ('[[acl]]\ntopics = ["a"]', ":1: acl 1: invalid permit"),
        ('\n\n[[acl]]\npermit = "allow"\ntopics = ["a#"]', ":3: "),
        ('[[acl]]\npermit = "allow"', "needs topics"),
        ('[[acl]]\npermit = "allow"\ntopics = "a"', "topics is a list of strings"),
        ('[[acl]]\npermit = "allow"\ntopics = ["a"]\nusers = ["ann"]', "needs [[auth]]"),
        ('[[acl]]\npermit = "allow"\ntopics = ["%u"]', "needs [[auth]]"),
        ('[[acl]]\ndatabase_url = "x"\npermit = "allow"', "unknown key permit"),
        ('[[roles]]\nrole = "a"', "it needs role and users"),
        ('[[client_limits]]\nmessages_per_s = -1', "messages_per_s is 0 to"),
        ('[[client_limits]]\nuser = "a"\nrole = "b"', "user or role, not both"),
        ('[[client_limits]]\n[[client_limits]]', "everybody are given twice"),
        ('[security]\nbans = "x"', "unknown key bans; did you mean bans_file"),
        ('[security]\nhash_threads = 65', "hash_threads is 0 to 64"),
        ('[[security]]\nbans_file = "x"', "written [security], and only once"),
        ('[[client_limits]]\nmessages_per_s = nan', "messages_per_s is 0 to"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught, running(path):
        pass
    with pytest.raises(ConfigError) as checked:  # as `fleetmq broker --check` does
        check_access(load(str(path), {}, {}).security)
    assert str(checked.value) == str(caught.value)
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_database_with_a_password_is_shown_nowhere(tmp_path: Path) -> None:
    url = "postgresql+psycopg://u:hunter2@127.0.0.1:1/db"
    path = write(
        tmp_path,
        f'[[auth]]\ntype = "sql"\ndatabase_url = "{url}"\n[[acl]]\ndatabase_url = "{url}"\n',
    )
    config = load(str(path), {}, {"durability": "memory"})
    assert "hunter2" not in repr(config)
    with pytest.raises(DatabaseUnreachable) as caught, Running(config=config):
        pass
    assert "hunter2" not in str(caught.value)


def test_an_address_that_others_reach_needs_somebody_who_asks(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    assert load(str(path), {}, {"host": "0.0.0.0"}).security.has_auth
    with pytest.raises(ConfigError, match="clients need not log in"):
        load(str(write(tmp_path, RULES)), {}, {"host": "0.0.0.0"})


def test_without_any_table_there_is_no_guardian() -> None:
    assert not SecurityConfig().is_on
    with Running() as broker:
        assert broker.server.security is None

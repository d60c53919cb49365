"""Accounts and rules in tables, on SQLite."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, text, update

from mqtt_broker.security import sql
from mqtt_broker.security.authentication.scram import make_keys
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.security.rules.ruleset import RuleSet
from tests.security.gate import HASHES

KEYS = make_keys(b"x", b"salt" * 4).encode()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/accounts.db"


def test_accounts_in_tables_are_edited_live(url: str) -> None:
    engine = sql.open_engine(url)
    now = [100.0]
    assert sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops"])
    assert not sql.put_user(engine, "ann", "scram", KEYS, None)
    accounts = sql.SqlAccounts(engine, lambda: now[0], cache_s=5.0)
    ann = accounts.find("ann")
    assert ann is not None and ann.password_hash == HASHES["ann"] and ann.scram is not None
    assert ann.roles == {"ops"}
    assert accounts.find("nobody") is None
    for name in ("' OR 1=1 --", "a\0b", "\ud800", "ann'", "x" * 70_000):
        assert accounts.find(name) is None
    before = accounts.queries
    with engine.begin() as connection:
        connection.execute(update(sql.USERS).values(is_enabled=False))
    assert accounts.find("ann") is ann and accounts.queries == before
    now[0] += 6
    assert accounts.find("ann") is None
    assert accounts.refresh(["ann"]) and not accounts.has("ann") and accounts.has("bob")
    assert not accounts.refresh(["ann"])
    with engine.begin() as connection:
        connection.execute(update(sql.USERS).values(is_enabled=True))
    assert accounts.refresh(["ann"]) and accounts.has("ann")
    assert sql.remove_user(engine, "ann") and not sql.remove_user(engine, "ann")
    engine.dispose()


def test_a_hash_of_a_kind_we_do_not_take_is_no_password(url: str) -> None:
    engine = sql.open_engine(url)
    sql.put_user(engine, "ann", "password", "plain text", None)
    sql.put_user(engine, "bob", "scram", "plain text", None)
    accounts = sql.SqlAccounts(engine, lambda: 0.0)
    ann, bob = accounts.find("ann"), accounts.find("bob")
    assert ann is not None and ann.password_hash is None and bob is not None and bob.scram is None
    engine.dispose()


def test_rules_in_a_table(url: str) -> None:
    engine = sql.open_engine(url)
    sql.create_tables(engine)
    rules = sql.SqlRules(engine)
    assert rules.load(10) and rules.rules == []
    row = {"permit": "allow", "action": "all", "topic": "d/%c/#"}
    with engine.begin() as connection:
        connection.execute(insert(sql.ACL).values(position=20, **row))
        connection.execute(
            insert(sql.ACL).values(
                position=5, permit="deny", action="publish", topic="d/+/x", username="ann",
                role="ops", client_id="c", address="10.0.0.0/8",
            )
        )  # fmt: skip
    assert rules.load(10) and not rules.load(10)
    assert [rule.where for rule in rules.rules] == [
        "fleetmq_acl position 5",
        "fleetmq_acl position 20",
    ]
    ruleset = RuleSet(rules.rules)
    decision = ruleset.may_publish(Identity("c"), "d/c/x")
    assert decision.is_allowed and decision.rule is rules.rules[1]
    with engine.begin() as connection:
        connection.execute(update(sql.ACL).where(sql.ACL.c.position == 20).values(topic="d/#/x"))
    with pytest.raises(FileError, match="fleetmq_acl position 20: "):
        rules.load(10)
    assert len(rules.rules) == 2  # those from before stay
    with engine.begin() as connection:
        connection.execute(delete(sql.ACL))
    assert rules.load(10) and rules.rules == []
    engine.dispose()


def test_a_database_that_fails_says_no_secret(url: str, tmp_path: Path) -> None:
    engine = sql.open_engine(url)
    accounts, rules = sql.SqlAccounts(engine, lambda: 0.0), sql.SqlRules(engine)
    for ask in (
        lambda: accounts.find("ann"),
        lambda: rules.load(0),
        lambda: accounts.refresh(["a"]),
    ):
        with pytest.raises(Unavailable) as caught:  # there are no tables
            ask()
        assert "ann" not in str(caught.value) and str(tmp_path) not in str(caught.value)
    engine.dispose()
    for bad in ("nonsense", "what://x", "postgresql+what://u:hunter2@h/d"):
        with pytest.raises(FileError) as wrong:
            sql.open_engine(bad)
        assert "hunter2" not in str(wrong.value)


def test_a_database_that_is_away_says_no_password() -> None:
    pytest.importorskip("psycopg")
    away = sql.open_engine("postgresql+psycopg://u:hunter2@127.0.0.1:1/db")
    with pytest.raises(Unavailable) as caught:
        sql.SqlAccounts(away, lambda: 0.0).find("ann")
    assert "hunter2" not in str(caught.value) and "hunter2" not in repr(away)
    away.dispose()


def test_many_threads_look_up(url: str) -> None:
    engine = sql.open_engine(url)
    for n in range(5):
        sql.put_user(engine, f"u{n}", "password", HASHES["ann"], None)
    accounts = sql.SqlAccounts(engine, lambda: 0.0, cache_s=0.0)
    found: list[object] = []

    def look() -> None:
        found.extend(accounts.find(f"u{n % 7}") is not None for n in range(21))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(True) == 6 * 15 and len(found) == 6 * 21
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM fleetmq_users")).scalar() == 5
    engine.dispose()

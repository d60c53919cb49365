"""The same tables on PostgreSQL, and a server that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, insert, make_url

from mqtt_broker.security import sql
from mqtt_broker.security.files.errors import FileError, Unavailable
from tests.fault.postgres import PostgreSQL
from tests.fault.postgres import Unavailable as NoServer
from tests.security.gate import HASHES


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    try:
        with PostgreSQL() as found:
            yield found
    except NoServer as error:
        pytest.skip(f"no PostgreSQL: {error}")


def change_rules(engine: Engine) -> None:
    """Write, replace and remove rows, each time all of them or none."""
    rows = [{"permit": "allow", "action": "all", "topic": topic} for topic in "abcd"]
    assert sql.put_rules(engine, rows) == range(11, 15)
    with pytest.raises(FileError, match="position 14 is taken; the rule needs 4 rows"):
        sql.put_rules(engine, rows, replaced=range(11, 14))
    kept = [{**row, "topic": topic} for row, topic in zip(rows, "ef", strict=False)]
    assert sql.put_rules(engine, kept, replaced=range(11, 15)) == range(11, 13)
    with pytest.raises(FileError, match="no rule at position 13"):
        sql.remove_rules(engine, range(11, 15))


def test_accounts_and_rules(server: PostgreSQL) -> None:
    url = server.database("accounts")
    assert make_url(url).get_backend_name() == "postgresql"
    engine = sql.open_engine(url)
    assert sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops", "dev"])
    assert not sql.put_user(engine, "ann", "password", HASHES["bob"], None)
    accounts, rules = sql.SqlAccounts(engine, lambda: 0.0, 0.0), sql.SqlRules(engine)
    ann = accounts.find("ann")
    assert ann is not None and ann.password_hash == HASHES["bob"] and ann.roles == {"ops", "dev"}
    for name in ("nobody", "a\0b", "'; DROP TABLE fleetmq_users; --", "%s", "x" * 70_000):
        assert accounts.find(name) is None
    with engine.begin() as connection:
        row = {"position": 1, "permit": "allow", "action": "all", "topic": "%c/%u"}
        connection.execute(insert(sql.ACL).values(**row))
    assert rules.load(0) and not rules.load(0) and rules.rules[0].topic == "%c/%u"
    change_rules(engine)
    assert rules.load(0) and [rule.topic for rule in rules.rules] == ["%c/%u", "e", "f"]
    server.stop("immediate")
    for ask in (lambda: accounts.find("ann"), lambda: rules.load(0)):
        with pytest.raises(Unavailable):
            ask()
    server.start()
    assert accounts.find("ann") == ann and not rules.load(0)
    assert accounts.refresh(["ann", "gone"]) and not accounts.has("gone") and accounts.has("ann")
    engine.dispose()

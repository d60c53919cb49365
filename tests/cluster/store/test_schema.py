"""A database is prepared for one cluster, and refused to others in one line."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url
from sqlalchemy.pool import NullPool

from mqtt_broker.cluster.statements import Commit, Insert, Select
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.schema import HEAD, TABLES, metadata, prepare
from mqtt_broker.cluster.tables import KEYS, WANTS
from sessions.store.database import StoreError, Unreachable
from tests.fault.postgres import PostgreSQL


def name_of(url: str) -> str:
    return str(make_url(url).database)


def test_tables_have_the_keys_that_the_rules_know() -> None:
    keys = {name: tuple(table.primary_key.columns.keys()) for name, table in TABLES.items()}
    assert keys == {name: KEYS[name] for name in TABLES}


def test_the_migrations_make_the_tables(database_url: str) -> None:
    prepare(database_url, "one")
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as connection:
        found = inspect(connection)
        for table in metadata.sorted_tables:
            columns = {column["name"]: column for column in found.get_columns(table.name)}
            assert list(columns) == table.c.keys()
            for column in table.c:
                there = columns[column.name]
                assert there["type"].python_type is column.type.python_type, column
                assert getattr(there["type"], "collation", None) == getattr(
                    column.type, "collation", None
                ), column
                assert not there["nullable"], column
            key = found.get_pk_constraint(table.name)["constrained_columns"]
            assert key == table.primary_key.columns.keys(), table.name


def test_nodes_that_start_at_once_prepare_it_once(database_url: str) -> None:
    failed: list[BaseException] = []

    def start() -> None:
        try:
            prepare(database_url, "one")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    connection = Connector(make_url(database_url), "one", TABLES).connect("node")
    connection.execute([Insert(WANTS, {"number": 1, "epoch": "e"}), Commit()])
    prepare(database_url, "one")  # again
    assert connection.execute([Select(WANTS), Commit()])[0] == [{"number": 1, "epoch": "e"}]
    connection.close()


def test_two_clusters_on_one_database(database_url: str) -> None:
    prepare(database_url, "one")
    line = f"the database .*{name_of(database_url)} belongs to the cluster 'one', not to 'two'"
    with pytest.raises(StoreError, match=line):
        prepare(database_url, "two")
    with pytest.raises(StoreError, match=line):
        Connector(make_url(database_url), "two", TABLES).connect("node")


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("9999", f"newer FleetMQ .schema 9999, this version supports {HEAD}.: use the newer"),
        ("0000", f"has the schema 0000, and this version needs {HEAD}"),
    ],
)
def test_another_schema_is_refused(
    postgresql: PostgreSQL, database_url: str, version: str, line: str
) -> None:
    prepare(database_url, "one")
    statement = f"UPDATE cluster_version SET version_num = '{version}'"
    postgresql.psql(name_of(database_url), statement)
    with pytest.raises(StoreError, match=line):
        Connector(make_url(database_url), "one", TABLES).connect("node")
    if version > HEAD:
        with pytest.raises(StoreError, match=line):
            prepare(database_url, "one")


def test_a_database_that_was_not_prepared(database_url: str) -> None:
    with pytest.raises(StoreError, match=r'cannot be used: relation "cluster_state" does not'):
        Connector(make_url(database_url), "one", TABLES).connect("node")


def test_sqlite_has_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a cluster needs PostgreSQL, and 'sqlite' is not"):
        prepare(f"sqlite:///{tmp_path}/one.db", "one")


def test_a_database_that_is_away(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://somebody:secret@/one?host={tmp_path}"
    with pytest.raises(Unreachable, match=r"cannot be reached: .*No such file") as said:
        prepare(url, "one")
    assert "secret" not in str(said.value) and "\n" not in str(said.value)
    with pytest.raises(StoreError, match=r"cannot be reached: .*No such file"):
        Connector(make_url(url), "one", TABLES).connect("node")


def test_a_role_without_the_right_to_create_tables(
    postgresql: PostgreSQL, database_url: str
) -> None:
    name = name_of(database_url)
    postgresql.psql(
        name, f"CREATE ROLE weak_{name} LOGIN; REVOKE CREATE ON SCHEMA public FROM public"
    )
    with pytest.raises(StoreError, match="permission denied for schema public"):
        prepare(database_url.replace("postgres@", f"weak_{name}@"), "one")

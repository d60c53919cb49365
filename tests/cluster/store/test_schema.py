"""A database is prepared for one cluster, and refused to others in one line."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.pool import NullPool

from mqtt_broker.cluster.statements import Commit, Insert, Select
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.schema import HEAD, MIGRATIONS, TABLES, key_of, metadata, prepare
from mqtt_broker.cluster.tables import KEYS, WANTS
from sessions.store.database import StoreError, Unreachable
from sessions.store.schema import migrate
from tests.cluster.store.loop import SECRET
from tests.fault.postgres import PostgreSQL


def name_of(url: str) -> str:
    return str(make_url(url).database)


def test_tables_have_the_keys_that_the_rules_know() -> None:
    keys = {name: tuple(column.name for column in key_of(table)) for name, table in TABLES.items()}
    assert keys == KEYS


def test_texts_of_clients_are_in_no_key() -> None:
    indexed: set[str] = set()
    for table in metadata.sorted_tables:
        indexed.update(table.primary_key.columns.keys())
        for index in table.indexes:
            indexed.update(index.columns.keys())
    assert not indexed & {"client", "filter"} and "client_digest" in indexed


def test_the_migrations_make_the_tables(database_url: str) -> None:
    prepare(database_url, "one", SECRET)
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
            indexes = {one["name"]: one["column_names"] for one in found.get_indexes(table.name)}
            assert indexes == {one.name: one.columns.keys() for one in table.indexes}, table.name


def test_a_database_of_the_first_schema_is_upgraded(database_url: str) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        migrate(connection, MIGRATIONS, "0001")
        connection.execute(text("INSERT INTO cluster_state VALUES (1, 'one')"))
        connection.execute(text("INSERT INTO cluster_wants VALUES (1, 'e')"))
    connector = Connector(make_url(database_url), "one", TABLES)
    with pytest.raises(StoreError, match=f"has the schema 0001, and this version needs {HEAD}"):
        connector.connect("node")
    prepare(database_url, "one", SECRET)
    node = connector.connect("node")
    assert node.execute([Select(WANTS), Commit()])[0] == [{"number": 1, "epoch": "e"}]
    assert connector.secret == SECRET
    node.close()


def test_the_secret_is_made_once(database_url: str) -> None:
    for secret in (SECRET, bytes(32)):
        prepare(database_url, "one", secret)
    connector = Connector(make_url(database_url), "one", TABLES)
    connector.connect("node").close()
    assert connector.secret == SECRET


def test_nodes_that_start_at_once_prepare_it_once(database_url: str) -> None:
    failed: list[BaseException] = []

    def start() -> None:
        try:
            prepare(database_url, "one", SECRET)
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
    prepare(database_url, "one", SECRET)  # again
    assert connection.execute([Select(WANTS), Commit()])[0] == [{"number": 1, "epoch": "e"}]
    connection.close()


def test_two_clusters_on_one_database(database_url: str) -> None:
    prepare(database_url, "one", SECRET)
    line = f"the database .*{name_of(database_url)} belongs to the cluster 'one', not to 'two'"
    with pytest.raises(StoreError, match=line):
        prepare(database_url, "two", SECRET)
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
    prepare(database_url, "one", SECRET)
    statement = f"UPDATE cluster_version SET version_num = '{version}'"
    postgresql.psql(name_of(database_url), statement)
    with pytest.raises(StoreError, match=line):
        Connector(make_url(database_url), "one", TABLES).connect("node")
    if version > HEAD:
        with pytest.raises(StoreError, match=line):
            prepare(database_url, "one", SECRET)


def test_a_database_that_was_not_prepared(database_url: str) -> None:
    with pytest.raises(StoreError, match=r'cannot be used: relation "cluster_state" does not'):
        Connector(make_url(database_url), "one", TABLES).connect("node")


def test_sqlite_has_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a cluster needs PostgreSQL, and 'sqlite' is not"):
        prepare(f"sqlite:///{tmp_path}/one.db", "one", SECRET)


def test_a_database_that_is_away(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://somebody:secret@/one?host={tmp_path}"
    with pytest.raises(Unreachable, match=r"cannot be reached: .*No such file") as said:
        prepare(url, "one", SECRET)
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
    line = f"the role 'weak_{name}' may not prepare the tables of the cluster in .*/{name}: "
    with pytest.raises(StoreError, match=f"{line}permission denied for schema public") as said:
        prepare(database_url.replace("postgres@", f"weak_{name}@"), "one", SECRET)
    assert "\n" not in str(said.value)


def test_a_role_that_does_not_own_the_tables_upgrades_nothing(
    postgresql: PostgreSQL, database_url: str
) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        migrate(connection, MIGRATIONS, "0001")
    name = name_of(database_url)
    postgresql.psql(
        name,
        f"CREATE ROLE weak_{name} LOGIN; GRANT CREATE ON SCHEMA public TO weak_{name};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO weak_{name}",
    )
    with pytest.raises(StoreError, match=f"'weak_{name}' may not prepare .*: must be owner of"):
        prepare(database_url.replace("postgres@", f"weak_{name}@"), "one", SECRET)


@pytest.mark.parametrize(
    ("revoke", "line"),
    [
        ("SELECT ON cluster_state", "SELECT on cluster_state"),
        ("DELETE ON cluster_owners", "DELETE on cluster_owners"),
        ("INSERT, UPDATE ON cluster_nodes", "INSERT on cluster_nodes and 1 other"),
        ("EXECUTE ON FUNCTION cluster_required FROM public", "EXECUTE on cluster_required"),
        ("EXECUTE ON FUNCTION pg_terminate_backend FROM public", "EXECUTE on pg_terminate_backend"),
    ],
)
def test_a_role_that_lacks_a_right(
    postgresql: PostgreSQL, database_url: str, revoke: str, line: str
) -> None:
    prepare(database_url, "one", SECRET)
    name = name_of(database_url)
    of = "" if " FROM " in revoke else f" FROM weak_{name}"
    postgresql.psql(
        name,
        f"CREATE ROLE weak_{name} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO weak_{name}",
    )
    url = database_url.replace("postgres@", f"weak_{name}@")
    prepare(url, "one", SECRET)  # it has nothing to create
    connector = Connector(make_url(url), "one", TABLES)
    connector.connect("node").close()
    postgresql.psql(name, f"REVOKE {revoke}{of}")
    with pytest.raises(StoreError, match=f"the role 'weak_{name}' lacks {line}") as said:
        connector.connect("node")
    assert "\n" not in str(said.value)

"""Define the tables of a cluster, and prepare a database for it.

All names begin with `cluster_`, so that the tables of a single broker may stand beside them. Texts
are compared by their bytes, as Python compares them, whatever the database's locale is.

Until clustering is offered, the first migration may still change; from then on a change is a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from mqtt_broker.cluster.tables import GROUPS, KEYS, NODES, WANTS
from sessions.store.database import (
    StoreError,
    Unreachable,
    explain,
    explain_connect,
    parse_url,
    postgres_engine,
)
from sessions.store.schema import migrate, version_of

HEAD: Final = "0001"  # the newest step in migrations/versions
VERSION_TABLE: Final = "cluster_version"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Functions that raise an error of ours; see `queries`.
REQUIRED_FUNCTION: Final = "cluster_required"
REFUSED_SQLSTATE: Final = "FM001"
EXPECTED_FUNCTION: Final = "cluster_expected"
STALE_SQLSTATE: Final = "FM002"
_PREFIX: Final = "cluster_"
# Nodes that start at once prepare the database one after the other.
_LOCK: Final = "SELECT pg_advisory_xact_lock(1179470931, hashtext(current_schema()))"

metadata: Final = MetaData()


def number(name: str) -> Column[int]:
    """Make a column of whole numbers."""
    return Column(name, BigInteger, nullable=False, autoincrement=False)


def words(name: str) -> Column[str]:
    """Make a column of text."""
    return Column(name, Text(collation="C"), nullable=False)


def data(name: str) -> Column[bytes]:
    """Make a column of bytes."""
    return Column(name, LargeBinary, nullable=False)


def make_table(
    name: str, key: tuple[str, ...], columns: list[Column[Any]], metadata: MetaData
) -> Table:
    """Make a table with these columns of its key."""
    return Table(_PREFIX + name, metadata, *columns, PrimaryKeyConstraint(*key))


_COLUMNS: Final[dict[str, list[Column[Any]]]] = {
    NODES: [number("number"), words("epoch"), number("turn"), number("group"), number("folded")],
    WANTS: [number("number"), words("epoch")],
    GROUPS: [number("number"), number("group"), data("blob")],
}
# By the names that the rules know.
TABLES: Final[dict[str, Table]] = {
    name: make_table(name, KEYS[name], columns, metadata) for name, columns in _COLUMNS.items()
}
# One row: the name of the cluster.
state: Final = Table(
    "cluster_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("name", Text(collation="C"), nullable=False),
)


def prepare(database_url: str, cluster: str) -> None:
    """Create or upgrade the tables. Raises StoreError if the database is not this cluster's."""
    url = parse_url(database_url)
    if url.get_backend_name() != "postgresql":
        raise StoreError(f"a cluster needs PostgreSQL, and {url.drivername!r} is not")
    name = url.set(query={}).render_as_string(hide_password=True)
    engine = postgres_engine(url, "fleetmq cluster")
    try:
        with engine.connect() as connection, connection.begin():
            connection.execute(text(_LOCK))
            _upgrade(connection, name, cluster)
            check(version_of(connection, VERSION_TABLE), _name_of(connection), name, cluster)
    except SQLAlchemyError as error:
        if getattr(getattr(error, "orig", None), "sqlstate", None) is None:
            said = explain_connect(error)
            raise Unreachable(f"the database {name} cannot be reached: {said}") from None
        raise StoreError(f"{name}: {explain(error)}") from None
    finally:
        engine.dispose()


def _upgrade(connection: Connection, name: str, cluster: str) -> None:
    version = version_of(connection, VERSION_TABLE)
    if version is None or version < HEAD:
        migrate(connection, MIGRATIONS, HEAD)
    if version is None:
        connection.execute(state.insert().values(id=1, name=cluster))


def _name_of(connection: Connection) -> str:
    return str(connection.execute(state.select().with_only_columns(state.c.name)).scalar_one())


def check(version: str | None, found: str, database: str, cluster: str) -> None:
    """Raise StoreError unless the tables have our version and belong to this cluster."""
    if version is not None and version > HEAD:
        raise StoreError(
            f"the cluster in {database} was upgraded by a newer FleetMQ (schema {version}, "
            f"this version supports {HEAD}): use the newer version"
        )
    if version != HEAD:
        raise StoreError(
            f"the cluster in {database} has the schema {version}, and this version needs {HEAD}: "
            "restart this node, which upgrades it"
        )
    if found != cluster:
        raise StoreError(
            f"the database {database} belongs to the cluster {found!r}, not to {cluster!r}: "
            "correct the name, or give this cluster a database of its own"
        )

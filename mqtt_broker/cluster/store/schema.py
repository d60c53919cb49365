"""Define the tables of a cluster, and prepare a database for it.

All names begin with `cluster_`, so that the tables of a single broker may stand beside them. Texts
are compared by their bytes, as Python compares them, whatever the database's locale is.

A client identifier or a Topic Filter may have 65,535 bytes, and a key of PostgreSQL 2,704. So their
tables have a column with a digest beside such a text, and the digest is in the key. The rules do
not know of it: rows are found by the digest, and read and locked in the order of the texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from mqtt_broker.cluster.tables import (
    ASKS,
    CONTENTS,
    FILTERS,
    GROUPS,
    KEYS,
    NODES,
    OUTBOX,
    OWNERS,
    PLACES,
    RETAINED,
    SWEEPS,
    VERSIONS,
    WANTS,
)
from sessions.store import schema as state_schema
from sessions.store.database import (
    StoreError,
    Unreachable,
    explain,
    explain_connect,
    parse_url,
    postgres_engine,
)
from sessions.store.schema import migrate, version_of

HEAD: Final = "0005"  # the newest step in migrations/versions
VERSION_TABLE: Final = "cluster_version"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Functions that raise an error of ours; see `queries`.
REQUIRED_FUNCTION: Final = "cluster_required"
REFUSED_SQLSTATE: Final = "FM001"
EXPECTED_FUNCTION: Final = "cluster_expected"
STALE_SQLSTATE: Final = "FM002"
_NO_RIGHT: Final = "42501"
_PREFIX: Final = "cluster_"
_DIGEST: Final = "_digest"
# Nodes that start at once prepare the database one after the other.
_LOCK: Final = "SELECT pg_advisory_xact_lock(1179470931, hashtext(current_schema()))"

SECRET_BYTES: Final = 32

metadata: Final = MetaData()


class Digest(LargeBinary):
    """A digest of the text in the column before it, which stands for that text in the key."""


def number(name: str) -> Column[int]:
    """Make a column of whole numbers."""
    return Column(name, BigInteger, nullable=False, autoincrement=False)


def words(name: str) -> Column[str]:
    """Make a column of text."""
    return Column(name, Text(collation="C"), nullable=False)


def data(name: str) -> Column[bytes]:
    """Make a column of bytes."""
    return Column(name, LargeBinary, nullable=False)


def truth(name: str) -> Column[bool]:
    """Make a column of truth values."""
    return Column(name, Boolean, nullable=False)


def digest_of(name: str) -> Column[bytes]:
    """Make a column of digests for a column of texts that are too long for a key."""
    return Column(name + _DIGEST, Digest, nullable=False)


def make_table(
    name: str, key: tuple[str, ...], columns: list[Column[Any]], metadata: MetaData
) -> Table:
    """Make a table with these columns of its key."""
    table = Table(_PREFIX + name, metadata, *columns)
    table.append_constraint(PrimaryKeyConstraint(*(stored(table, column).name for column in key)))
    return table


def known(table: Table) -> list[Column[Any]]:
    """Return the columns that the rules know."""
    return [column for column in table.c if not isinstance(column.type, Digest)]


def stored(table: Table, name: str) -> Column[Any]:
    """Return the column by which rows are found: the digest of a text, if there is one."""
    return table.c.get(name + _DIGEST, table.c[name])


def text_of(column: Column[Any]) -> str:
    """Return the name under which the rules know what a column holds, or a digest of it."""
    return column.name.removesuffix(_DIGEST)


def key_of(table: Table) -> list[Column[Any]]:
    """Return the columns of the key as the rules know it: texts where there are digests."""
    return [table.c[text_of(column)] for column in table.primary_key]


_COLUMNS: Final[dict[str, list[Column[Any]]]] = {
    NODES: [number("number"), words("epoch"), number("turn"), number("group"), number("folded")],
    WANTS: [number("number"), words("epoch")],
    GROUPS: [number("number"), number("group"), data("blob")],
    OWNERS: [
        words("client"), digest_of("client"), number("number"), number("tenure"),
        truth("is_offered"),
    ],
    ASKS: [words("client"), digest_of("client"), number("number"), number("tenure")],
    VERSIONS: [number("number"), words("epoch"), number("filters"), number("filters_from")],
    FILTERS: [
        number("number"), words("filter"), digest_of("filter"), number("reach"), number("group"),
    ],
    OUTBOX: [
        number("receiver"), number("sender"), number("first"), number("last"), words("epoch"),
        number("turn"), number("filters"), data("blob"),
    ],
    PLACES: [number("receiver"), number("sender"), number("place")],
    CONTENTS: [number("number"), number("last_mid"), number("last_sid"), number("next_place")],
    RETAINED: [
        words("topic"), digest_of("topic"), number("number"), number("group"),
        number("expires_at"), data("blob"),
    ],
    SWEEPS: [number("number"), number("group")],
}  # fmt: skip
# By the names that the rules know.
TABLES: Final[dict[str, Table]] = {
    name: make_table(name, KEYS[name], columns, metadata) for name, columns in _COLUMNS.items()
}
# By number: its clients, what others ask of it, and what of its filters and retained messages has
# changed.
for _name in (OWNERS, ASKS):
    Index(f"{_PREFIX}{_name}_number", TABLES[_name].c.number)
for _name in (FILTERS, RETAINED):
    Index(f"{_PREFIX}{_name}_group", TABLES[_name].c.number, TABLES[_name].c.group)
# One row: the name of the cluster, and the secret with which its nodes prove what they send.
state: Final = Table(
    "cluster_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("name", Text(collation="C"), nullable=False),
    Column("secret", LargeBinary, nullable=False),
)


def prepare(database_url: str, cluster: str, secret: bytes) -> None:
    """Create or upgrade the tables. Raises StoreError if the database is not this cluster's.

    `secret` are random bytes, which become the cluster's secret if it has none yet.
    """
    assert len(secret) == SECRET_BYTES, f"a secret has {SECRET_BYTES} bytes, not {len(secret)}"
    url = parse_url(database_url)
    if url.get_backend_name() != "postgresql":
        raise StoreError(f"a cluster needs PostgreSQL, and {url.drivername!r} is not")
    name = url.set(query={}).render_as_string(hide_password=True)
    engine = postgres_engine(url, "fleetmq cluster")
    try:
        with engine.connect() as connection, connection.begin():
            connection.execute(text(_LOCK))
            _prepare_state(connection, name)
            _upgrade(connection, cluster, secret)
            check(version_of(connection, VERSION_TABLE), _name_of(connection), name, cluster)
    except SQLAlchemyError as error:
        sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
        if sqlstate is None:
            said = explain_connect(error)
            raise Unreachable(f"the database {name} cannot be reached: {said}") from None
        if sqlstate == _NO_RIGHT:
            raise StoreError(
                f"the role {url.username!r} may not prepare the tables of the cluster in {name}: "
                f"{explain(error)}; start one node as the role that owns them, or that may CREATE"
            ) from None
        raise StoreError(f"{name}: {explain(error)}") from None
    finally:
        engine.dispose()


def _prepare_state(connection: Connection, database: str) -> None:
    """Create or upgrade the tables of sessions and messages, which all numbers share."""
    if inspect(connection).has_table(state_schema.journal_state.name):
        raise StoreError(
            f"the database {database} holds the state of a single broker: "
            "give the cluster a database of its own"
        )
    version = version_of(connection)
    if version is None:
        state_schema.create(connection, {state_schema.TABLES})
    elif version < state_schema.HEAD:
        state_schema.upgrade(connection, {state_schema.TABLES})
    elif version > state_schema.HEAD:
        raise StoreError(
            f"the tables of sessions in {database} were upgraded by a newer FleetMQ (schema "
            f"{version}, this version supports {state_schema.HEAD}): use the newer version"
        )


def _upgrade(connection: Connection, cluster: str, secret: bytes) -> None:
    version = version_of(connection, VERSION_TABLE)
    if version is None or version < HEAD:
        migrate(connection, MIGRATIONS, HEAD, secret=secret)
    if version is None:
        connection.execute(state.insert().values(id=1, name=cluster, secret=secret))


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

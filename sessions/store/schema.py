"""Define the tables, and upgrade databases to them.

    tables    the state of the broker, in readable form: docs/SQL.md describes each column
    journal   committed groups of records, until they are in the tables; on SQLite it has a file
              of its own, so that work on the tables never delays a commit

Keys are numbers or digests, since a topic of 65,535 bytes is too long for a key of PostgreSQL.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    inspect,
    text,
)

from sessions.store.migrations import s0001_views, s0002_views

# The newest step in migrations/versions. A database of this version is opened, and a new one
# created, without Alembic: importing it takes 90 ms, and its steps 25 ms for each new store.
HEAD: Final = "0004"
TABLES: Final = "tables"
JOURNAL: Final = "journal"
UNCOMPRESSED: Final = "uncompressed"  # in a column's `info`: compressing costs more than it saves
MIGRATIONS: Final = Path(__file__).parent / "migrations"

tables: Final = MetaData()
journal_tables: Final = MetaData()

sessions: Final = Table(
    "sessions",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("client_id", Text, nullable=False),
    Column("username", Text),
    Column("version", SmallInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expiry_interval", BigInteger, nullable=False),
    Column("is_online", Boolean, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("will_at", Double, nullable=False),
    Column("will_topic", Text),
    Column("will_payload", LargeBinary),
    Column("will_qos", SmallInteger),
    Column("will_retain", Boolean),
    Column("will_section", LargeBinary),
    Column("will_crc", LargeBinary),  # see `checksums`; null: without a will, or of before
)
shares: Final = Table(
    "shares",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("filter", Text, nullable=False),
)
subscriptions: Final = Table(
    "subscriptions",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("filter_digest", LargeBinary, primary_key=True),
    Column("filter", Text, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("no_local", Boolean, nullable=False),
    Column("retain_as_published", Boolean, nullable=False),
    Column("retain_handling", SmallInteger, nullable=False),
    Column("identifier", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
messages: Final = Table(
    "messages",
    tables,
    Column("mid", BigInteger().with_variant(Integer, "sqlite"), primary_key=True,
           autoincrement=False),
    Column("topic", Text, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("retain", Boolean, nullable=False),
    Column("section", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False, info={UNCOMPRESSED: True}),
    Column("publisher", Text, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("expiry_interval", BigInteger, nullable=False),
    Column("refs", BigInteger, nullable=False),
    Column("crc", LargeBinary),  # see `checksums`; null: of before
)  # fmt: skip
deliveries: Final = Table(
    "deliveries",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("mid", BigInteger, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("retain", Boolean, nullable=False),
    Column("subscription_ids", Text, nullable=False),
    Column("share", Text, nullable=False),
    Column("packet_id", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
releases: Final = Table(
    "releases",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("packet_id", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
received: Final = Table(
    "received",
    tables,
    Column("sid", BigInteger, primary_key=True, autoincrement=False),
    Column("packet_id", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
retained: Final = Table(
    "retained",
    tables,
    Column("mid", BigInteger().with_variant(Integer, "sqlite"), primary_key=True,
           autoincrement=False),
)  # fmt: skip
streams: Final = Table(
    "streams",
    tables,
    Column("name", Text, primary_key=True),
    Column("epoch", Text, nullable=False),
    Column("filter", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)
stream_offsets: Final = Table(
    "stream_offsets",
    tables,
    Column("owner_digest", LargeBinary, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("stream", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Text, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
)
# One row: the id of the store, and the last group of the journal that is in the tables.
meta: Final = Table(
    "meta",
    tables,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("store_id", Text, nullable=False),
    Column("folded", BigInteger, nullable=False),
    Column("last_mid", BigInteger, nullable=False),
    Column("last_sid", BigInteger, nullable=False),
    Column("next_place", BigInteger, nullable=False),
    Column("alive_at", Double, nullable=False),
)
journal: Final = Table(
    "journal",
    journal_tables,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True,
           autoincrement=False),
    Column("at", Double, nullable=False),
    Column("data", LargeBinary, nullable=False, info={UNCOMPRESSED: True}),
)  # fmt: skip
# One row: the id of the store, the broker that writes, and the last group that was removed.
journal_state: Final = Table(
    "journal_state",
    journal_tables,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("store_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("removed_to", BigInteger, nullable=False),
)
# The ends of the telemetry log that belong to committed groups.
stream_ends: Final = Table(
    "stream_ends",
    journal_tables,
    Column("name", Text, primary_key=True),
    Column("ends", Text, nullable=False),
)


def names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def digest(text: str) -> bytes:
    """Return the digest of a filter, or of the owner of a cursor."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def version_of(connection: Connection, table: str = "alembic_version") -> str | None:
    """Return the version of a database; None if it is empty."""
    if not inspect(connection).has_table(table):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()
    return str(found) if found is not None else None


def create(connection: Connection, parts: set[str]) -> None:
    """Create in an empty database, within the transaction, what all steps together create."""
    is_sqlite = connection.dialect.name == "sqlite"
    if TABLES in parts:
        _create(connection, tables)
        for step in (s0001_views, s0002_views):
            for view in step.views(is_sqlite=is_sqlite):
                connection.execute(text(view))
    if JOURNAL in parts:
        _create(connection, journal_tables)
    connection.execute(
        text(
            "CREATE TABLE IF NOT EXISTS alembic_version ("
            "version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text(f"INSERT INTO alembic_version VALUES ('{HEAD}')"))


def _create(connection: Connection, metadata: MetaData) -> None:
    for table in metadata.tables.values():
        table.create(connection, checkfirst=False)
        for column in table.columns:
            if column.info.get(UNCOMPRESSED) and connection.dialect.name == "postgresql":
                connection.execute(
                    text(f"ALTER TABLE {table.name} ALTER {column.name} SET STORAGE EXTERNAL")
                )


def upgrade(connection: Connection, parts: set[str], step: str = HEAD) -> None:
    """Upgrade a database within the transaction of `connection`."""
    migrate(connection, MIGRATIONS, step, parts=parts)


def migrate(connection: Connection, directory: Path, step: str, **attributes: object) -> None:
    """Run the migrations of a directory up to a step, within the transaction of `connection`."""
    # Imported here: it takes 70 ms, and is needed only for a new or old database.
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic reads options with configparser, which interprets percent signs.
    config.set_main_option("script_location", str(directory).replace("%", "%%"))
    config.attributes.update(attributes, connection=connection)
    command.upgrade(config, step)


def begin(connection: Connection, part: str, store_id: str) -> None:
    """Insert the one row that each part of a new store has."""
    if part == TABLES:
        connection.execute(
            meta.insert().values(
                id=1, store_id=store_id, folded=0, last_mid=0, last_sid=0, next_place=1,
                alive_at=0.0,
            )
        )  # fmt: skip
    else:
        connection.execute(
            journal_state.insert().values(id=1, store_id=store_id, owner="", removed_to=0)
        )

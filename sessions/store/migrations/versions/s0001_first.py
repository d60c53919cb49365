"""The first schema: tables, views and the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from sessions.store.migrations.s0001_views import views

revision = "0001"
down_revision = None


def upgrade() -> None:
    parts: set[str] = context.config.attributes["parts"]
    if "tables" in parts:
        _tables()
        is_sqlite = op.get_bind().dialect.name == "sqlite"
        for statement in views(is_sqlite=is_sqlite):
            op.execute(statement)
    if "journal" in parts:
        _journal()
    if op.get_bind().dialect.name == "postgresql":
        # Compressing payloads costs more than it saves.
        if "tables" in parts:
            op.execute("ALTER TABLE messages ALTER payload SET STORAGE EXTERNAL")
        if "journal" in parts:
            op.execute("ALTER TABLE journal ALTER data SET STORAGE EXTERNAL")


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def _row_number(name: str) -> sa.Column[int]:
    """Make a key column; on SQLite a key of type INTEGER is the rowid and needs no index."""
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _small(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger, nullable=nullable)


def _flag(name: str, *, nullable: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _bytes(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=nullable)


def _time(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


def _one_row() -> sa.Column[int]:
    return sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False)


def _tables() -> None:
    op.create_table(
        "sessions",
        _number("sid"),
        _text("client_id"),
        _text("username", nullable=True),
        _small("version"),
        _time("created_at"),
        _number("expiry_interval"),
        _flag("is_online"),
        _time("expires_at"),
        _time("will_at"),
        _text("will_topic", nullable=True),
        _bytes("will_payload", nullable=True),
        _small("will_qos", nullable=True),
        _flag("will_retain", nullable=True),
        _bytes("will_section", nullable=True),
        sa.PrimaryKeyConstraint("sid"),
    )
    op.create_table("shares", _number("sid"), _text("filter"), sa.PrimaryKeyConstraint("sid"))
    op.create_table(
        "subscriptions",
        _number("sid"),
        _bytes("filter_digest"),
        _text("filter"),
        _small("qos"),
        _flag("no_local"),
        _flag("retain_as_published"),
        _small("retain_handling"),
        _number("identifier"),
        sa.PrimaryKeyConstraint("sid", "filter_digest"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "messages",
        _row_number("mid"),
        _text("topic"),
        _small("qos"),
        _flag("retain"),
        _bytes("section"),
        _bytes("payload"),
        _text("publisher"),
        _time("received_at"),
        _number("expiry_interval"),
        _number("refs"),
    )
    op.create_table(
        "deliveries",
        _number("sid"),
        _number("n"),
        _number("mid"),
        _small("qos"),
        _flag("retain"),
        _text("subscription_ids"),
        _text("share"),
        sa.Column("packet_id", sa.Integer, nullable=False),
        _number("size"),
        sa.PrimaryKeyConstraint("sid", "n"),
        sqlite_with_rowid=False,
    )
    for name in ("releases", "received"):
        op.create_table(
            name,
            _number("sid"),
            sa.Column("packet_id", sa.Integer, nullable=False, autoincrement=False),
            _number("place"),
            sa.PrimaryKeyConstraint("sid", "packet_id"),
            sqlite_with_rowid=False,
        )
    op.create_table("retained", _row_number("mid"))
    op.create_table(
        "meta",
        _one_row(),
        _text("store_id"),
        _number("folded"),
        _number("last_mid"),
        _number("last_sid"),
        _number("next_place"),
        _time("alive_at"),
    )


def _journal() -> None:
    op.create_table("journal", _row_number("number"), _time("at"), _bytes("data"))
    op.create_table(
        "journal_state",
        _one_row(),
        _text("store_id"),
        _text("owner"),
        _number("removed_to"),
    )

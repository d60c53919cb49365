"""The tables of the telemetry log: streams, positions of readers, and ends in the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from sessions.store.migrations.s0002_views import views

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    parts: set[str] = context.config.attributes["parts"]
    if "tables" in parts:
        _tables()
        for statement in views(is_sqlite=op.get_bind().dialect.name == "sqlite"):
            op.execute(statement)
    if "journal" in parts:
        op.create_table(
            "stream_ends", _text("name"), _text("ends"), sa.PrimaryKeyConstraint("name")
        )


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _tables() -> None:
    op.create_table(
        "streams",
        _text("name"),
        _text("epoch"),
        _text("filter"),
        _text("settings"),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "stream_offsets",
        sa.Column("owner_digest", sa.LargeBinary, nullable=False),
        _text("owner"),
        _text("stream"),
        sa.Column("partition", sa.Integer, nullable=False, autoincrement=False),
        _text("epoch"),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner_digest", "stream", "partition"),
    )

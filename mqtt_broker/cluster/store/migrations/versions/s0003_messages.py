"""The third schema: Topic Filters with their versions, and messages from number to number."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "cluster_versions",
        _number("number"), _text("epoch"), _number("filters"), _number("filters_from"),
        sa.PrimaryKeyConstraint("number"),
    )  # fmt: skip
    op.create_table(
        "cluster_filters",
        _number("number"), _text("filter"), _bytes("filter_digest"), _number("reach"),
        _number("group"), sa.PrimaryKeyConstraint("number", "filter_digest"),
    )  # fmt: skip
    op.create_index("cluster_filters_group", "cluster_filters", ["number", "group"])
    op.create_table(
        "cluster_outbox",
        _number("receiver"), _number("sender"), _number("first"), _number("last"),
        _text("epoch"), _number("turn"), _number("filters"), _bytes("blob"),
        sa.PrimaryKeyConstraint("sender", "receiver", "first"),
    )  # fmt: skip
    # Compressing payloads costs more than it saves.
    op.execute("ALTER TABLE cluster_outbox ALTER blob SET STORAGE EXTERNAL")
    op.create_table(
        "cluster_places",
        _number("receiver"), _number("sender"), _number("place"),
        sa.PrimaryKeyConstraint("receiver", "sender"),
    )  # fmt: skip


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(collation="C"), nullable=False)


def _bytes(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)

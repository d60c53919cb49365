"""The fifth schema: retained messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "cluster_retained",
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("topic_digest", sa.LargeBinary, nullable=False),
        _number("number"), _number("group"), _number("expires_at"),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("topic_digest"),
    )  # fmt: skip
    op.create_index("cluster_retained_group", "cluster_retained", ["number", "group"])
    # Compressing payloads costs more than it saves.
    op.execute("ALTER TABLE cluster_retained ALTER blob SET STORAGE EXTERNAL")
    op.create_table(
        "cluster_sweeps",
        _number("number"), _number("group"),
        sa.PrimaryKeyConstraint("number"),
    )  # fmt: skip


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)

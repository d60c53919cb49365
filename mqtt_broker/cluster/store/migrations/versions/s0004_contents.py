"""The fourth schema: what each broker numbered last, and sessions found by their clients."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "cluster_contents",
        *_numbers("number", "last_mid", "last_sid", "next_place"),
        sa.PrimaryKeyConstraint("number"),
    )
    # A client identifier may be too long for any other kind of index.
    op.create_index("cluster_sessions_client", "sessions", ["client_id"], postgresql_using="hash")


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in names]

"""The second schema: owners of clients, and the secret of the cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "cluster_owners",
        *_client(), _number("number"), _number("tenure"),
        sa.Column("is_offered", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("client_digest"),
    )  # fmt: skip
    op.create_table(
        "cluster_asks",
        *_client(), _number("number"), _number("tenure"),
        sa.PrimaryKeyConstraint("client_digest"),
    )  # fmt: skip
    op.create_index("cluster_owners_number", "cluster_owners", ["number"])
    op.create_index("cluster_asks_number", "cluster_asks", ["number"])
    op.add_column("cluster_state", sa.Column("secret", sa.LargeBinary))
    secret: bytes = context.config.attributes["secret"]
    op.execute(sa.text("UPDATE cluster_state SET secret = :secret").bindparams(secret=secret))
    op.alter_column("cluster_state", "secret", nullable=False)


def _client() -> list[sa.Column[object]]:
    return [
        sa.Column("client", sa.Text(collation="C"), nullable=False),
        sa.Column("client_digest", sa.LargeBinary, nullable=False),
    ]


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)

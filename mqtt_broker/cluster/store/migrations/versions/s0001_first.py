"""The first schema: numbers with their hosts and journals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_REQUIRED = """
CREATE FUNCTION cluster_required(rows bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF rows = 0 THEN
        RAISE EXCEPTION 'a required row is not there' USING ERRCODE = 'FM001';
    END IF;
    RETURN true;
END $$
"""
_EXPECTED = """
CREATE FUNCTION cluster_expected(is_so boolean) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF is_so IS NOT TRUE THEN
        RAISE EXCEPTION 'rows are not what was expected' USING ERRCODE = 'FM002';
    END IF;
    RETURN true;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "cluster_state",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        _text("name"),
    )
    op.create_table(
        "cluster_nodes",
        _number("number"), _text("epoch"), _number("turn"), _number("group"), _number("folded"),
        sa.PrimaryKeyConstraint("number"),
    )  # fmt: skip
    op.create_table(
        "cluster_wants", _number("number"), _text("epoch"), sa.PrimaryKeyConstraint("number")
    )
    op.create_table(
        "cluster_groups",
        _number("number"), _number("group"), _bytes("blob"),
        sa.PrimaryKeyConstraint("number", "group"),
    )  # fmt: skip
    # Compressing payloads costs more than it saves.
    op.execute("ALTER TABLE cluster_groups ALTER blob SET STORAGE EXTERNAL")
    op.execute(_REQUIRED)
    op.execute(_EXPECTED)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(collation="C"), nullable=False)


def _bytes(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)

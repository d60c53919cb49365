"""Checksums of messages and wills. Rows of before have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    parts: set[str] = context.config.attributes["parts"]
    if "tables" in parts:
        op.add_column("messages", sa.Column("crc", sa.LargeBinary, nullable=True))
        op.add_column("sessions", sa.Column("will_crc", sa.LargeBinary, nullable=True))

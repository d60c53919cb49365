"""Alembic's environment: run the migrations on the given connection, in its transaction."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"], version_table="cluster_version"
)
context.run_migrations()

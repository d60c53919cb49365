"""A PostgreSQL server for backups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.postgres import PostgreSQL, Unavailable


@pytest.fixture(scope="session")
def backup_server() -> Iterator[PostgreSQL | str]:
    """A server, or why there is none."""
    try:
        with PostgreSQL() as found:
            found.psql("postgres", "ALTER SYSTEM SET fsync = off")
            found.psql("postgres", "SELECT pg_reload_conf()")
            yield found
    except Unavailable as error:
        yield str(error)


@pytest.fixture
def server(backup_server: PostgreSQL | str) -> PostgreSQL:
    if isinstance(backup_server, str):
        pytest.skip(f"no PostgreSQL: {backup_server}")
    return backup_server

"""A PostgreSQL server for backups."""

from __future__ import annotations

import pytest

from tests.fault.postgres import PostgreSQL


@pytest.fixture
def server(postgresql: PostgreSQL) -> PostgreSQL:
    return postgresql

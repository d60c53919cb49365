"""A database of PostgreSQL for each test."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.fault.postgres import PostgreSQL

_numbers: Final = itertools.count(1)


@pytest.fixture
def database_url(postgresql: PostgreSQL) -> str:
    return postgresql.database(f"one_{next(_numbers)}")

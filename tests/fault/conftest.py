"""A PostgreSQL server for the tests of a module, where there can be one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.fault.postgres import PostgreSQL, Unavailable


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(PostgreSQL())
        except Unavailable as error:
            pytest.skip(f"no PostgreSQL: {error}")
        yield server

"""Each contract test runs on SQLite and on a real PostgreSQL: a database for each test."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sessions.store import postgres_lock
from tests.fault.postgres import PostgreSQL
from tests.sessions.store.places import Place

MEMORY: Final = Path("/dev/shm")

_numbers = itertools.count(1)


@pytest.fixture
def database(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[Place]:
    """A place in PostgreSQL."""
    place = Place(tmp_path, postgresql.database(f"store_{next(_numbers)}"))
    yield place
    place.close()


@pytest.fixture
def files() -> Iterator[Place]:
    """A place in files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        place = Place(Path(directory) / "data")
        yield place
        place.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(postgres_lock, "LOCK_WAIT_S", 0.5)
    found: Place = request.getfixturevalue("files" if request.param == "sqlite" else "database")
    return found

"""Files of these tests are in memory where that can be: no machine loses its power here but in
`disks`, which knows by itself what was synced, and the disk's speed is not what is examined."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fleetmq-streams-", dir=place) as directory:
        yield Path(directory)

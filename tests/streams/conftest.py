"""Files of these tests are in memory where that can be: no machine loses its power here but in
`disks`, which knows by itself what was synced, and the disk's speed is not what is examined."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.http_api.brokers import LogBroker, Serving
from tests.streams.remotes import TOKEN
from tests.streams.replaying import Replays

MEMORY: Final = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fleetmq-streams-", dir=place) as directory:
        yield Path(directory)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Replays]:
    """A broker core with one partition of a stream."""
    world = Replays(tmp_path / "streams")
    yield world
    world.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    """What the HTTP server asks for streams."""
    broker = LogBroker(tmp_path / "data" / "streams")
    yield broker
    broker.close()


@pytest.fixture
def http(broker: LogBroker) -> Iterator[Serving]:
    """The HTTP server of `broker`; it may not have had anything to log."""
    with Serving(broker, broker.root, TOKEN) as serving:
        yield serving
    assert serving.lines == []

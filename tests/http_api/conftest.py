"""A log in memory with one stream of four partitions, and a server in front of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_api.brokers import LogBroker, Serving
from tests.streams.conftest import MEMORY


@pytest.fixture
def root() -> Iterator[Path]:
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fleetmq-http-", dir=place) as directory:
        yield Path(directory) / "streams"


@pytest.fixture
def broker(root: Path) -> Iterator[LogBroker]:
    broker = LogBroker(root)
    broker.create(4)
    yield broker
    broker.close()


@pytest.fixture
def http(broker: LogBroker) -> Iterator[Serving]:
    with Serving(broker, broker.root) as serving:
        yield serving
    assert serving.lines == []

"""A cluster on a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import pytest
from sqlalchemy import make_url

from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.schema import SECRET_BYTES, TABLES, prepare
from tests.cluster.content.cluster_world import ClusterWorld
from tests.fault.postgres import PostgreSQL

PATIENCE_S: Final = 120.0  # a busy machine may be slow
_numbers: Final = itertools.count(1)


@pytest.fixture
def database_url(postgresql: PostgreSQL) -> str:
    url = postgresql.database(f"content_{next(_numbers)}")
    prepare(url, "one", bytes(SECRET_BYTES))
    return url


@pytest.fixture
def connector(database_url: str) -> Connector:
    return Connector(make_url(database_url), "one", TABLES, answer_s=PATIENCE_S)


@pytest.fixture
def world(connector: Connector) -> Iterator[ClusterWorld]:
    world = ClusterWorld(connector)
    yield world
    world.close()

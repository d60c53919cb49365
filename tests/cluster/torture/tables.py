"""The tables of the torture: the cluster's own, and those of its toys of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Column, Double, MetaData, Table, create_engine
from sqlalchemy.pool import NullPool

from mqtt_broker.cluster.store.schema import (
    SECRET_BYTES,
    TABLES,
    make_table,
    number,
    prepare,
    truth,
    words,
)
from tests.sim.cluster import broker, hosts


def seconds(name: str) -> Column[float]:
    """Make a column of times."""
    return Column(name, Double, nullable=False)


CLUSTER: Final = "torture"
_metadata: Final = MetaData()
_COLUMNS: Final[dict[str, list[Column[Any]]]] = {
    hosts.VALUES: [number("number"), words("writer"), number("value")],
    hosts.TOTALS: [number("number"), words("writer"), number("total")],
    broker.SESSIONS: [
        words("client"),
        seconds("expiry"),
        words("will"),
        seconds("will_delay"),
        truth("is_connected"),
        seconds("expires_at"),
        seconds("will_at"),
        words("values"),
    ],
    broker.PUBLISHED: [number("number"), number("group"), number("index"), words("will")],
}
_KEYS: Final = {**broker.KEYS, **hosts.KEYS}
_TOYS: Final[dict[str, Table]] = {
    name: make_table(name, _KEYS[name], columns, _metadata) for name, columns in _COLUMNS.items()
}
ALL: Final[Mapping[str, Table]] = {**TABLES, **_TOYS}
Rows = list[dict[str, Any]]


def make_tables(url: str) -> None:
    """Prepare a database for a torture."""
    prepare(url, CLUSTER, bytes(SECRET_BYTES))
    engine = create_engine(url, poolclass=NullPool)
    _metadata.create_all(engine)
    engine.dispose()


def read_tables(url: str) -> dict[str, Rows]:
    """Read all rows in one snapshot, in the order of their keys."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        found = {
            name: [
                dict(row._mapping)
                for row in connection.execute(table.select().order_by(*table.primary_key))
            ]
            for name, table in ALL.items()
        }
    engine.dispose()
    return found

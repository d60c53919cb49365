"""The tables of the torture: the cluster's own, and those of its toys of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Column, MetaData, Table, create_engine
from sqlalchemy.pool import NullPool

from mqtt_broker.cluster.store.schema import (
    SECRET_BYTES,
    TABLES,
    make_table,
    number,
    prepare,
    words,
)
from tests.sim.cluster import hosts

CLUSTER: Final = "torture"
_metadata: Final = MetaData()
_COLUMNS: Final[dict[str, list[Column[Any]]]] = {
    hosts.VALUES: [number("number"), words("writer"), number("value")],
    hosts.TOTALS: [number("number"), words("writer"), number("total")],
}
_LISTS: Final[dict[str, Table]] = {
    name: make_table(name, hosts.KEYS[name], columns, _metadata)
    for name, columns in _COLUMNS.items()
}
ALL: Final[Mapping[str, Table]] = {**TABLES, **_LISTS}


def make_tables(url: str) -> None:
    """Prepare a database for a torture."""
    prepare(url, CLUSTER, bytes(SECRET_BYTES))
    engine = create_engine(url, poolclass=NullPool)
    _metadata.create_all(engine)

"""Every statement of the rules finds its rows by an index, whatever the planner believes."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import pytest
from sqlalchemy import make_url

from mqtt_broker.cluster.store.schema import prepare
from tests.cluster.store.loop import SECRET
from tests.cluster.store.plans import Plans, statements
from tests.fault.postgres import PostgreSQL

FILL: Final = """
INSERT INTO cluster_owners SELECT i::text, decode(md5(i::text), 'hex'), i % 20, i, i % 100 = 0
FROM generate_series(1, 20000) AS i;
INSERT INTO cluster_filters SELECT i % 20, i::text, decode(md5(i::text), 'hex'), i % 4, i / 100
FROM generate_series(1, 20000) AS i;
INSERT INTO cluster_outbox SELECT i % 20, i / 20 % 20, i, i, 'e', 1, 1, ''
FROM generate_series(1, 20000) AS i;
INSERT INTO cluster_groups SELECT i % 20, i, '' FROM generate_series(1, 2000) AS i;
"""
ANALYZE: Final = f"{FILL} ANALYZE;"
SCANS: Final = ("Seq Scan", "Hash Join", "Merge Join", "Parallel")


@pytest.mark.parametrize("content", ["SELECT 1", FILL, ANALYZE], ids=["empty", "full", "analyzed"])
def test_rows_are_found_by_an_index(
    postgresql: PostgreSQL, database_url: str, content: str
) -> None:
    prepare(database_url, "one", SECRET)
    postgresql.psql(str(make_url(database_url).database), content)
    scanned = []
    with closing(Plans(database_url)) as plans:
        for clients in (["1"], [f"{at}" for at in range(1_000)]):
            for name, statement in statements(1, clients):
                for is_generic in (True, False):
                    lines = plans.of(statement, is_generic=is_generic)
                    if any(scan in line for line in lines for scan in SCANS):
                        scanned.append("\n".join([name, *lines]))
    assert not scanned, "\n".join(scanned)

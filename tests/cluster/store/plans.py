"""How PostgreSQL executes the statements of the rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy.engine import make_url

from mqtt_broker.cluster.digest import COLUMNS
from mqtt_broker.cluster.inbox import Inbox
from mqtt_broker.cluster.node_row import NodeRow, new_row
from mqtt_broker.cluster.node_transactions import (
    Writes,
    confirm,
    create_number,
    read_nodes,
    take_number,
    want_number,
)
from mqtt_broker.cluster.outbox import Parcel, write_parcels
from mqtt_broker.cluster.own_filters import OwnFilters
from mqtt_broker.cluster.owner_transactions import OwnerWrites
from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    EndBackends,
    Expect,
    LockTimeout,
    Select,
    SelectNewer,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.queries import Queries
from mqtt_broker.cluster.store.schema import TABLES
from mqtt_broker.cluster.tables import FILTERS, GROUPS, OUTBOX, OWNERS, PLACES, VERSIONS

_KINDS: Final = {
    16: b"boolean", 17: b"bytea", 20: b"bigint", 25: b"text", 1001: b"bytea[]", 1009: b"text[]",
    1000: b"boolean[]", 1016: b"bigint[]",
}  # fmt: skip
_WITHOUT_PLAN: Final = (Clock, Commit, EndBackends, LockTimeout)


def statements(number: int, clients: list[str]) -> Iterator[tuple[str, Statement]]:
    """Yield what the transactions of a number execute, each with the name of its transaction."""
    owners = OwnerWrites(number, "e", 0)
    asks = [{"client": clients[0], "number": 2, "tenure": 0}]
    mine = Select(OWNERS, {"number": number})
    lane = Parcel(number, 2, 1, 0, [b"message"])
    received = Inbox(number).write([Parcel(2, number, 1, 0, [b"message"])])
    writes = Writes(number, "e", 0)
    filters = OwnFilters(number, "e")
    filters.set("a/+/#", 1)
    also = [Expect(VERSIONS, COLUMNS, []), *received, *filters.write(1), *write_parcels([lane])]
    transactions: dict[str, Transaction[Any]] = {
        "read_nodes": read_nodes(),
        "create_number": create_number(number, "e"),
        "take_number": take_number(NodeRow(new_row(number, "e")), "f"),
        "confirm": confirm(number, "e", 0),
        "want_number": want_number(number, "e"),
        "claim": owners.claim(clients, clients, [mine], asks),
        "release": owners.release(clients, clients),
        "read_asks": owners.read_asks(),
        "delete_asks": owners.delete_asks(clients),
        "commit_group": writes.commit_group(1, b"blob", also),
        "fold": writes.fold(1, []),
    }
    for name, transaction in transactions.items():
        for statement in next(transaction):
            yield name, statement
    yield "load", Select(OUTBOX, {"sender": number}, columns=("receiver", "last"))
    yield "load", Select(PLACES, {"sender": number})
    yield "load", Select(PLACES, {"receiver": number})
    yield "load", Select(FILTERS, {"number": number})
    yield "load", Select(GROUPS, {"number": number}, above=("group", 0))
    yield "learn", SelectNewer(FILTERS, "group", dict.fromkeys(range(1, 20), 1_000))
    yield "poll", Select(OUTBOX, {"receiver": number, "sender": 2}, limit=100)


class Plans:
    """Asks one PostgreSQL for plans, with the settings of a node's connection."""

    def __init__(self, url: str) -> None:
        self._connection = Connector(make_url(url), "one", TABLES).connect("plans")
        self._pgconn = self._connection.pgconn
        self._pgconn.exit_pipeline_mode()
        self._queries = Queries(TABLES)

    def of(self, statement: Statement, *, is_generic: bool) -> list[str]:
        """Return the lines of a plan: for any values, or for these. Nothing is executed."""
        if isinstance(statement, _WITHOUT_PLAN):
            return []
        query, values = self._queries.find(statement)
        if not is_generic:
            encoded = query.encode(values)
            return self._lines(b"EXPLAIN " + query.sql, encoded, query.oids)
        kinds = b", ".join(_KINDS[oid] for oid in query.oids)
        nulls = b", ".join([b"NULL"] * len(query.oids))
        self._lines(b"SET plan_cache_mode = force_generic_plan")
        self._lines(b"PREPARE one (%b) AS %b" % (kinds or b"int", query.sql))
        lines = self._lines(b"EXPLAIN EXECUTE one (%b)" % (nulls or b"NULL"))
        self._lines(b"DEALLOCATE one")
        return lines

    def _lines(self, sql: bytes, *values: list[Any]) -> list[str]:
        encoded, oids = values or ([], [])
        self._pgconn.send_query_params(sql, encoded, oids, [1] * len(encoded), 0)
        lines: list[str] = []
        while (result := self._pgconn.get_result()) is not None:
            assert not result.error_message, (sql, result.error_message)
            lines += ((result.get_value(at, 0) or b"").decode() for at in range(result.ntuples))
        return lines

    def close(self) -> None:
        self._connection.close()

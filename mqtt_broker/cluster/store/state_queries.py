"""SQL on the tables of sessions and messages, which all numbers of a cluster share.

The tables are those of a single broker (`sessions.store.schema`), so what docs/SQL.md says of them
is true of a cluster, too. The rows of a session belong to the number that owns its client, and
those of a shared subscription or of a retained message to the number in their upper bits. No
message has references from rows of two numbers, so no row is ever written by two.

A fold is one batch of these statements. Each takes lists, of which the database makes rows, so its
text is always the same. References are counted in the statement that deletes what refers: nothing
has to come back before the next statement is sent.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.store.queries import (
    ARRAYS,
    BYTES,
    DIGESTS,
    FLOAT,
    NUMBER,
    TEXT,
    TRUTH,
    Codec,
    Query,
)
from sessions.store import schema
from sessions.store.checksums import SIZE as CRC_BYTES

_Columns = list[tuple[str, Codec]]

# Of the messages that `gone` counts: delete those that nothing else refers to.
_LET_GO: Final = """
counted AS (SELECT mid, count(*) AS times FROM gone GROUP BY mid),
dead AS (
    DELETE FROM messages m USING counted c WHERE m.mid = c.mid AND m.refs <= c.times
)
UPDATE messages m SET refs = m.refs - c.times
FROM counted c WHERE m.mid = c.mid AND m.refs > c.times
"""
_REFER: Final = """
UPDATE messages m SET refs = m.refs + k.step
FROM unnest($1, $2, $3) AS k(first, last, step) WHERE m.mid BETWEEN k.first AND k.last
"""
_DROP_DELIVERIES: Final = f"""
WITH gone AS (
    DELETE FROM deliveries d USING unnest($1, $2, $3) AS k(sid, first, last)
    WHERE d.sid = k.sid AND d.n BETWEEN k.first AND k.last RETURNING d.mid
), {_LET_GO}
"""
_END_DELIVERIES: Final = f"""
WITH gone AS (DELETE FROM deliveries WHERE sid = ANY($1) RETURNING mid), {_LET_GO}
"""
_UNRETAIN: Final = f"""
WITH gone AS (DELETE FROM retained WHERE mid = ANY($1) RETURNING mid), {_LET_GO}
"""
# Messages of a record differ in payload only: payloads and checksums stand one behind the other.
_STORE: Final = f"""
INSERT INTO messages (mid, topic, qos, retain, section, payload, publisher, received_at,
                      expiry_interval, refs, crc)
SELECT r.mid + i, r.topic, r.qos, r.retain, r.section,
       substr(r.payloads, (i * r.size + 1)::int, r.size::int), r.publisher, r.received_at,
       r.expiry_interval, r.refs, substr(r.crcs, (i * {CRC_BYTES} + 1)::int, {CRC_BYTES})
FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    AS r(mid, count, topic, qos, retain, section, payloads, size, publisher, received_at,
         expiry_interval, refs, crcs)
CROSS JOIN LATERAL generate_series(0, r.count - 1) AS i
"""
_DELIVER: Final = """
INSERT INTO deliveries (sid, n, mid, qos, retain, subscription_ids, share, packet_id, size)
SELECT r.sid, r.n + i, r.mid + i, r.qos, r.retain, r.subscription_ids, r.share, r.packet_id, r.size
FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    AS r(sid, n, mid, count, qos, retain, subscription_ids, share, packet_id, size)
CROSS JOIN LATERAL generate_series(0, r.count - 1) AS i
"""
_NUMBER_SENT: Final = """
UPDATE deliveries d SET packet_id = k.packet_id
FROM unnest($1, $2, $3) AS k(sid, n, packet_id) WHERE d.sid = k.sid AND d.n = k.n
"""
_CLOSE: Final = """
DELETE FROM {table} t USING unnest($1, $2) AS k(sid, packet_id)
WHERE t.sid = k.sid AND t.packet_id = k.packet_id
"""
_OPEN: Final = """
INSERT INTO {table} (sid, packet_id, place) SELECT * FROM unnest($1, $2, $3)
ON CONFLICT (sid, packet_id) DO UPDATE SET place = excluded.place
"""
_UNSUBSCRIBE: Final = """
DELETE FROM subscriptions s USING unnest($1, $2) AS k(sid, digest)
WHERE s.sid = k.sid AND s.filter_digest = k.digest
"""
# A message that others refer to as well is copied for the session, and its deliveries are moved.
_LEAVE: Final = """
WITH shared AS (
    SELECT d.sid, d.mid, count(*) AS times,
           k.base + row_number() OVER (PARTITION BY d.sid ORDER BY d.mid) AS own
    FROM unnest($1, $2) AS k(sid, base)
    JOIN deliveries d ON d.sid = k.sid JOIN messages m ON m.mid = d.mid
    GROUP BY d.sid, d.mid, k.base, m.refs HAVING m.refs > count(*)
), copied AS (
    INSERT INTO messages (mid, topic, qos, retain, section, payload, publisher, received_at,
                          expiry_interval, refs, crc)
    SELECT s.own, m.topic, m.qos, m.retain, m.section, m.payload, m.publisher, m.received_at,
           m.expiry_interval, s.times, m.crc
    FROM shared s JOIN messages m ON m.mid = s.mid
), moved AS (
    UPDATE deliveries d SET mid = s.own FROM shared s WHERE d.sid = s.sid AND d.mid = s.mid
), counted AS (SELECT mid, sum(times) AS times FROM shared GROUP BY mid),
dead AS (
    DELETE FROM messages m USING counted c WHERE m.mid = c.mid AND m.refs <= c.times
)
UPDATE messages m SET refs = m.refs - c.times
FROM counted c WHERE m.mid = c.mid AND m.refs > c.times
"""

# The sessions of the clients that a number owns: all, or some of them.
_OWNED: Final = """
SELECT s.sid FROM cluster_owners o JOIN sessions s ON s.client_id = o.client COLLATE "default"
WHERE o.number = $1 AND NOT o.is_offered
"""
_SOME: Final = f"{_OWNED} AND o.client_digest = ANY($2)"
_SHARES: Final = "SELECT sid FROM shares WHERE sid >= $2 AND sid < $3"
_ALL: Final = f"{_OWNED} UNION ALL {_SHARES}"
_LENT: Final = "d.share <> '' AND NOT EXISTS (SELECT 1 FROM shares h WHERE h.sid = d.sid)"
_MESSAGE: Final = (
    "m.mid, m.topic, m.qos::bigint, m.retain, m.section, m.payload, m.publisher, m.received_at, "
    "m.expiry_interval, m.crc"
)
_DELIVERY: Final = (
    "d.sid, d.n, d.mid, d.qos::bigint, d.retain, d.subscription_ids, d.share, "
    "d.packet_id::bigint, d.size"
)
_BOTH: Final = f"SELECT {_DELIVERY}, {_MESSAGE} FROM deliveries d JOIN messages m ON m.mid = d.mid"
_MESSAGE_COLUMNS: Final[_Columns] = [
    ("mid", NUMBER), ("topic", TEXT), ("qos", NUMBER), ("retain", TRUTH), ("section", BYTES),
    ("payload", BYTES), ("publisher", TEXT), ("received_at", FLOAT), ("expiry_interval", NUMBER),
    ("crc", BYTES),
]  # fmt: skip
_DELIVERY_COLUMNS: Final[_Columns] = [
    ("sid", NUMBER), ("n", NUMBER), ("mid", NUMBER), ("qos", NUMBER), ("retain", TRUTH),
    ("subscription_ids", TEXT), ("share", TEXT), ("packet_id", NUMBER), ("size", NUMBER),
]  # fmt: skip
_BOTH_COLUMNS: Final = _DELIVERY_COLUMNS + [(f"m_{name}", kind) for name, kind in _MESSAGE_COLUMNS]
_SESSION_COLUMNS: Final[_Columns] = [
    ("sid", NUMBER), ("client_id", TEXT), ("username", TEXT), ("version", NUMBER),
    ("created_at", FLOAT), ("expiry_interval", NUMBER), ("is_online", TRUTH),
    ("expires_at", FLOAT), ("will_at", FLOAT), ("will_topic", TEXT), ("will_payload", BYTES),
    ("will_qos", NUMBER), ("will_retain", TRUTH), ("will_section", BYTES), ("will_crc", BYTES),
]  # fmt: skip
_SUBSCRIPTION_COLUMNS: Final[_Columns] = [
    ("sid", NUMBER), ("filter", TEXT), ("qos", NUMBER), ("no_local", TRUTH),
    ("retain_as_published", TRUTH), ("retain_handling", NUMBER), ("identifier", NUMBER),
]  # fmt: skip
_PAGE: Final = f"""
SELECT {_DELIVERY}, {_MESSAGE} FROM (
    SELECT *, sum(size) OVER (ORDER BY n) - size AS before FROM (
        SELECT * FROM deliveries d WHERE sid = $1 AND n > $2 AND packet_id = 0 AND NOT ({_LENT})
        ORDER BY n LIMIT $3
    ) AS d
) AS d JOIN messages m ON m.mid = d.mid WHERE d.before < $4 ORDER BY d.n
"""


def _selected(columns: _Columns, prefix: str) -> str:
    """List columns; the small numbers of the tables as the large ones that are decoded."""
    return ", ".join(
        f"{prefix}.{name}::bigint" if kind is NUMBER else f"{prefix}.{name}"
        for name, kind in columns
    )


def _write(table: str, columns: _Columns, key: tuple[str, ...]) -> tuple[str, _Columns]:
    """Insert rows, or replace those that exist."""
    names = [name for name, _ in columns]
    values = ", ".join(f"${place}" for place in range(1, len(names) + 1))
    others = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    sql = f"INSERT INTO {table} ({', '.join(names)}) SELECT * FROM unnest({values})"
    if key:
        sql += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {others}"
    return sql, columns


def _lists(*columns: tuple[str, type]) -> _Columns:
    return [(name, ARRAYS[kind]) for name, kind in columns]


_KIND: Final = {NUMBER: int, TEXT: str, BYTES: bytes, TRUTH: bool, FLOAT: float}


def _writes(table: str, columns: _Columns, key: tuple[str, ...]) -> Query:
    sql, found = _write(table, columns, key)
    return Query(sql.encode(), [(name, ARRAYS[_KIND[kind]]) for name, kind in found], [])


def _does(sql: str, *columns: tuple[str, type]) -> Query:
    return Query(sql.encode(), _lists(*columns), [])


_RANGE: Final[_Columns] = [("number", NUMBER), ("first", NUMBER), ("end", NUMBER)]
_CLIENTS: Final[_Columns] = [("number", NUMBER), ("clients", DIGESTS)]


def _loads(scope: str, parameters: _Columns, suffix: str) -> dict[str, Query]:
    """Return the queries that load the sessions of a scope."""

    def query(sql: str, columns: _Columns) -> Query:
        # Every parameter is used, so that its type is known.
        used = " AND ".join(f"${place} IS NOT NULL" for place in range(1, len(parameters) + 1))
        return Query(
            f"WITH scope AS ({scope}) {sql.format(used=used)}".encode(), parameters, columns
        )

    ids: _Columns = [("sid", NUMBER), ("packet_id", NUMBER), ("place", NUMBER)]
    where = "WHERE sid IN (SELECT sid FROM scope) AND {used}"
    delivered = "WHERE d.sid IN (SELECT sid FROM scope) AND {used}"
    found = {
        "sessions": query(
            f"SELECT {_selected(_SESSION_COLUMNS, 's')} FROM sessions s {where} ORDER BY sid",
            _SESSION_COLUMNS,
        ),
        "subscriptions": query(
            f"SELECT {_selected(_SUBSCRIPTION_COLUMNS, 's')} FROM subscriptions s {where} "
            "ORDER BY sid",
            _SUBSCRIPTION_COLUMNS,
        ),
        "windows": query(
            f"{_BOTH} {delivered} AND d.packet_id <> 0 ORDER BY d.sid, d.n", _BOTH_COLUMNS
        ),
        "lent": query(
            f"{_BOTH} {delivered} AND d.packet_id = 0 AND {_LENT} ORDER BY d.sid, d.n",
            _BOTH_COLUMNS,
        ),
        "backlogs": query(
            f"SELECT sid, count(*), sum(size)::bigint, min(n), max(n) FROM deliveries d {where} "
            f"AND packet_id = 0 AND NOT ({_LENT}) GROUP BY sid ORDER BY sid",
            [("sid", NUMBER), ("messages", NUMBER), ("bytes", NUMBER), ("n_first", NUMBER),
             ("n_last", NUMBER)],
        ),
    }  # fmt: skip
    for table in ("releases", "received"):
        found[table] = query(
            f"SELECT {_selected(ids, table)} FROM {table} {where} ORDER BY sid, place", ids
        )
    return {f"{name}{suffix}": one for name, one in found.items()}


_SID: Final = ("sid", int)
QUERIES: Final[dict[str, Query]] = {
    "refer": _does(_REFER, ("first", int), ("last", int), ("step", int)),
    "drop_deliveries": _does(_DROP_DELIVERIES, _SID, ("first", int), ("last", int)),
    "end_deliveries": _does(_END_DELIVERIES, _SID),
    "unretain": _does(_UNRETAIN, ("mid", int)),
    **{
        f"end_{table}": _does(f"DELETE FROM {table} WHERE sid = ANY($1)", _SID)
        for table in ("sessions", "shares", "subscriptions", "releases", "received")
    },
    "store": _does(
        _STORE, ("mid", int), ("count", int), ("topic", str), ("qos", int), ("retain", bool),
        ("section", bytes), ("payloads", bytes), ("size", int), ("publisher", str),
        ("received_at", float), ("expiry_interval", int), ("refs", int), ("crcs", bytes),
    ),
    "deliver": _does(
        _DELIVER, _SID, ("n", int), ("mid", int), ("count", int), ("qos", int), ("retain", bool),
        ("subscription_ids", str), ("share", str), ("packet_id", int), ("size", int),
    ),
    "number_sent": _does(_NUMBER_SENT, _SID, ("n", int), ("packet_id", int)),
    **{
        f"close_{table}": _does(_CLOSE.format(table=table), _SID, ("packet_id", int))
        for table in ("releases", "received")
    },
    **{
        f"open_{table}": _does(
            _OPEN.format(table=table), _SID, ("packet_id", int), ("place", int)
        )
        for table in ("releases", "received")
    },
    "unsubscribe": _does(_UNSUBSCRIBE, _SID, ("filter_digest", bytes)),
    "write_subscriptions": _writes(
        "subscriptions",
        [("sid", NUMBER), ("filter_digest", BYTES), *_SUBSCRIPTION_COLUMNS[1:]],
        ("sid", "filter_digest"),
    ),
    "write_sessions": _writes("sessions", _SESSION_COLUMNS, ("sid",)),
    "write_shares": _writes("shares", [("sid", NUMBER), ("filter", TEXT)], ("sid",)),
    "retain": _writes("retained", [("mid", NUMBER)], ()),
    "leave": _does(_LEAVE, _SID, ("base", int)),
    **_loads(_ALL, _RANGE, ""),
    **_loads(_SOME, _CLIENTS, "_of"),
    "shares": Query(
        b"SELECT sid, filter FROM shares WHERE sid >= $2 AND sid < $3 AND $1 IS NOT NULL "
        b"ORDER BY sid",
        _RANGE,
        [("sid", NUMBER), ("filter", TEXT)],
    ),
    "retained": Query(
        f"SELECT {_MESSAGE} FROM retained r JOIN messages m ON m.mid = r.mid "
        "WHERE r.mid >= $2 AND r.mid < $3 AND $1 IS NOT NULL ORDER BY r.mid".encode(),
        _RANGE,
        _MESSAGE_COLUMNS,
    ),
    "newest": Query(
        b"SELECT coalesce((SELECT max(mid) FROM messages WHERE mid >= $2 AND mid < $3), 0), "
        b"greatest((SELECT max(sid) FROM sessions WHERE sid >= $2 AND sid < $3), "
        b"(SELECT max(sid) FROM shares WHERE sid >= $2 AND sid < $3), 0) WHERE $1 IS NOT NULL",
        _RANGE,
        [("mid", NUMBER), ("sid", NUMBER)],
    ),
    "places": Query(
        f"WITH scope AS ({_ALL}) SELECT greatest("
        "(SELECT max(place) FROM releases WHERE sid IN (SELECT sid FROM scope)), "
        "(SELECT max(place) FROM received WHERE sid IN (SELECT sid FROM scope)), 0)".encode(),
        _RANGE,
        [("place", NUMBER)],
    ),
    "page": Query(
        _PAGE.encode(),
        [("sid", NUMBER), ("after", NUMBER), ("messages_max", NUMBER), ("bytes_max", NUMBER)],
        _BOTH_COLUMNS,
    ),
}  # fmt: skip

assert [name for name, _ in _SESSION_COLUMNS] == list(schema.names(schema.sessions))

"""The first views; docs/SQL.md describes them."""

from __future__ import annotations

from typing import Final

# {time:x} is a column of seconds as a time, or NULL if it is 0 or infinite; {length:x} the length
# of a payload; {now} the current time in seconds.
_VIEWS: Final = (
    """
CREATE VIEW v_clients AS
SELECT s.client_id, s.username, s.version AS protocol_version, s.is_online,
       {time:s.created_at} AS created_at,
       (SELECT count(*) FROM subscriptions u WHERE u.sid = s.sid) AS subscriptions,
       (SELECT count(*) FROM deliveries d WHERE d.sid = s.sid AND d.packet_id = 0) AS queued,
       (SELECT count(*) FROM deliveries d WHERE d.sid = s.sid AND d.packet_id <> 0) AS inflight
FROM sessions s
""",
    """
CREATE VIEW v_sessions AS
SELECT s.sid, s.client_id, s.is_online, s.expiry_interval,
       {time:s.created_at} AS created_at,
       {time:s.expires_at} AS expires_at,
       CASE WHEN s.is_online THEN NULL
            WHEN s.expires_at > 1e300 THEN NULL
            ELSE s.expires_at - {now} END AS expires_in_s,
       s.will_topic, {time:s.will_at} AS will_at
FROM sessions s
""",
    """
CREATE VIEW v_subscriptions AS
SELECT s.client_id, u.filter, u.qos, u.no_local, u.retain_as_published, u.retain_handling,
       CASE WHEN u.identifier = 0 THEN NULL ELSE u.identifier END AS identifier,
       u.filter LIKE '$share/{any}' AS is_shared
FROM subscriptions u JOIN sessions s ON s.sid = u.sid
""",
    """
CREATE VIEW v_queues AS
SELECT d.sid, s.client_id, h.filter AS share,
       count(*) AS messages, sum(d.size) AS bytes,
       {time:min(m.received_at)} AS oldest_at, {time:max(m.received_at)} AS newest_at,
       {now} - min(m.received_at) AS oldest_age_s
FROM deliveries d
JOIN messages m ON m.mid = d.mid
LEFT JOIN sessions s ON s.sid = d.sid
LEFT JOIN shares h ON h.sid = d.sid
WHERE d.packet_id = 0
GROUP BY d.sid, s.client_id, h.filter
""",
    """
CREATE VIEW v_inflight AS
SELECT s.client_id, d.packet_id, d.qos, 'PUBLISH' AS waits_after, m.topic,
       {length:m.payload} AS payload_bytes, m.publisher, {time:m.received_at} AS received_at,
       {now} - m.received_at AS age_s
FROM deliveries d
JOIN messages m ON m.mid = d.mid
JOIN sessions s ON s.sid = d.sid
WHERE d.packet_id <> 0
UNION ALL
SELECT s.client_id, r.packet_id, 2, 'PUBREL', NULL, NULL, NULL, NULL, NULL
FROM releases r JOIN sessions s ON s.sid = r.sid
""",
    """
CREATE VIEW v_retained AS
SELECT m.topic, m.qos, {length:m.payload} AS payload_bytes, m.payload, m.publisher,
       {time:m.received_at} AS received_at,
       CASE WHEN m.expiry_interval < 0 THEN NULL
            ELSE m.received_at + m.expiry_interval - {now} END AS expires_in_s
FROM retained r JOIN messages m ON m.mid = r.mid
""",
)


class _Sqlite:
    now: Final = "(julianday('now') - 2440587.5) * 86400.0"

    @staticmethod
    def time(column: str) -> str:
        return (
            f"CASE WHEN {column} > 0 AND {column} < 1e11 THEN datetime({column}, 'unixepoch') END"
        )


class _Postgres:
    now: Final = "extract(epoch FROM now())::float8"

    @staticmethod
    def time(column: str) -> str:
        return f"CASE WHEN {column} > 0 AND {column} < 1e11 THEN to_timestamp({column}) END"


class _Field:
    """Formats {time:...} and {length:...} of a template."""

    def __init__(self, form: str, dialect: type[_Sqlite | _Postgres]) -> None:
        self.form = form
        self.dialect = dialect

    def __format__(self, column: str) -> str:
        return self.dialect.time(column) if self.form == "time" else f"length({column})"


def views(*, is_sqlite: bool) -> list[str]:
    dialect: type[_Sqlite | _Postgres] = _Sqlite if is_sqlite else _Postgres
    fields = {name: _Field(name, dialect) for name in ("time", "length")}
    return [view.format(now=dialect.now, any="%", **fields) for view in _VIEWS]

"""The views of streams; docs/SQL.md describes them."""

from __future__ import annotations

from typing import Final

_VIEWS: Final = (
    """
CREATE VIEW v_streams AS
SELECT s.name, s.filter, s.epoch, {created_at} AS created_at, s.settings,
       (SELECT count(DISTINCT o.owner_digest) FROM stream_offsets o
        WHERE o.stream = s.name AND o.epoch = s.epoch) AS readers
FROM streams s
""",
    """
CREATE VIEW v_stream_offsets AS
SELECT o.owner, o.stream, o.partition, o.next_offset, o.epoch,
       EXISTS (SELECT 1 FROM streams s WHERE s.name = o.stream AND s.epoch = o.epoch) AS is_valid
FROM stream_offsets o
""",
)


def views(*, is_sqlite: bool) -> list[str]:
    created_at = (
        "datetime(s.created_at, 'unixepoch')" if is_sqlite else "to_timestamp(s.created_at)"
    )
    return [view.format(created_at=created_at) for view in _VIEWS]

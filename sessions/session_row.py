"""A session as the row that the journal and the tables have of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtt_broker.codec.packets import Will
from sessions.journal.rows import SessionRow, WillRow

if TYPE_CHECKING:
    from sessions.session import Session


def row_of(session: Session, sid: int) -> SessionRow:
    """The session as it is now."""
    is_online = session.is_online
    return SessionRow(
        sid,
        session.client_id,
        session.username,
        session.version,
        session.created_at,
        session.expiry_interval,
        is_online,
        0.0 if is_online else session.expires_at,
        0.0 if is_online else session.will_at,
        _will_row(session.will),
    )


def _will_row(will: Will | None) -> WillRow | None:
    if will is None:
        return None
    return WillRow(will.topic, will.payload, will.qos, will.retain, will.section)


def returned(row: SessionRow, expiry_interval: int, will: Will | None) -> SessionRow:
    """The row of a session whose client comes back with these."""
    row.is_online = True
    row.expires_at = row.will_at = 0.0
    row.expiry_interval = expiry_interval
    row.will = _will_row(will)
    return row

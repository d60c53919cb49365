"""Lock a PostgreSQL database for one broker, on the writer's own connection.

The lock belongs to the connection, so a broker that can commit to the journal holds it. If the
server does not notice that a connection was lost, the lock would be held for minutes: a broker that
reconnects therefore terminates its old connection.
"""

from __future__ import annotations

import contextlib
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from sessions.store.database import StoreError, execute

LOCK_WAIT_S: Final = 3.0
# The lock has two numbers: ours and the schema's, since a database may have several schemas.
_LOCK: Final = 0x464D5154
_NAMED: Final = f"{_LOCK}, hashtext(current_schema())"
_HOLDER: Final = f"""
SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'this machine')
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = {_LOCK}
  AND l.objid = hashtext(current_schema())::oid
"""


def take_lock(connection: Connection, application_name: str, wait_s: float = 0.0) -> None:
    """Take the lock. Raises StoreError if another broker has it.

    At the start, `wait_s` gives the server time to notice that a broker was killed.
    """
    with connection.begin():
        if execute(connection, f"SELECT pg_try_advisory_lock({_NAMED})").scalar():
            return
        holder = execute(connection, _HOLDER).first()
        if holder is not None and holder[1] == application_name:
            execute(connection, "SELECT pg_terminate_backend(?)", (holder[0],))
            raise StoreError("waiting for the server to end a lost connection of this broker")
    if wait_s:
        with contextlib.suppress(OperationalError), connection.begin():
            execute(connection, f"SET LOCAL lock_timeout = {round(wait_s * 1000)}")
            execute(connection, f"SELECT pg_advisory_lock({_NAMED})")
            return
    whose = "" if holder is None else f" (server process {holder[0]}, from {holder[2]})"
    raise StoreError(f"another broker uses this database{whose}")

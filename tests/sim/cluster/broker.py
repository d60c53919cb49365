"""A toy of a broker for one number: sessions, wills and their times, and a journal of records.

What a session has is a list of values that its client appended. A will is published by a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from mqtt_broker.cluster import tables
from mqtt_broker.cluster.claims import Bus, Claims
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    Delete,
    Put,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import GROUPS, OWNERS
from tests.sim.cluster.oracles import check

SESSIONS: Final = "sessions"
PUBLISHED: Final = "published"  # wills
KEYS: Final = {
    **tables.KEYS,
    SESSIONS: ("client",),
    PUBLISHED: ("number", "group", "index"),
}
TAKEN_OVER: Final = 0x8E
UNAVAILABLE: Final = 0x88
CONNECT_WAIT_S: Final = 5.0
UNPACKED: Final = 1 << 60  # the group of a record that is in none yet


@dataclass(slots=True)
class Session:
    """A session, as the tables and the records have it. Times are of the database's clock."""

    client: str
    expiry: float
    will: str = ""
    will_delay: float = 0.0
    is_connected: bool = True
    expires_at: float = 0.0
    will_at: float = 0.0
    values: list[int] = field(default_factory=list)

    def row(self) -> Row:
        row = {name: getattr(self, name) for name in self.__slots__}
        return row | {"values": json.dumps(self.values)}


class Connection(Protocol):
    """A client's connection, as the broker sees it."""

    client: str
    clean: bool
    expiry: float
    will: str
    will_delay: float

    def accept(self, present: bool, values: list[int]) -> None:
        """Send CONNACK, and what the session has."""

    def close(self, reason: int) -> None:
        """End the connection, with a reason code."""

    def on_over(self, *, is_normal: bool) -> None:
        """Note that its end is committed."""


class Surroundings(Protocol):
    """What a broker has around it."""

    def clock(self) -> float: ...

    def wake(self, number: int) -> None: ...


Record = list[Any]  # its kind, a client, and a value


class Broker:
    """The content of one number."""

    def __init__(self, number: int, process: Surroundings, bus: Bus) -> None:
        self.number = number
        self._process = process
        self.claims = Claims(number, self, bus)
        self.errands = self.claims
        self.is_served = False
        self.sessions: dict[str, Session] = {}
        self.online: dict[str, Connection] = {}
        self._waiting: dict[str, Connection] = {}
        self._folded: dict[str, Session] = {}  # as the tables have them
        self._gathered: list[Record] = []
        self._groups: list[tuple[int, list[Record]]] = []  # that are not folded
        self._replies: list[tuple[int, Callable[[], None]]] = []
        self._committed = 0
        self._time_offset_s = 0.0

    # The journal.

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        return None

    def load(self, row: NodeRow) -> Transaction[None]:
        where = {"number": self.number}
        owners, groups, clock = yield [
            Select(OWNERS, where),
            Select(GROUPS, where, above=("group", row.folded)),
            Clock(),
        ]
        clients = [owner["client"] for owner in owners if not owner["is_offered"]]
        found = yield [*self.select(clients), Commit()]
        self._committed = row.group
        self.claims.on_loaded(owners, self._process.clock())
        self.on_time(clock[0]["now"], self._process.clock())
        self.sessions = {one["client"]: _session(one) for one in found[0]}
        self._folded = {one["client"]: _session(one) for one in found[0]}
        self._groups = [(one["group"], json.loads(one["blob"])) for one in groups]
        for _, records in self._groups:
            for record in records:
                _apply(self.sessions, record)

    def on_loaded(self) -> None:
        self.is_served = True
        for client in list(self.claims.owned):
            if client in self.sessions and self.sessions[client].is_connected:
                self._disconnect(client)
            self._end_if_over(client)

    def on_stopped(self) -> None:
        self.is_served = False
        for connection in [*self.online.values(), *self._waiting.values()]:
            connection.close(0)
        self.online.clear()
        self._waiting.clear()
        self._replies.clear()

    def pack(self, group: int) -> bytes | None:
        if not self._gathered:
            return None
        records, self._gathered = self._gathered, []
        self._groups.append((group, records))
        self._replies = [(min(number, group), reply) for number, reply in self._replies]
        return json.dumps(records).encode()

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        return writes.commit_group(group, blob)

    def read(self, now: float) -> Transaction[object] | None:
        return None

    def on_committed(self, group: int) -> None:
        self._committed = group
        ready = [reply for number, reply in self._replies if number <= group]
        self._replies = [one for one in self._replies if one[0] > group]
        for reply in ready:
            reply()

    def fold(self, group: int) -> list[Statement]:
        folded = {
            client: replace(one, values=[*one.values]) for client, one in self._folded.items()
        }
        statements: list[Statement] = []
        changed: set[str] = set()
        for number, records in self._groups:
            for index, record in enumerate(records if number <= group else []):
                _apply(folded, record)
                changed.add(record[1])
                if record[0] == "publish":
                    key = {"number": self.number, "group": number, "index": index}
                    statements.append(Put(PUBLISHED, {**key, "will": record[2]}))
        for client in sorted(changed):
            if client in folded:
                statements.append(Put(SESSIONS, folded[client].row()))
            else:
                statements.append(Delete(SESSIONS, {"client": client}))
        return statements

    def on_folded(self, group: int) -> None:
        for number, records in self._groups:
            for record in records if number <= group else []:
                _apply(self._folded, record)
        self._groups = [one for one in self._groups if one[0] > group]

    def _record(self, kind: str, client: str, value: Any = None) -> None:
        self._gathered.append([kind, client, value])
        self._process.wake(self.number)

    def _when_committed(self, client: str, reply: Callable[[], None]) -> None:
        """Reply when what was recorded about the client is committed."""
        group = self._last_group(client)
        if group <= self._committed:
            reply()
        else:
            self._replies.append((group, reply))

    def _last_group(self, client: str) -> int:
        if any(record[1] == client for record in self._gathered):
            return UNPACKED
        groups = (n for n, records in self._groups if any(one[1] == client for one in records))
        return max(groups, default=0)

    # What `Claims` asks of the sessions.

    def select(self, clients: list[str]) -> list[Select]:
        return [Select(SESSIONS, {"client": clients})]

    def on_claimed(self, clients: list[str], found: list[Rows]) -> None:
        for row in found[0]:
            if row["client"] in clients:
                self.sessions[row["client"]] = _session(row)
                self._folded[row["client"]] = _session(row)

    def on_owned(self, client: str) -> None:
        connection = self._waiting.pop(client, None)
        if connection is not None:
            self._connect(connection)
        self._end_if_over(client)

    def on_asked(self, client: str) -> None:
        self._close(client, TAKEN_OVER)
        self._process.wake(self.number)

    def is_folded(self, client: str) -> bool:
        return self._last_group(client) == 0

    def on_released(self, client: str) -> None:
        self.sessions.pop(client, None)
        self._folded.pop(client, None)

    def on_time(self, time: float, now: float) -> None:
        self._time_offset_s = time - now

    def time(self) -> float:
        """The database's clock, as far as this process knows."""
        return self._process.clock() + self._time_offset_s

    # What clients do.

    def connect(self, connection: Connection) -> None:
        before = self._waiting.get(connection.client)
        if before is not None:
            before.close(TAKEN_OVER)
        self._waiting[connection.client] = connection
        self.claims.connect(connection.client)
        self._process.wake(self.number)

    def give_up(self, connection: Connection) -> None:
        """Let a CONNECT that waits no longer wait."""
        client = connection.client
        if self._waiting.get(client) is connection:
            del self._waiting[client]
            self.claims.give_up(client)
            self._end_if_over(client)

    def append(self, connection: Connection, value: int, reply: Callable[[], None]) -> None:
        client = connection.client
        if self.online.get(client) is not connection:
            return
        session = self.sessions[client]
        if value not in session.values:
            session.values.append(value)
            if _is_stored(session):
                self._record("append", client, value)
        self._when_committed(client, reply)

    def disconnect(self, connection: Connection, *, is_normal: bool) -> None:
        """End a connection; a normal end discards the will."""
        client = connection.client
        self.give_up(connection)
        if self.online.get(client) is not connection:
            return
        del self.online[client]
        if is_normal and self.sessions[client].will:
            self._set_session(client, will="")
        self._disconnect(client)
        self._when_committed(client, lambda: connection.on_over(is_normal=is_normal))
        self._end_if_over(client)

    def tick(self) -> None:
        """Publish the wills that are due, and end the sessions that have expired."""
        for client, session in list(self.sessions.items()):
            if client in self.claims.owned and not self.claims.is_leaving(client):
                self._look_at_times(session)
                self._end_if_over(client)

    # Sessions.

    def _connect(self, connection: Connection) -> None:
        client = connection.client
        self._close(client, TAKEN_OVER)
        if client in self.sessions:
            self._look_at_times(self.sessions[client])
        if connection.clean:
            self._end(client)
        present = client in self.sessions
        if not present:
            self.sessions[client] = Session(client, 0.0)
        self.online[client] = connection
        self._set_session(
            client,
            expiry=connection.expiry,
            will=connection.will,
            will_delay=connection.will_delay,
            is_connected=True,
            will_at=0.0,
        )
        values = [*self.sessions[client].values]
        self._when_committed(client, lambda: connection.accept(present, values))

    def _set_session(self, client: str, **changes: Any) -> None:
        before = self.sessions[client]
        after = self.sessions[client] = replace(before, **changes)
        if _is_stored(after) or client in self._folded or self._last_group(client):
            self._record("set", client, after.row())

    def _close(self, client: str, reason: int) -> None:
        connection = self.online.pop(client, None)
        if connection is not None:
            connection.close(reason)
            self._disconnect(client)
            self._when_committed(client, lambda: connection.on_over(is_normal=False))

    def _disconnect(self, client: str) -> None:
        """Let the times of a session begin whose connection is over."""
        now, session = self.time(), self.sessions[client]
        delay_s = min(session.will_delay, session.expiry)
        self._set_session(
            client, is_connected=False, expires_at=now + session.expiry, will_at=now + delay_s
        )
        self._look_at_times(self.sessions[client])

    def _look_at_times(self, session: Session) -> None:
        if session.is_connected:
            return
        if session.will and session.will_at <= self.time():
            self._publish_will(session.client)
        if session.expires_at <= self.time():
            self._end(session.client)

    def _publish_will(self, client: str) -> None:
        self._record("publish", client, self.sessions[client].will)
        self._set_session(client, will="")

    def _end(self, client: str) -> None:
        """End a session. Its will is published at the latest now [MQTT-3.1.2.5]."""
        if client not in self.sessions:
            return
        if self.sessions[client].will:
            self._publish_will(client)
        if client in self._folded or self._last_group(client):
            self._record("end", client)
        del self.sessions[client]

    def _end_if_over(self, client: str) -> None:
        if client not in self.sessions and client not in self._waiting:
            self.claims.end(client)
            self._process.wake(self.number)


def _is_stored(session: Session) -> bool:
    return session.expiry > 0 or bool(session.will)


def _session(row: Row) -> Session:
    return Session(**{**row, "values": json.loads(row["values"])})


def _apply(sessions: dict[str, Session], record: Record) -> None:
    kind, client, value = record
    if kind == "set":
        sessions[client] = _session(value)
    elif kind == "append":
        check("torn", client in sessions, f"{client} appends to no session")
        sessions[client].values.append(value)
    elif kind == "end":
        sessions.pop(client, None)

"""A broker's core as the content of a number.

The groups of its journal are those of the number. A number's state is folded into the tables before
a core is made of it, so that a core always begins with tables alone, as after a restart.

A session that moves leaves in this order: its client is disconnected; when nothing of that is left
to do, the journal records that it leaves, and the core forgets it; when that is folded, its row is
offered. Whoever claims it reads its rows, and its core goes on with them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from mqtt_broker.cluster.claims import Bus, Claims
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    Named,
    Put,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
    TransactionError,
)
from mqtt_broker.cluster.store import state_tables
from mqtt_broker.cluster.tables import CONTENTS, GROUPS, OWNERS
from mqtt_broker.codec import reasons
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.restore import items_of, restore
from sessions.journal.journal import Journal, StoredQueue
from sessions.journal.net_changes import Changes
from sessions.journal.number_range import NumberRange, range_of
from sessions.journal.records import is_continued, unseal
from sessions.journal.transaction import PendingCall

PAGE_MESSAGES: Final = 400
PAGE_BYTES: Final = 4 << 20
_PART: Final = struct.Struct("<I")


class Surroundings(Protocol):
    """The process around a hosted broker."""

    def clock(self) -> float:
        """The process's own clock, which is right about nothing but the pace of time."""

    def wake(self, number: int) -> None:
        """Ask the hosting of a number for its next transaction, soon."""

    def make_broker(self, number: int, journal: Journal, now: float) -> Broker:
        """Make an empty core."""


class _Group:
    """A group of the number that is not folded."""

    __slots__ = ("blob", "group", "journal_number")

    def __init__(self, group: int, journal_number: int, blob: bytes) -> None:
        self.group = group
        self.journal_number = journal_number  # of its last part
        self.blob = blob


class HostedBroker:
    """The content of one number. It has a core from `on_loaded` on, until `on_stopped`."""

    def __init__(self, number: int, surroundings: Surroundings, bus: Bus) -> None:
        self.number = number
        self.claims = Claims(number, self, bus)
        self.errands = self.claims
        self.is_served = False
        self._surroundings = surroundings
        self._range: NumberRange = range_of(number)
        self._core: Broker | None = None
        self._journal: Journal | None = None
        self._parts: list[bytes] = []  # of the group that is being packed
        self._packed_to = 0  # the number that the journal gave the last of them
        self._groups: deque[_Group] = deque()
        self._next_place = 1  # of packet ids in the tables
        self._place_folded = 1  # `_next_place` after the fold that is asked for
        self._has_read = False
        self._time_offset_s = 0.0
        self._now = 0.0
        self._begun: Callable[[], None] = lambda: None  # restores what was read
        # Clients, and what is known of them.
        self._admissible: set[str] = set()  # the newest CONNECT may be answered
        self._recorded: set[str] = set()  # the journal may have something that is not folded
        self._asked: dict[str, None] = {}  # to be given away when nothing is left to do
        self._over: dict[str, None] = {}  # to be looked at: nothing may be left of them
        self._settled: dict[str, int] = {}  # when the tables have this number, they have all

    @property
    def broker(self) -> Broker:
        """The core."""
        assert self._core is not None, f"number {self.number} is not loaded"
        return self._core

    @property
    def journal(self) -> Journal:
        """The core's journal."""
        assert self._journal is not None, f"number {self.number} is not loaded"
        return self._journal

    def now(self) -> float:
        """The database's clock, as far as this process knows; it never goes back."""
        self._now = max(self._now, self._surroundings.clock() + self._time_offset_s)
        return self._now

    # The journal.

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        """Fold the groups of an earlier host: a core begins with tables alone."""
        return self._fold_earlier(writes, row)

    def _fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None]:
        groups, contents, places = yield [
            Select(GROUPS, {"number": self.number}, above=("group", row.folded)),
            self._select_content(),
            Named("places", self._scope),
        ]
        place = max([1, *(one["next_place"] for one in contents), places[0]["place"] + 1])
        changes = self._changes([one["blob"] for one in groups], place)
        newest = self._newest(changes, contents)
        yield from writes.fold(row.group, [*state_tables.fold(changes), newest])

    @property
    def _scope(self) -> Row:
        return {"number": self.number, "first": self._range.first, "end": self._range.end}

    def _select_content(self) -> Select:
        return Select(CONTENTS, {"number": self.number})

    def _changes(self, blobs: list[bytes], place: int) -> Changes:
        changes = Changes(place, self._range)
        for blob in blobs:
            for part in _parts_of(blob):
                for record in unseal(part):
                    changes.apply(record)
        return changes

    def _newest(self, changes: Changes, contents: Rows) -> Put:
        """Return the row of the numbers that were assigned last, after these changes."""
        row: Row = {"number": self.number, "last_mid": changes.last_mid}
        row |= {"last_sid": changes.last_sid, "next_place": changes.place}
        for found in contents:
            row |= {name: max(row[name], found[name]) for name in row if name != "number"}
        return Put(CONTENTS, row)

    def load(self, row: NodeRow) -> Transaction[None]:
        """Read what the number has."""
        found = yield [
            Select(OWNERS, {"number": self.number}),
            self._select_content(),
            Clock(),
            *state_tables.select_number(self.number),
            Commit(),
        ]
        owners, contents, clock = found[:3]
        loaded = state_tables.Loaded(found[3:-1], self.number)
        self.on_time(clock[0]["now"], self._surroundings.clock())
        self.claims.on_loaded(owners, self._surroundings.clock())
        self._next_place = max([loaded.next_place, *(one["next_place"] for one in contents)])
        snapshot = loaded.snapshot
        journal = self._journal = Journal(
            self._submit,
            number=row.group,
            last_message=max([snapshot.last_mid, *(one["last_mid"] for one in contents)]),
            last_session=max([snapshot.last_sid, *(one["last_sid"] for one in contents)]),
            number_range=self._range,
        )
        self._packed_to = row.group
        self._core = self._surroundings.make_broker(self.number, journal, self.now())
        self._core.state.share_with(self)
        self._begun = lambda: restore(self.broker, snapshot, self.now())

    def on_loaded(self) -> None:
        """Serve clients from now on."""
        self._begun()
        self._begun = lambda: None
        self.is_served = True
        for client in self.claims.owned:
            self._look_at(client)

    def on_stopped(self) -> None:
        """Serve nobody any more: close what is open, and say nothing else."""
        self.is_served = False
        if self._core is not None:
            for client in list(self._core.links):
                client.link.abort()

    def _submit(self, number: int, blob: bytes) -> None:
        self._parts.append(blob)
        self._packed_to = number

    def pack(self, group: int) -> bytes | None:
        """Pack what was gathered; see to those that leave, which gather more."""
        self._see_to_clients()
        journal = self.journal
        if not len(journal) and not journal.is_unfinished:
            return None
        journal.flush(self.now())
        while self._parts and is_continued(self._parts[-1]):
            journal.flush(self.now())
        if not self._parts:
            return None
        assert journal.numbers.message < self._range.end, "no numbers of messages are left"
        blob = b"".join([_PART.pack(len(part)) + part for part in self._parts])
        self._parts = []
        self._groups.append(_Group(group, self._packed_to, blob))
        return blob

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        """Commit a packed group."""
        return writes.commit_group(group, blob)

    def read(self, now: float) -> Transaction[object] | None:
        """Return the transaction that reads the next page of a queue; groups come in between."""
        wanted = self.journal.pages_wanted
        self._has_read = not self._has_read and len(wanted) > 0
        return self._read_page(wanted.pop()) if self._has_read else None

    def _read_page(self, queue: StoredQueue) -> Transaction[None]:
        number = queue.session_number
        try:
            found = yield [
                state_tables.select_page(number, queue.page_after, PAGE_MESSAGES, PAGE_BYTES),
                Commit(),
            ]
        except TransactionError:
            self.journal.want_page(queue)
            raise
        if queue.session_number == number:  # else the session has ended, or has left
            page = state_tables.page_of(found[0])
            queue.on_page(items_of(self.broker, page), self.now())

    def on_committed(self, group: int) -> None:
        """Send what waited for this group."""
        for one in self._groups:
            if one.group == group:
                self.broker.on_committed(one.journal_number, self.now())

    def fold(self, group: int) -> list[Statement]:
        """Return the changes that the groups up to this one make to the tables."""
        blobs = [one.blob for one in self._groups if one.group <= group]
        changes = self._changes(blobs, self._next_place)
        self._place_folded = changes.place
        numbers = self.journal.numbers
        at_least: Row = {"last_mid": numbers.message, "last_sid": numbers.session, "next_place": 1}
        return [*state_tables.fold(changes), self._newest(changes, [at_least])]

    def on_folded(self, group: int) -> None:
        """Forget the groups up to this one."""
        self._next_place = max(self._next_place, self._place_folded)
        while self._groups and self._groups[0].group <= group:
            self.broker.on_folded(self._groups.popleft().journal_number, self.now())

    def on_turn(self) -> None:
        """Note that a turn is over: there may be something to commit, or to read."""
        if self.journal.is_waiting:
            self._surroundings.wake(self.number)

    # What `Claims` asks of the sessions.

    def select(self, clients: list[str]) -> list[Statement]:
        """Return the statements that read the sessions of clients that are claimed."""
        return state_tables.select_clients(self.number, clients)

    def on_claimed(self, clients: list[str], found: list[Rows]) -> None:
        """Hold the sessions of clients that this number owns from now on."""
        loaded = state_tables.Loaded(found, self.number)
        self._next_place = max(self._next_place, loaded.next_place)
        restore(self.broker, loaded.snapshot, self.now())

    def on_owned(self, client: str) -> None:
        """Answer the CONNECT that waits."""
        self._admissible.add(client)
        dispatch.admit_ready(self.broker.state, self.now())
        self._look_at(client)

    def on_asked(self, client: str) -> None:
        """Disconnect a client that moves to another number."""
        self._admissible.discard(client)
        clients = self.broker.clients
        if client in clients.connections:
            clients.connections[client].end(self.now(), reasons.SESSION_TAKEN_OVER)
        if client in clients.arriving:  # it waits for the store: it has to be claimed anew
            self.claims.connect(client)
        self._asked[client] = None
        self._surroundings.wake(self.number)

    def is_folded(self, client: str) -> bool:
        """Tell whether the tables have all that the journal says about a client that leaves."""
        settled = self._settled.get(client)
        return settled is not None and settled <= self.journal.folded

    def on_released(self, client: str) -> None:
        """Forget a client that this number no longer owns."""
        self._settled.pop(client, None)
        self._recorded.discard(client)
        self._admissible.discard(client)

    def on_time(self, time: float, now: float) -> None:
        """Compare the database's clock with this process's own."""
        self._time_offset_s = time - now

    # What the core says of its clients.

    def claim(self, client_id: str) -> None:
        """Claim a client for a CONNECT that has come just now."""
        self._admissible.discard(client_id)
        self.claims.connect(client_id)
        self._surroundings.wake(self.number)

    def is_claimed(self, client_id: str) -> bool:
        """Tell whether the newest CONNECT of this client may be answered."""
        return client_id in self._admissible

    def on_abandoned(self, client_id: str) -> None:
        """Note that the CONNECT waits no longer."""
        self.claims.give_up(client_id)
        self._look_at(client_id)

    def on_session_end(self, client_id: str, *, was_stored: bool) -> None:
        """Note that the client has no session any more."""
        if was_stored:
            self._recorded.add(client_id)
        self._look_at(client_id)

    def _look_at(self, client: str) -> None:
        """Look whether anything is left of a client, when this turn is over."""
        self._over[client] = None
        self._surroundings.wake(self.number)

    # Clients that leave.

    def _see_to_clients(self) -> None:
        """Give away what was asked for, and let go of clients of which nothing is left."""
        if not self.is_served:
            return
        for client in list(self._asked):
            if self._is_at_rest(client):
                del self._asked[client]
                self._give_away(client)
        over, self._over = self._over, {}
        for client in over:
            if self._is_at_rest(client) and self.broker.sessions.get(client) is None:
                if client in self.claims.owned and not self.claims.is_leaving(client):
                    if client not in self.broker.clients.arriving:
                        self.claims.end(client)
                        self._settle(client)

    def _is_at_rest(self, client: str) -> bool:
        """Tell whether the client is not connected, and its connection left nothing to do."""
        broker = self.broker
        session = broker.sessions.get(client)
        return (
            client not in broker.clients.connections
            and client not in broker.state.lifecycle.unfinished
            and (session is None or not session.outbound.has_open_deliveries)
        )

    def _give_away(self, client: str) -> None:
        session = self.broker.sessions.get(client)
        if session is not None:
            self.broker.state.lifecycle.leave(session, self.now())
            self._recorded.add(client)
        self._settle(client)

    def _settle(self, client: str) -> None:
        """Find out with which group the tables have all that was recorded until now."""
        if client not in self._recorded:
            self._settled[client] = 0
            return

        def note(now: float) -> None:
            self._settled[client] = self.journal.committed

        self.journal.wait(PendingCall(note))


def _parts_of(blob: bytes) -> list[bytes]:
    """Return the parts of a group, as the journal has packed them."""
    found: list[bytes] = []
    at = 0
    while at < len(blob):
        (size,) = _PART.unpack_from(blob, at)
        at += _PART.size
        found.append(blob[at : at + size])
        at += size
    return found

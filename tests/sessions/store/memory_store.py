"""A store without threads, files or SQL: for simulations, and as the model of the real one.

It has the calls of `sessions.store.store.Store` and does nothing by itself: `commit`, `fold` and
`answer` (or `run`, all three) say when. `crash` gives the store that a restart finds.

    store = MemoryStore()
    store.start(on_committed, on_folded, on_state)
    store.submit(1, blob, at=now)      # waits
    store.commit()                     # safe: on_committed(1)
    store = store.crash()              # what was only submitted is gone

A participant (`enlist`) is asked and told as the real store does it: when they
fail, nothing is committed and `state` says so.

What records mean is written here a second time, one by one and without runs, so that the two
can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from sessions.journal.participant import CommitParticipant
from sessions.journal.records import (
    Completed,
    Cursor,
    CursorsGone,
    Delivered,
    Done,
    Ended,
    Freed,
    Left,
    Received,
    Record,
    Released,
    Retained,
    Sent,
    Stored,
    StreamGone,
    Unsubscribed,
    is_continued,
    unseal,
)
from sessions.journal.rows import (
    BacklogRow,
    CursorRow,
    DeliveryRow,
    MessageRow,
    SessionRow,
    ShareRow,
    StreamRow,
    SubscriptionRow,
)
from sessions.journal.snapshot import Snapshot

Page = list[tuple[DeliveryRow, MessageRow]]


class Tables:
    """The tables as dictionaries."""

    def __init__(self) -> None:
        self.sessions: dict[int, SessionRow] = {}
        self.shares: dict[int, ShareRow] = {}
        self.subscriptions: dict[int, dict[str, SubscriptionRow]] = {}
        self.messages: dict[int, MessageRow] = {}
        self.references: dict[int, int] = {}
        self.deliveries: dict[int, dict[int, DeliveryRow]] = {}
        self.releases: dict[int, list[int]] = {}
        self.received: dict[int, list[int]] = {}
        self.retained: set[int] = set()
        self.streams: dict[str, StreamRow] = {}
        self.cursors: dict[tuple[str, str, int], CursorRow] = {}  # by stream, owner, partition
        self.stream_ends: dict[str, str] = {}
        self.last_number = 0
        self.last_mid = 0
        self.last_sid = 0
        self.alive_at = 0.0
        self._loose: set[int] = set()  # messages that may have lost their last reference

    def copy(self) -> Tables:
        other = Tables()
        other.sessions = dict(self.sessions)
        other.shares = dict(self.shares)
        other.subscriptions = {sid: dict(found) for sid, found in self.subscriptions.items()}
        other.messages = dict(self.messages)
        other.references = dict(self.references)
        other.deliveries = {sid: dict(found) for sid, found in self.deliveries.items()}
        other.releases = {sid: list(found) for sid, found in self.releases.items()}
        other.received = {sid: list(found) for sid, found in self.received.items()}
        other.retained = set(self.retained)
        other.streams = dict(self.streams)
        other.cursors = dict(self.cursors)
        other.stream_ends = dict(self.stream_ends)
        other.last_number = self.last_number
        other.last_mid = self.last_mid
        other.last_sid = self.last_sid
        other.alive_at = self.alive_at
        return other

    def apply_group(self, number: int, blob: bytes, at: float) -> int:
        """How many messages came and went within the group."""
        before = self.last_mid
        for record in unseal(blob):
            self._apply(record)
        cancelled = 0
        for mid in self._loose:
            if not self.references.get(mid) and self.messages.pop(mid, None) is not None:
                self.references.pop(mid, None)
                cancelled += mid > before
        self._loose.clear()
        self.last_number = number
        self.alive_at = max(self.alive_at, at)
        return cancelled

    def _apply(self, record: Record) -> None:
        match record:
            case Stored():
                self._store(record)
            case Delivered():
                self._deliver(record)
            case Done():
                for n, _, count in record.runs:
                    for one in range(n, n + count):
                        self._finish(record.sid, one)
            case Sent():
                deliveries = self.deliveries.get(record.sid, {})
                for n, packet_id in record.sent:
                    if n in deliveries:
                        deliveries[n] = replace(deliveries[n], packet_id=packet_id)
            case Released():
                for n, _, packet_id in record.released:
                    self._finish(record.sid, n)
                    _open(self.releases, record.sid, packet_id)
            case Completed():
                _close(self.releases, record.sid, record.packet_ids)
            case Received():
                for packet_id in record.packet_ids:
                    _open(self.received, record.sid, packet_id)
            case Freed():
                _close(self.received, record.sid, record.packet_ids)
            case SessionRow():
                self.sessions[record.sid] = record
                self.last_sid = max(self.last_sid, record.sid)
            case ShareRow():
                self.shares[record.sid] = record
                self.last_sid = max(self.last_sid, record.sid)
            case SubscriptionRow():
                self.subscriptions.setdefault(record.sid, {})[record.filter] = record
            case Unsubscribed():
                self.subscriptions.get(record.sid, {}).pop(record.filter, None)
            case Retained():
                self._retain(record)
            case Ended():
                self._end(record.sid)
            case Left():
                self.last_mid = max(self.last_mid, record.base + record.messages)
            case StreamRow():
                self.streams[record.name] = record
            case StreamGone():
                self.streams.pop(record.name, None)
                self._forget(lambda row: row.stream == record.name)
            case Cursor():
                for partition, offset in record.offsets:
                    self.cursors[record.stream, record.owner, partition] = CursorRow(
                        record.owner, record.stream, record.epoch, partition, offset
                    )
            case CursorsGone():
                self._forget(
                    lambda row: row.owner == record.owner and record.stream in ("", row.stream)
                )

    def _store(self, record: Stored) -> None:
        for at, payload in enumerate(record.payloads):
            mid = record.mid + at
            self.messages[mid] = MessageRow(
                mid, record.topic, record.qos, record.retain, record.section, payload,
                record.publisher, record.received_at, record.expiry_interval,
            )  # fmt: skip
            self._loose.add(mid)
            self.last_mid = max(self.last_mid, mid)

    def _deliver(self, record: Delivered) -> None:
        deliveries = self.deliveries.setdefault(record.sid, {})
        for at in range(record.count):
            n, mid = record.n + at, record.mid + at
            assert n not in deliveries, "a delivery's place is never used twice"
            assert mid in self.messages, "a delivery of a message that is not kept"
            packet_id = record.packet_ids[at] if record.packet_ids else 0
            deliveries[n] = DeliveryRow(
                record.sid, n, mid, record.qos, record.retain, record.subscription_ids,
                record.share, packet_id, record.size,
            )  # fmt: skip
            self.references[mid] = self.references.get(mid, 0) + 1

    def _finish(self, sid: int, n: int) -> None:
        row = self.deliveries.get(sid, {}).pop(n, None)
        if row is not None:
            self._release(row.mid)

    def _release(self, mid: int) -> None:
        self.references[mid] -= 1
        self._loose.add(mid)

    def _retain(self, record: Retained) -> None:
        if record.before in self.retained:
            self.retained.discard(record.before)
            self._release(record.before)
        if record.mid:
            assert record.mid in self.messages, "a message is retained that is not kept"
            self.retained.add(record.mid)
            self.references[record.mid] = self.references.get(record.mid, 0) + 1

    def _end(self, sid: int) -> None:
        for n in list(self.deliveries.get(sid, {})):
            self._finish(sid, n)
        for table in (
            self.sessions, self.shares, self.subscriptions, self.deliveries, self.releases,
            self.received,
        ):  # fmt: skip
            table.pop(sid, None)

    def _forget(self, is_meant: Callable[[CursorRow], bool]) -> None:
        self.cursors = {key: row for key, row in self.cursors.items() if not is_meant(row)}

    def page(self, sid: int, after_n: int, messages_max: int, bytes_max: int) -> Page:
        found: Page = []
        size = 0
        for n, row in sorted(self.deliveries.get(sid, {}).items()):
            if n <= after_n or row.packet_id or self._is_lent(row):
                continue
            size += row.size
            if found and (len(found) >= messages_max or size > bytes_max):
                break
            found.append((row, self.messages[row.mid]))
        return found

    def _is_lent(self, row: DeliveryRow) -> bool:
        """Whether it waits in a session, and came from a shared subscription."""
        return row.share != "" and row.sid not in self.shares

    def snapshot(self) -> Snapshot:
        rows = [row for sid in sorted(self.deliveries)
                for _, row in sorted(self.deliveries[sid].items())]  # fmt: skip
        return Snapshot(
            sessions=[row for _, row in sorted(self.sessions.items())],
            subscriptions=[
                row for _, found in sorted(self.subscriptions.items()) for row in found.values()
            ],
            shares=[row for _, row in sorted(self.shares.items())],
            windows=[(row, self.messages[row.mid]) for row in rows if row.packet_id],
            releases=[(sid, list(ids)) for sid, ids in sorted(self.releases.items()) if ids],
            received=[(sid, list(ids)) for sid, ids in sorted(self.received.items()) if ids],
            backlogs=_backlogs([row for row in rows if not (row.packet_id or self._is_lent(row))]),
            shared=[
                (row, self.messages[row.mid])
                for row in rows
                if not row.packet_id and self._is_lent(row)
            ],
            retained=[self.messages[mid] for mid in sorted(self.retained)],
            streams=[row for _, row in sorted(self.streams.items())],
            cursors=[row for _, row in sorted(self.cursors.items())],
            stream_ends=dict(self.stream_ends),
            last_number=self.last_number,
            last_mid=self.last_mid,
            last_sid=self.last_sid,
            alive_at=self.alive_at,
        )


class MemoryStore:
    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()
        self._submitted: deque[tuple[int, bytes, float]] = deque()
        self._journal: deque[tuple[int, bytes, float]] = deque()
        self._pages: deque[tuple[int, int, int, int, Callable[[Page], None]]] = deque()
        self._on_committed: Callable[[int], None] = _nobody
        self._on_folded: Callable[[int], None] = _nobody
        self._on_state: Callable[[str], None] = _nobody
        self._participant: CommitParticipant | None = None
        self._forgotten: list[str] = []
        self._last = self.tables.last_number
        self.state = ""
        self.commits = 0
        self.folded = 0
        self.cancelled = 0

    # The calls of a store.

    @classmethod
    def open(
        cls,
        *,
        data_dir: str = "",
        database_url: str = "",
        recover: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> MemoryStore:
        return cls()

    def snapshot(self) -> Snapshot:
        return self.tables.snapshot()

    def start(
        self,
        on_committed: Callable[[int], None],
        on_folded: Callable[[int], None],
        on_state: Callable[[str], None],
    ) -> None:
        self._on_committed = on_committed
        self._on_folded = on_folded
        self._on_state = on_state

    def enlist(self, participant: CommitParticipant) -> None:
        self._participant = participant

    def submit(self, number: int, blob: bytes, at: float) -> None:
        if number != self._last + 1:
            raise ValueError(f"group {number} cannot follow {self._last}")
        self._last = number
        self._submitted.append((number, blob, at))

    def forget_ends(self, name: str) -> None:
        self._forgotten.append(name)

    def page(
        self,
        sid: int,
        after_n: int,
        messages_max: int,
        bytes_max: int,
        on_page: Callable[[Page], None],
    ) -> None:
        self._pages.append((sid, after_n, messages_max, bytes_max, on_page))

    def stop(self, timeout_s: float) -> bool:
        self.run()
        return not self._submitted

    @property
    def lag(self) -> int:
        return len(self._journal)

    # When things happen.

    def fail(self, state: str) -> None:
        """Nothing works any more until `fail("")`."""
        self.state = state
        self._on_state(state)

    def commit(self, groups_max: int | None = None) -> None:
        """Make safe what was submitted, or the first so many groups of it."""
        count = len(self._submitted) if groups_max is None else groups_max
        count = min(count, len(self._submitted))
        while count and is_continued(self._submitted[count - 1][1]):
            count += 1  # the rest of a group is committed with its beginning,
            if count > len(self._submitted):
                count = self._whole()  # and not before it is here
        if self.state or not count:
            return
        ends: Mapping[str, str] = {}
        if self._participant is not None:
            try:
                ends = self._participant.write(self._submitted[count - 1][0])
            except Exception as error:
                self._on_state(f"telemetry log: {error}")
                return
            self._on_state("")
        for _ in range(count):
            self._journal.append(self._submitted.popleft())
        for name in self._forgotten:
            self.tables.stream_ends.pop(name, None)
        self._forgotten.clear()
        self.tables.stream_ends.update(ends)
        self.commits += 1
        if ends and self._participant is not None:
            self._participant.committed(ends)
        self._on_committed(self._journal[-1][0])

    def _whole(self) -> int:
        """How many, from the first, end with a group that is whole."""
        count = len(self._submitted)
        while count and is_continued(self._submitted[count - 1][1]):
            count -= 1
        return count

    def beat(self, at: float) -> None:
        """The broker is alive: what the real store writes every few seconds."""
        if not self.state:
            self.tables.alive_at = max(self.tables.alive_at, at)

    def fold(self) -> None:
        if self.state or not self._journal:
            return
        while self._journal:
            self.cancelled += self.tables.apply_group(*self._journal.popleft())
            self.folded += 1
        self._on_folded(self.tables.last_number)

    def answer(self) -> None:
        """Give the pages that were asked for, and those that are asked for meanwhile."""
        while self._pages and not self.state:
            *wanted, on_page = self._pages.popleft()
            on_page(self.tables.page(*wanted))

    def run(self) -> None:
        while not self.state and (self._submitted or self._journal or self._pages):
            self.commit()
            self.fold()
            self.answer()

    def crash(self) -> MemoryStore:
        """What a restart finds: all that was committed, nothing that was not."""
        tables = self.tables.copy()
        for group in self._journal:
            tables.apply_group(*group)
        return MemoryStore(tables)


def _open(table: dict[int, list[int]], sid: int, packet_id: int) -> None:
    found = table.setdefault(sid, [])
    if packet_id in found:
        found.remove(packet_id)
    found.append(packet_id)


def _close(table: dict[int, list[int]], sid: int, packet_ids: tuple[int, ...]) -> None:
    found = table.get(sid, [])
    table[sid] = [one for one in found if one not in packet_ids]


def _backlogs(rows: list[DeliveryRow]) -> list[BacklogRow]:
    found: dict[int, BacklogRow] = {}
    for row in rows:
        if row.sid not in found:
            found[row.sid] = BacklogRow(row.sid, 0, 0, row.n, row.n)
        backlog = found[row.sid]
        backlog.messages += 1
        backlog.bytes += row.size
        backlog.n_last = row.n
    return list(found.values())


def _nobody(_: object) -> None:
    pass

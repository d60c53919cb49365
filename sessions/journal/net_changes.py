"""The net change of a batch of journal groups, without knowledge of the tables.

`Changes.apply` adds the records of a batch one by one; then the store applies the result to the
tables. A message that arrived and was finished within the batch leaves no change. Questions about
older rows, such as whether a delivery exists, are left to the tables, in `finished` and the like.

Runs remain runs: the cost depends on the number of records, not of messages.

A message is deleted when, at the end of a group, no delivery and no retained message refers to it.
Within a group the order of records does not matter for that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from sessions.journal.number_range import ALL, NumberRange
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
)
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow

PAUSE_EVERY: Final = 64


class Run:
    """The deliveries n to end - 1 of one record."""

    __slots__ = ("end", "form", "n")

    def __init__(self, form: Delivered, n: int, end: int) -> None:
        self.form = form
        self.n = n
        self.end = end

    @property
    def mid(self) -> int:
        """The message number of delivery n; those of the other deliveries follow it."""
        return self.form.mid + self.n - self.form.n

    def packet_id(self, n: int) -> int:
        ids = self.form.packet_ids
        return ids[n - self.form.n] if ids else 0


class SessionDeliveries:
    """The changes of a batch to the deliveries of one session.

    runs      new deliveries, in the order of n
    sent      packet ids of queued deliveries, new ones or those of the tables
    finished  (n, end) of deliveries that have ended and are not new: the tables may have them
    """

    __slots__ = ("_starts", "finished", "runs", "sent")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._starts: list[int] = []
        self.sent: dict[int, int] = {}
        self.finished: list[tuple[int, int]] = []

    def add(self, run: Run) -> None:
        starts = self._starts
        if not starts or run.n > starts[-1]:
            starts.append(run.n)
            self.runs.append(run)
        else:
            at = bisect_left(starts, run.n)
            starts.insert(at, run.n)
            self.runs.insert(at, run)

    def finish(self, n: int, end: int) -> None:
        if self.sent:
            for one in range(n, end):
                self.sent.pop(one, None)
        runs, starts = self.runs, self._starts
        at = bisect_right(starts, n) - 1
        if at < 0 or runs[at].end <= n:
            at += 1
        while n < end:
            if at == len(runs) or starts[at] >= end:
                self._missing(n, end)
                return
            run = runs[at]
            if n < run.n:
                self._missing(n, run.n)
                n = run.n
            stop = min(run.end, end)
            if n > run.n:
                if stop < run.end:
                    runs.insert(at + 1, Run(run.form, stop, run.end))
                    starts.insert(at + 1, stop)
                run.end = n
                at += 1
            elif stop < run.end:
                run.n = starts[at] = stop
            else:
                del runs[at], starts[at]
            n = stop

    def _missing(self, n: int, end: int) -> None:
        finished = self.finished
        if finished and finished[-1][1] == n:
            finished[-1] = (finished[-1][0], end)
        else:
            finished.append((n, end))

    def packet_id(self, run: Run, n: int) -> int:
        return self.sent.get(n) or run.packet_id(n)

    def sent_before(self) -> list[tuple[int, int]]:
        """List (n, packet id) of deliveries that are not new."""
        if not self.sent:
            return []
        new = {n for run in self.runs for n in range(run.n, run.end) if n in self.sent}
        return [(n, packet_id) for n, packet_id in self.sent.items() if n not in new]


class PacketIdChanges:
    """The packet ids of one session that a batch opened and closed.

    An id that is opened again while the tables may still have it is in both: closed ids are
    deleted first.
    """

    __slots__ = ("closed", "opened")

    def __init__(self) -> None:
        self.opened: dict[int, int] = {}  # packet id -> its place in the order
        self.closed: set[int] = set()

    def close(self, packet_id: int) -> None:
        if self.opened.pop(packet_id, None) is None:
            self.closed.add(packet_id)


class CursorChanges:
    """The changes of a batch to the positions of owners in streams.

    moved    stream -> owner -> partition -> (epoch, next offset)
    gone     (owner, stream) to delete before that; an empty stream: all of the owner's

    The cursors of a deleted stream are in neither: they are deleted with it.
    """

    __slots__ = ("gone", "moved")

    def __init__(self) -> None:
        self.moved: dict[str, dict[str, dict[int, tuple[str, int]]]] = {}
        self.gone: set[tuple[str, str]] = set()

    def move(self, record: Cursor) -> None:
        owners = self.moved.setdefault(record.stream, {})
        partitions = owners.setdefault(record.owner, {})
        for partition, offset in record.offsets:
            partitions[partition] = (record.epoch, offset)

    def forget(self, owner: str, stream: str) -> None:
        self.gone.add((owner, stream))
        for owners in [self.moved.get(stream, {})] if stream else self.moved.values():
            owners.pop(owner, None)


class Changes:
    """The net change of a batch. `place` numbers opened packet ids, from its start value on."""

    def __init__(self, place: int = 1, number_range: NumberRange = ALL) -> None:
        self.place = place
        self.range = number_range  # of the numbers that `last_mid` and `last_sid` count
        self.sessions: dict[int, SessionRow] = {}
        self.shares: dict[int, ShareRow] = {}
        self.subscriptions: dict[int, dict[str, SubscriptionRow | None]] = {}
        self.ended: set[int] = set()
        self.stored: list[Stored] = []  # by mid
        self._mids: list[int] = []
        self.deliveries: dict[int, SessionDeliveries] = {}
        self.releases: dict[int, PacketIdChanges] = {}
        self.received: dict[int, PacketIdChanges] = {}
        self.left: dict[int, int] = {}  # the number after which a session's messages are numbered
        self.retained: set[int] = set()
        self.unretained: set[int] = set()
        self.streams: dict[str, StreamRow] = {}
        self.streams_gone: set[str] = set()  # deleted first: a stream may be created again
        self.cursors = CursorChanges()
        self.records = 0
        self.messages = 0  # number of stored messages
        self.last_mid = number_range.first
        self.last_sid = number_range.first

    def apply(self, record: Record) -> None:
        self.records += 1
        if isinstance(record, Stored):
            self._store(record)
        elif isinstance(record, Delivered):
            self._of(record.sid).add(Run(record, record.n, record.n + record.count))
        elif isinstance(record, Done):
            deliveries = self._of(record.sid)
            for n, _, count in record.runs:
                deliveries.finish(n, n + count)
        elif isinstance(record, Sent):
            self._of(record.sid).sent.update(record.sent)
        elif isinstance(record, Released):
            self._release(record)
        elif isinstance(record, Completed):
            _close(self.releases, record.sid, record.packet_ids)
        elif isinstance(record, Received):
            self._open(self.received, record.sid, record.packet_ids)
        elif isinstance(record, Freed):
            _close(self.received, record.sid, record.packet_ids)
        elif isinstance(record, Cursor):
            self.cursors.move(record)
        elif isinstance(record, SessionRow):
            self.sessions[record.sid] = record
            self.last_sid = self.range.newest(self.last_sid, record.sid)
        elif isinstance(record, SubscriptionRow):
            self.subscriptions.setdefault(record.sid, {})[record.filter] = record
        elif isinstance(record, Unsubscribed):
            self.subscriptions.setdefault(record.sid, {})[record.filter] = None
        elif isinstance(record, Retained):
            self._retain(record)
        elif isinstance(record, Ended):
            self._end(record.sid)
        elif isinstance(record, ShareRow):
            self.shares[record.sid] = record
            self.last_sid = self.range.newest(self.last_sid, record.sid)
        elif isinstance(record, StreamRow):
            self.streams[record.name] = record
        elif isinstance(record, Left):
            self.left[record.sid] = record.base
            self.last_mid = max(self.last_mid, record.base + record.messages)
        elif isinstance(record, CursorsGone):
            self.cursors.forget(record.owner, record.stream)
        else:
            self._drop_stream(record)

    def _of(self, sid: int) -> SessionDeliveries:
        deliveries = self.deliveries.get(sid)
        if deliveries is None:
            deliveries = self.deliveries[sid] = SessionDeliveries()
        return deliveries

    def _store(self, record: Stored) -> None:
        count = len(record.payloads)
        self.messages += count
        self.last_mid = max(self.last_mid, record.mid + count - 1)
        if not self._mids or record.mid > self._mids[-1]:
            self._mids.append(record.mid)
            self.stored.append(record)
        else:
            at = bisect_left(self._mids, record.mid)
            self._mids.insert(at, record.mid)
            self.stored.insert(at, record)

    def _release(self, record: Released) -> None:
        deliveries = self._of(record.sid)
        for n, _, _ in record.released:
            deliveries.finish(n, n + 1)
        self._open(self.releases, record.sid, [found[2] for found in record.released])

    def _open(
        self, spaces: dict[int, PacketIdChanges], sid: int, packet_ids: tuple[int, ...] | list[int]
    ) -> None:
        space = spaces.get(sid)
        if space is None:
            space = spaces[sid] = PacketIdChanges()
        for packet_id in packet_ids:
            space.opened[packet_id] = self.place
            self.place += 1

    def _retain(self, record: Retained) -> None:
        if record.before:
            if record.before in self.retained:
                self.retained.discard(record.before)
            else:
                self.unretained.add(record.before)
        if record.mid:
            self.retained.add(record.mid)

    def _end(self, sid: int) -> None:
        self.ended.add(sid)
        self.sessions.pop(sid, None)
        self.shares.pop(sid, None)
        self.subscriptions.pop(sid, None)
        self.deliveries.pop(sid, None)
        self.releases.pop(sid, None)
        self.received.pop(sid, None)

    def _drop_stream(self, record: StreamGone) -> None:
        self.streams_gone.add(record.name)
        self.streams.pop(record.name, None)
        self.cursors.moved.pop(record.name, None)

    # For the tables.

    def references(
        self, dropped: Iterable[tuple[int, int, int]], pause: Callable[[], None] = lambda: None
    ) -> list[tuple[int, int, int]]:
        """Return (first message number, end, added references) where these are not 0.

        `dropped` has the same form, with references that the tables have just lost. A message of
        this batch that is not in the result need not be stored. `pause` is called regularly, for
        other threads that wait.
        """
        steps: dict[int, int] = {}
        done = 0
        for deliveries in self.deliveries.values():
            for run in deliveries.runs:
                mid = run.mid
                end = mid + run.end - run.n
                steps[mid] = steps.get(mid, 0) + 1
                steps[end] = steps.get(end, 0) - 1
                done += 1
                if not done % PAUSE_EVERY:
                    pause()
        for mid in self.retained:
            steps[mid] = steps.get(mid, 0) + 1
            steps[mid + 1] = steps.get(mid + 1, 0) - 1
        for mid, end, count in dropped:
            steps[mid] = steps.get(mid, 0) - count
            steps[end] = steps.get(end, 0) + count
        found: list[tuple[int, int, int]] = []
        level = start = 0
        for at, mid in enumerate(sorted(steps)):
            if not at % PAUSE_EVERY:
                pause()
            step = steps[mid]
            if step:
                if level:
                    found.append((start, mid, level))
                start = mid
                level += step
        return found

    def split(
        self, references: list[tuple[int, int, int]], pause: Callable[[], None] = lambda: None
    ) -> tuple[list[tuple[Stored, int, int, int]], list[tuple[int, int, int]]]:
        """Split references into those of new messages and those of the tables.

        New ones are (record, first, end, references), with indices of the record's payloads.
        """
        new: list[tuple[Stored, int, int, int]] = []
        old: list[tuple[int, int, int]] = []
        stored = self.stored
        at = 0
        for number, (start, end, step) in enumerate(references):
            if not number % PAUSE_EVERY:
                pause()
            at = max(at, bisect_right(self._mids, start, at) - 1)
            while start < end:
                while at < len(stored) and self._mids[at] + len(stored[at].payloads) <= start:
                    at += 1
                if at == len(stored) or self._mids[at] >= end:
                    old.append((start, end, step))
                    break
                first = self._mids[at]
                if start < first:
                    old.append((start, first, step))
                    start = first
                stop = min(end, first + len(stored[at].payloads))
                new.append((stored[at], start - first, stop - first, step))
                start = stop
        return new, old


def _close(spaces: dict[int, PacketIdChanges], sid: int, packet_ids: tuple[int, ...]) -> None:
    space = spaces.get(sid)
    if space is None:
        space = spaces[sid] = PacketIdChanges()
    for packet_id in packet_ids:
        space.close(packet_id)

"""The retained messages of all numbers, as one host reads them.

The rows of each number are read in the order of its groups, as far as they are still its own: the
newest row of each topic is all that there is. Loading is the same from the beginning, so who
joins late has no other way than who follows, and a page that was read stays good.

What is read belongs together as a cut: rows, the messages that wait in the outbox, and the rows
again, as they are after that. The cut is applied when these messages have been delivered, and
before any other, so a subscriber is given no retained message before an older one, or behind a
newer one. Topics that changed while the messages were read are left to the next cut. The
transaction writes the host's own row, so its answer proves what it has read: if the database loses
that, it loses the turn of this host too.

A SUBSCRIBE is served by the first cut that was asked for after it came. A message may miss both
that cut and the subscription: its group had compared the filters before, and is committed after. So
the request stays open, and is given what changes, until every host has had another transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from mqtt_broker.cluster.node_row import FREE
from mqtt_broker.cluster.retained_rows import OwnRows, RetainedLimits, RetainedMessage, message_of
from mqtt_broker.cluster.statements import Rows, Select, SelectNewer, Statement
from mqtt_broker.cluster.tables import NODES, RETAINED, SWEEPS

NOTHING: Final = -1  # a group before all others
OPEN_S: Final = 30.0  # longer than a transaction may take

Marks = dict[int, tuple[str, int]]  # by number, epoch and turn


class Copies(Protocol):
    """The retained messages in memory, which SUBSCRIBE searches."""

    def put(self, message: RetainedMessage) -> None:
        """Keep the message of its topic."""

    def remove(self, topic: str) -> None:
        """Have no message of this topic, if there is one."""

    def topics(self) -> Iterable[str]:
        """Return the topics that have a message."""


class Request(Protocol):
    """A SUBSCRIBE that brings retained messages."""

    def begin(self, without: set[str]) -> None:
        """Deliver what is in memory, without these topics, which follow."""

    def go_on(self, messages: list[RetainedMessage]) -> None:
        """Deliver what has changed, unless it has come live."""


class OpenRequest:
    """A request that has begun, and the hosts' marks when it had."""

    __slots__ = ("_marks", "_until", "request")

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self._marks: Marks | None = None
        self._until = now + OPEN_S

    def note(self, marks: Marks) -> None:
        """Note the marks of the first read after it began."""
        self._marks = self._marks or _of_hosts(marks)

    def is_over(self, marks: Marks, now: float) -> bool:
        """Tell whether every transaction that was under way when it began has ended."""
        assert self._marks is not None
        has_moved = all(marks.get(number) != mark for number, mark in self._marks.items())
        return has_moved or now >= self._until


class Cut:
    """The rows that were read at once, and who waits for them."""

    __slots__ = ("begins", "changed", "ends", "foreign", "is_whole", "moving", "opens")

    def __init__(self, ends: dict[int, int], changed: dict[str, RetainedMessage]) -> None:
        self.ends = ends  # by sender, the last message that is delivered before it
        self.changed = changed
        self.is_whole: set[str] | None = None  # no other topics have a message
        self.moving: set[str] = set()  # topics that changed while messages were read
        self.foreign: list[RetainedMessage] = []  # what other numbers have changed
        self.opens: list[Request] = []  # they are given that
        self.begins: list[Request] = []

    def end_loading(self, topics: set[str]) -> None:
        """Note that no other topics have a message."""
        self.is_whole = topics

    def go_on(
        self, opens: list[Request], changed: Iterable[RetainedMessage], moving: set[str]
    ) -> None:
        """Give what has changed, without topics that still do, to those who have begun."""
        self.moving = moving
        self.foreign = [one for one in changed if one.topic not in moving]
        self.opens = opens

    def begin(self, requests: list[Request]) -> None:
        """Serve these."""
        self.begins = requests


class Follower:
    """The table of retained messages, as one number knows it."""

    __slots__ = (
        "_asked",
        "_base",
        "_copies",
        "_covered",
        "_cut",
        "_foreign",
        "_known",
        "_limits",
        "_number",
        "_open",
        "_own",
        "_read",
        "_written",
        "is_behind",
    )

    def __init__(self, number: int, copies: Copies, own: OwnRows, limits: RetainedLimits) -> None:
        self._number = number
        self._copies = copies
        self._own = own
        self._limits = limits
        self._known: dict[int, int] = {}  # by number, the last group of which all is known
        self._base: dict[int, int] | None = None  # what was swept when loading began
        self._read: set[str] | None = set()  # topics read since then; None: all is loaded
        self._written: dict[str, RetainedMessage] = {}  # by own groups, since the last read
        self._foreign: dict[str, RetainedMessage] = {}  # changed, and not given to requests yet
        self._cut: Cut | None = None
        self._asked: list[Request] = []
        self._covered = 0  # how many of them had asked before the last read was sent
        self._open: list[OpenRequest] = []
        self.is_behind = True  # there is more than was read

    @property
    def numbers(self) -> list[int]:
        """The other numbers, as far as they are known."""
        return sorted(number for number in self._known if number != self._number)

    @property
    def is_loaded(self) -> bool:
        """Tell whether all has been read once."""
        return self._read is None

    @property
    def is_wanted(self) -> bool:
        """Tell whether something is to be read soon."""
        return self.is_behind or bool(self._asked)

    def want(self, request: Request) -> None:
        """Let a request begin when all is known that was committed by now."""
        self._asked.append(request)

    # Reading.

    def reads(self, messages: list[Statement], group: int | None) -> list[Statement]:
        """Return what is read, with the statements that read messages; `group` is what it follows.

        Numbers are read before their rows, so that all is known up to there; what was swept,
        after them, since it may have been there before.
        """
        self._covered = len(self._asked)
        than = dict(self._known)
        if group is not None and self.is_loaded:
            than[self._number] = group
        newer = SelectNewer(RETAINED, "group", than, limit=self._limits.read_rows)
        return [Select(NODES), Select(SWEEPS), newer, Select(SWEEPS), *messages, newer]

    def on_rows(
        self, found: list[Rows], ends: dict[int, int], now: float, *, has_all: bool
    ) -> None:
        """Take in what a transaction has read that is committed, without the messages.

        `ends` are the last of those, by sender; `has_all`: no more of them wait.
        """
        nodes, before, newer, after, again = found
        if self._base is None:
            self._base = {row["number"]: row["group"] for row in before}
        for row in after:
            if row["number"] == self._number:
                self._own.on_told(row["group"])
        if self._is_missed(after):
            self._start_again()
            return
        rows = self._note_known(nodes, newer)
        is_all_again = len(again) < self._limits.read_rows  # else more may have changed
        is_complete = not self.is_behind and has_all and is_all_again
        marks = {row["number"]: (row["epoch"], row["turn"]) for row in nodes}
        cut = self._make_cut(rows, ends)
        for one in self._open:
            one.note(marks)
        if is_complete:
            self._serve(cut, _topics_that_differ(newer, again), marks, now)

    def _serve(self, cut: Cut, moving: set[str], marks: Marks, now: float) -> None:
        """Note what a cut that has all brings to whom."""
        cut.go_on([one.request for one in self._open], self._foreign.values(), moving)
        cut.begin(self._asked[: self._covered])
        self._foreign.clear()
        del self._asked[: self._covered]
        if not moving:
            self._open = [one for one in self._open if not one.is_over(marks, now)]
        self._open += (OpenRequest(request, now) for request in cut.begins)

    def _is_missed(self, sweeps: Rows) -> bool:
        """Tell whether tombstones may be gone that were never read."""
        assert self._base is not None
        for row in sweeps:
            number, group = row["number"], row["group"]
            known = self._known.get(number, NOTHING)
            if group > max(known, self._base.get(number, NOTHING)):
                return True
        return False

    def _start_again(self) -> None:
        """Read all, and then remove what is not there any more."""
        self._known.clear()
        self._base = None
        self._read = set()
        self.is_behind = True

    def _note_known(self, nodes: Rows, newer: Rows) -> Rows:
        """Note up to where all is known; return the rows that count."""
        is_full = len(newer) == self._limits.read_rows
        rows = _without_the_last_group(newer) if is_full else newer
        for row in rows:
            self._known[row["number"]] = row["group"]
        self.is_behind = is_full
        for row in nodes:
            number, group = row["number"], row["group"]
            if number not in self._known:
                self._known[number] = NOTHING
                self.is_behind = True
            elif not is_full:
                self._known[number] = max(self._known[number], group)
        return rows

    def _make_cut(self, rows: Rows, ends: dict[int, int]) -> Cut:
        assert self._cut is None, "a cut is taken before the next one is read"
        cut = self._cut = Cut(ends, self._written)
        self._written = {}
        for row in rows:
            message = cut.changed[row["topic"]] = message_of(row)
            if row["number"] == self._number:
                self._own.on_written(message, row["group"])
                continue
            self._own.forget(message.topic)
            if self._open:
                self._foreign[message.topic] = message
        if self._read is not None:
            self._read.update(row["topic"] for row in rows)  # what was written may be gone
            if not self.is_behind:
                cut.end_loading(self._read)
                self._read = None
        return cut

    # What this host writes.

    def on_committed(self, group: int, messages: Iterable[RetainedMessage]) -> None:
        """Note what a committed group of this host has written."""
        for message in messages:
            self._written[message.topic] = message
            self._foreign.pop(message.topic, None)
            self._own.on_written(message, group)
        if self.is_loaded:
            self._known[self._number] = group

    # Cuts.

    @property
    def cut(self) -> Cut | None:
        """The rows that were read last, until they are taken."""
        return self._cut

    def take(self) -> Cut | None:
        """Return what was read last, once."""
        cut, self._cut = self._cut, None
        return cut

    def apply(self, cut: Cut) -> None:
        """Change what is in memory, and serve those who waited for it."""
        for message in cut.changed.values():
            if message.is_tombstone:
                self._copies.remove(message.topic)
            else:
                self._copies.put(message)
        if cut.is_whole is not None:
            for topic in [one for one in self._copies.topics() if one not in cut.is_whole]:
                self._copies.remove(topic)
        for request in cut.opens:
            request.go_on(cut.foreign)
        for request in cut.begins:
            request.begin(cut.moving)


def _of_hosts(marks: Marks) -> Marks:
    """Leave out numbers that nobody hosts: nothing is under way there."""
    return {number: mark for number, mark in marks.items() if mark[0] != FREE}


def _topics_that_differ(rows: Rows, again: Rows) -> set[str]:
    """Return the topics that have changed between two reads."""
    tags = {row["topic"]: (row["number"], row["group"]) for row in rows}
    return {
        row["topic"] for row in again if tags.get(row["topic"]) != (row["number"], row["group"])
    }


def _without_the_last_group(rows: Rows) -> Rows:
    """Leave out a group of which there may be more rows."""
    last = rows[-1]["number"], rows[-1]["group"]
    return [row for row in rows if (row["number"], row["group"]) != last]

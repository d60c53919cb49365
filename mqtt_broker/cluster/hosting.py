"""The host of a number: which transaction is next, and what its outcome means.

A host begins by confirming its row, which ends the connections that an earlier attempt left and
proves that what it reads next cannot be lost; then it loads. From there on it has one transaction
in flight, so groups are committed in order. After an unknown outcome it knows nothing until
`confirm` is answered again: nothing is acknowledged, and no group is sent again.
A host that is refused is fenced: it stops, and its process says nothing more for this number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes, confirm
from mqtt_broker.cluster.statements import (
    ConnectionLost,
    Refused,
    Statement,
    Transaction,
    TransactionError,
)

BEAT_S: Final = 0.4
FOLD_GROUPS: Final = 8  # groups that are committed before they are folded


class Journal(Protocol):
    """The part of a broker that a host writes for."""

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        """Fold the groups of an earlier host; None: `load` reads them."""

    def load(self, row: NodeRow) -> Transaction[None]:
        """Read what the tables have, and the groups that are not folded."""

    def on_loaded(self) -> None:
        """Serve clients from now on."""

    def pack(self, group: int) -> bytes | None:
        """Pack what was gathered as the next group; None: nothing was."""

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        """Commit a packed group with what else belongs to its transaction.

        It may be asked again, if the transaction before failed.
        """

    def read(self, now: float) -> Transaction[object] | None:
        """Return the next transaction that only reads, if one is due."""

    def on_committed(self, group: int) -> None:
        """Continue what waited for the commit of this group."""

    def fold(self, group: int) -> list[Statement]:
        """Return the changes that the groups up to this one make to the tables.

        It may be asked again: only `on_folded` says that they were made.
        """

    def on_folded(self, group: int) -> None:
        """Forget the groups up to this one: the tables have what they changed."""


class Errands(Protocol):
    """Transactions of a host besides groups and folds. Errands and groups take turns."""

    @property
    def wants_fold(self) -> bool:
        """Tell whether something waits until the journal is folded."""

    def next(self, number: int, epoch: str, turn: int, now: float) -> Transaction[Any] | None:
        """Return the next transaction under the host's own row.

        It is asked for again unless `on_done` says that it was committed.
        """

    def on_done(self, result: Any, now: float) -> None:
        """Note that the transaction was committed."""


class Hosting:
    """The rules by which the host of a number writes."""

    __slots__ = (
        "_beat_at",
        "_done",
        "_errands",
        "_is_errand_next",
        "_journal",
        "_packed",
        "_row",
        "_to",
        "committed",
        "epoch",
        "folded",
        "is_fenced",
        "is_loaded",
        "is_sure",
        "number",
        "turn",
    )

    def __init__(
        self, number: int, epoch: str, journal: Journal, errands: Errands | None = None
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.turn = 0
        self.committed = 0
        self.folded = 0
        self.is_fenced = False
        self.is_sure = False  # every transaction up to here has a known outcome
        self.is_loaded = False
        self._journal = journal
        self._errands = errands
        self._is_errand_next = False
        self._row: NodeRow | None = None  # to load from
        self._packed: deque[tuple[int, bytes]] = deque()
        self._to: str | None = None  # the epoch to which it is handed over
        self._done: Callable[[Any, float], None] | None = None
        self._beat_at = 0.0

    @property
    def beats_at(self) -> float:
        """Return when the host is to show a sign of life, unless it has written until then."""
        return self._beat_at + BEAT_S

    def hand_over(self, epoch: str) -> None:
        """Let the process that waits with this epoch host the number when all is folded."""
        self._to = epoch

    def next(self, now: float) -> Transaction[object] | None:
        """Return the next transaction, if there is something to do."""
        if self.is_fenced:
            return None
        if not self.is_sure:
            self._done = None
            return confirm(self.number, self.epoch, self.turn)
        if not self.is_loaded:
            return self._next_to_load(now)
        return self._next_write(Writes(self.number, self.epoch, self.turn), now)

    def _next_to_load(self, now: float) -> Transaction[object] | None:
        row = self._row
        assert row is not None
        if self.folded < self.committed:
            writes = Writes(self.number, self.epoch, self.turn)
            if (fold := self._journal.fold_earlier(writes, row)) is not None:
                self._done = self._on_earlier_folded
                return fold
        self._done = self._on_loaded
        return self._journal.load(row)

    def _next_write(self, writes: Writes, now: float) -> Transaction[object] | None:
        if not self._packed and (blob := self._journal.pack(self.committed + 1)) is not None:
            self._packed.append((self.committed + 1, blob))
        if now >= self.beats_at:  # reads show nobody that the host is alive
            self._done = self._on_written
            return writes.beat()
        if self.committed - self.folded >= self._groups_kept():
            self._done = self._on_folded
            return writes.fold(self.committed, self._journal.fold(self.committed))
        kinds = [self._next_of_journal, self._next_errand]
        if self._to is not None and not self._packed:
            kinds = [self._next_errand]
        for kind in reversed(kinds) if self._is_errand_next else kinds:
            if (transaction := kind(writes, now)) is not None:
                return transaction
        if self._to is not None:
            self._done = self._on_handed_over
            return writes.hand_over(self._to)
        return None

    def _groups_kept(self) -> int:
        """Return how many groups are committed before they are folded."""
        wants_fold = self._errands is not None and self._errands.wants_fold
        return 1 if wants_fold or self._to is not None else FOLD_GROUPS

    def _next_of_journal(self, writes: Writes, now: float) -> Transaction[object] | None:
        self._is_errand_next = True
        if (reads := self._journal.read(now)) is not None:
            self._done = self._on_read
            return reads
        if self._packed:
            self._done = self._on_group
            return self._journal.commit(writes, *self._packed[0])
        return None

    def _next_errand(self, writes: Writes, now: float) -> Transaction[object] | None:
        self._is_errand_next = False
        self._done = self._on_errand
        if self._errands is None:
            return None
        return self._errands.next(self.number, self.epoch, self.turn, now)

    def on_done(self, result: object, now: float) -> None:
        """Note that the transaction was committed."""
        if self._done is None:
            assert isinstance(result, NodeRow)
            self._on_confirmed(result, now)
        else:
            self._done(result, now)

    def on_failed(self, error: TransactionError) -> None:
        """Note that the transaction failed, or that nobody knows."""
        if isinstance(error, Refused):
            self.is_fenced = True
        elif isinstance(error, ConnectionLost) and error.is_unknown:
            self.is_sure = False

    def _on_read(self, result: Any, now: float) -> None:
        """Go on: what was read is the journal's."""

    def _on_written(self, result: Any, now: float) -> None:
        self.turn += 1
        self._beat_at = now

    def _on_errand(self, result: Any, now: float) -> None:
        self._on_written(result, now)
        assert self._errands is not None
        self._errands.on_done(result, now)

    def _on_group(self, result: Any, now: float) -> None:
        self._on_written(result, now)
        self.committed, _ = self._packed.popleft()
        self._journal.on_committed(self.committed)

    def _on_folded(self, result: Any, now: float) -> None:
        self._on_written(result, now)
        self._set_folded(self.committed)

    def _set_folded(self, group: int) -> None:
        self.folded = group
        self._journal.on_folded(group)

    def _on_handed_over(self, result: Any, now: float) -> None:
        self.is_fenced = True

    def _on_earlier_folded(self, result: Any, now: float) -> None:
        self._on_written(result, now)
        self.folded = self.committed

    def _on_loaded(self, result: Any, now: float) -> None:
        self.is_loaded = True
        self._row = None
        self._journal.on_loaded()

    def _on_confirmed(self, row: NodeRow, now: float) -> None:
        self.is_sure = True
        self.turn = row.turn
        self._beat_at = now
        if self.is_loaded and row.folded > self.folded:
            self._set_folded(row.folded)
        if not self.is_loaded:
            self._row = row
            self.committed = row.group
            self.folded = row.folded
        elif self._packed and row.group == self._packed[0][0]:
            self.committed, _ = self._packed.popleft()
            self._journal.on_committed(self.committed)

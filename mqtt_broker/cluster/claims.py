"""Which clients a number owns: claim them, release them when others ask, drop them at their end.

A client connects to the number of a process. The CONNECT is answered after a transaction of that
number which began when the CONNECT had come. So a process that was frozen, and whose sessions have
moved on, answers nothing of what it remembers. If another number owns the client, it is asked to
release it, over the bus and, when that does not help, in a table which it polls. It disconnects the
client, folds its journal, and offers. An offer that nobody claims is taken back: else nobody would
publish the will of that client, or end its session.

Sessions that are not stored are claimed in the same way. The row of the table is then what makes
two connections of one client see each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from mqtt_broker.cluster.owner_transactions import Claimed, OwnerRow, OwnerWrites
from mqtt_broker.cluster.statements import Row, Rows, Statement, Transaction

RETRY_S: Final = 0.25  # between two claims of a client that somebody else owns
POLL_S: Final = 0.25  # between two reads of what others ask for
TAKE_BACK_S: Final = 2.0  # an offer is taken back if nobody claims it
CLIENTS_MAX: Final = 500  # in one transaction

Kind = Callable[[OwnerWrites, float], Transaction[Any] | None]


class Sessions(Protocol):
    """The part of a broker that holds the sessions of a number."""

    def select(self, clients: list[str]) -> Sequence[Statement]:
        """Return the statements that read the sessions of clients that are claimed."""

    def on_claimed(self, clients: list[str], found: list[Rows]) -> None:
        """Hold the sessions of clients that this number owns from now on."""

    def on_owned(self, client: str) -> None:
        """Answer the CONNECT that waits, if it still does; end the client if nothing is left."""

    def on_asked(self, client: str) -> None:
        """Disconnect a client, and change its session no more: it moves to another number."""

    def is_folded(self, client: str) -> bool:
        """Tell whether the tables have all that the journal says about a client."""

    def on_released(self, client: str) -> None:
        """Forget a client that this number no longer owns."""

    def on_time(self, time: float, now: float) -> None:
        """Compare the database's clock with this process's own."""


class Bus(Protocol):
    """Frames to other numbers, which may be lost, repeated, late or reordered."""

    def ask(self, owner: int, client: str, tenure: int) -> None:
        """Ask a number to release a client that it owns with this tenure."""

    def tell_offered(self, number: int, client: str) -> None:
        """Tell a number that the client for which it asked is offered."""


class _Wait:
    """A CONNECT that waits until its client is owned."""

    __slots__ = ("again_at", "asked")

    def __init__(self) -> None:
        self.again_at = 0.0
        self.asked: OwnerRow | None = None

    def ask(self, row: OwnerRow, now: float) -> None:
        """Note who is asked, and look again after a while."""
        self.asked = row
        self.again_at = now + RETRY_S

    def look_again(self) -> None:
        """Claim as soon as possible."""
        self.again_at = 0.0


class Claims:
    """The clients of one number."""

    __slots__ = (
        "_asked_by",
        "_bus",
        "_consumed",
        "_done",
        "_kinds",
        "_leaving",
        "_offered",
        "_poll_at",
        "_sessions",
        "_unsure",
        "_waiting",
        "number",
        "owned",
    )

    def __init__(self, number: int, sessions: Sessions, bus: Bus) -> None:
        self.number = number
        self.owned: dict[str, int] = {}  # by client, the tenure
        self._sessions = sessions
        self._bus = bus
        self._waiting: dict[str, _Wait] = {}
        self._leaving: dict[str, bool] = {}  # to be offered, or else deleted, when it is folded
        self._asked_by: dict[str, int] = {}
        self._offered: dict[str, float] = {}  # since when
        self._unsure: set[str] = set()  # claimed by a transaction of which the outcome is not known
        self._consumed: list[str] = []  # asks that were read
        self._poll_at = 0.0
        self._kinds: deque[Kind] = deque(
            [self._poll, self._forget_asks, self._release, self._claim]
        )
        self._done: Callable[[Any, float], None] = self._on_released

    # What the broker and the bus say.

    def on_loaded(self, rows: Rows, now: float) -> None:
        """Own the clients that the table says; those that were offered are taken back in time."""
        for row in map(OwnerRow, rows):
            if row.is_offered:
                self._offered[row.client] = now
            else:
                self.owned[row.client] = row.tenure

    def connect(self, client: str) -> None:
        """Let a CONNECT wait for `on_owned`, after a transaction that begins from now on."""
        self._waiting[client] = _Wait()

    def give_up(self, client: str) -> None:
        """Note that no CONNECT of this client waits any more."""
        self._waiting.pop(client, None)

    def end(self, client: str) -> None:
        """Delete the row of a client that has neither a session nor a connection any more."""
        if client in self.owned:
            self._leaving.setdefault(client, False)

    def on_ask(self, client: str, tenure: int, asker: int | None = None) -> None:
        """Release a client, unless another claim is meant than that by which it is owned."""
        if self.owned.get(client) != tenure:
            return
        if asker is not None:
            self._asked_by[client] = asker
        if client not in self._leaving:
            self._leaving[client] = True
            self._sessions.on_asked(client)

    def on_offered(self, client: str) -> None:
        """Claim a client at once for which a CONNECT waits here."""
        if client in self._waiting:
            self._waiting[client].look_again()

    def is_leaving(self, client: str) -> bool:
        """Tell whether the session of a client may not be changed any more."""
        return client in self._leaving

    # The transactions.

    @property
    def wants_fold(self) -> bool:
        """Tell whether a client cannot leave until the journal is folded."""
        return any(not self._sessions.is_folded(client) for client in self._leaving)

    def next(self, number: int, epoch: str, turn: int, now: float) -> Transaction[Any] | None:
        """Return the next transaction; the kinds take turns."""
        writes = OwnerWrites(number, epoch, turn)
        for _ in range(len(self._kinds)):
            kind = self._kinds[0]
            self._kinds.rotate(-1)
            if (transaction := kind(writes, now)) is not None:
                return transaction
        return None

    def on_done(self, result: Any, now: float) -> None:
        """Note that the transaction was committed."""
        self._done(result, now)

    def _poll(self, writes: OwnerWrites, now: float) -> Transaction[Any] | None:
        if now < self._poll_at:
            return None
        self._done = self._on_polled
        return writes.read_asks()

    def _on_polled(self, result: tuple[Rows, float], now: float) -> None:
        asks, time = result
        self._poll_at = now + POLL_S
        self._sessions.on_time(time, now)
        self._consumed = [row["client"] for row in asks]
        for row in asks:
            self.on_ask(row["client"], row["tenure"])

    def _forget_asks(self, writes: OwnerWrites, now: float) -> Transaction[Any] | None:
        if not self._consumed:
            return None
        self._done = self._on_asks_forgotten
        return writes.delete_asks(self._consumed)

    def _on_asks_forgotten(self, result: None, now: float) -> None:
        self._consumed = []

    def _release(self, writes: OwnerWrites, now: float) -> Transaction[Any] | None:
        ready = [client for client in self._leaving if self._sessions.is_folded(client)]
        ready = ready[:CLIENTS_MAX]
        if not ready:
            return None
        self._done = lambda result, now: self._on_released(ready, now)
        offers = [client for client in ready if self._leaving[client]]
        return writes.release(offers, [client for client in ready if not self._leaving[client]])

    def _on_released(self, clients: list[str], now: float) -> None:
        for client in clients:
            del self.owned[client]
            if self._leaving.pop(client):
                self._offered[client] = now
            asker = self._asked_by.pop(client, None)
            if asker is not None:
                self._bus.tell_offered(asker, client)
            if client in self._waiting:
                self._waiting[client].look_again()
            self._sessions.on_released(client)

    def _claim(self, writes: OwnerWrites, now: float) -> Transaction[Any] | None:
        due = {
            client: wait
            for client, wait in self._waiting.items()
            if wait.again_at <= now and client not in self._leaving
        }
        batch = dict(list(due.items())[:CLIENTS_MAX])
        back = [client for client in self.to_take_back(now) if client not in batch]
        if not batch and not back:
            return None
        self._done = lambda result, now: self._on_claimed(batch, back, result, now)
        clients = sorted(client for client in batch if client not in self.owned)
        self._unsure.update(clients)
        asks = [_ask(wait.asked) for _, wait in sorted(batch.items()) if wait.asked is not None]
        return writes.claim(clients, back, self._sessions.select(clients + back), asks)

    def to_take_back(self, now: float) -> list[str]:
        """Return clients that may be this number's without a CONNECT that waits for them."""
        late = {c for c, since in self._offered.items() if now >= since + TAKE_BACK_S}
        return sorted((late | self._unsure) - self.owned.keys())[:CLIENTS_MAX]

    def _on_claimed(
        self, batch: dict[str, _Wait], back: list[str], claimed: Claimed, now: float
    ) -> None:
        self._sessions.on_time(claimed.time, now)
        gained = [
            row.client
            for row in claimed.owners.values()
            if row.number == self.number and not row.is_offered
        ]
        for client in gained:
            self.owned[client] = claimed.owners[client].tenure
        for client in [*batch, *back]:
            self._offered.pop(client, None)
            self._unsure.discard(client)
        self._sessions.on_claimed(gained, claimed.sessions)
        for client, wait in batch.items():
            if self._waiting.get(client, wait) is not wait or client in self._leaving:
                continue  # it came after the transaction had begun, or was asked for since
            if client in self.owned:
                self._waiting.pop(client, None)
                self._sessions.on_owned(client)
            elif client in self._waiting:
                self._ask(wait, claimed.owners.get(client), now)
        for client in back:
            if client in self.owned and client not in self._waiting:
                self._sessions.on_owned(client)

    def _ask(self, wait: _Wait, row: OwnerRow | None, now: float) -> None:
        """Ask the owner over the bus, and in the table with the next claim."""
        if row is None or row.is_offered:
            return  # it is over, or free: claim it at once
        wait.ask(row, now)
        self._bus.ask(row.number, row.client, row.tenure)


def _ask(row: OwnerRow) -> Row:
    return {"client": row.client, "number": row.number, "tenure": row.tenure}

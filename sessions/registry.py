"""The sessions by client id, connected or not."""

from __future__ import annotations

from collections.abc import Iterator

from sessions.journal.journal import Journal
from sessions.messages.backlog import Backlog
from sessions.messages.memory_pool import MemoryPool
from sessions.outbound import Outbound
from sessions.session import Session


class SessionRegistry:
    __slots__ = ("_backlog", "_journal", "_receive_maximum", "_sessions", "marked", "state")

    def __init__(
        self,
        backlog: Backlog,
        receive_maximum: int,
        journal: Journal | None = None,
        state_bytes_max: int = 1 << 62,
    ) -> None:
        self._backlog = backlog
        self._journal = journal
        self._receive_maximum = receive_maximum
        # Their names and wills. Each may have a sixteenth of what the others leave.
        self.state = MemoryPool(state_bytes_max, 16)
        self._sessions: dict[str, Session] = {}
        self.marked: dict[str, int] = {}  # client id -> the group that its CONNACK waits for

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def create(self, client_id: str, now: float) -> Session:
        assert client_id not in self._sessions
        outbound = Outbound(client_id, self._backlog, self._journal)
        session = Session(outbound, receive_maximum=self._receive_maximum, now=now, pool=self.state)
        self._sessions[client_id] = session
        return session

    def remove(self, session: Session, now: float) -> None:
        """Forget the session; the caller removes its subscriptions."""
        session.clear(now)
        del self._sessions[session.client_id]

    def give_away(self, session: Session) -> None:
        """Forget a session that another broker has from now on; its rows stay."""
        session.give_away()
        del self._sessions[session.client_id]

    # CONNACK.

    def mark(self, client_id: str) -> None:
        """Let the client's next CONNACK wait for the commit of the session's end or change."""
        journal = self._journal
        if journal is None:
            return
        marked = self.marked
        while marked:  # the oldest are first
            first = next(iter(marked))
            if marked[first] > journal.committed:
                break
            del marked[first]
        marked.pop(client_id, None)
        marked[client_id] = journal.number + 1

    def is_on_disk(self, client_id: str) -> bool:
        """Tell whether the state of the session that CONNACK reports is on disk."""
        journal = self._journal
        return journal is None or self.marked.get(client_id, 0) <= journal.committed

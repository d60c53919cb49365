"""Every session by its client id, connected or not."""

from __future__ import annotations

from collections.abc import Iterator

from sessions.journal.journal import Journal
from sessions.messages.backlog import Backlog
from sessions.session import Session


class SessionRegistry:
    __slots__ = ("_marked", "_sessions", "budget", "journal", "receive_maximum")

    def __init__(
        self, budget: Backlog, receive_maximum: int, journal: Journal | None = None
    ) -> None:
        self.budget = budget
        self.journal = journal
        self.receive_maximum = receive_maximum
        self._sessions: dict[str, Session] = {}
        self._marked: dict[str, int] = {}  # client id: the group that its CONNACK waits for

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def create(self, client_id: str, now: float) -> Session:
        assert client_id not in self._sessions
        session = Session(client_id, self.budget, receive_maximum=self.receive_maximum, now=now)
        session.journal = self.journal
        self._sessions[client_id] = session
        return session

    def remove(self, session: Session, now: float) -> None:
        """Forget the session; its subscriptions are the caller's to take out first."""
        session.clear(now)
        del self._sessions[session.client_id]

    # What clients are told when they come.

    def mark(self, client_id: str) -> None:
        """The client is told what was just recorded: that its session is over, or changed."""
        journal = self.journal
        if journal is None:
            return
        marked = self._marked
        while marked:  # the oldest are in front
            first = next(iter(marked))
            if marked[first] > journal.committed:
                break
            del marked[first]
        marked.pop(client_id, None)
        marked[client_id] = journal.number + 1

    def is_on_disk(self, client_id: str) -> bool:
        """Whether what the client is told about its session is safe."""
        return self.journal is None or self._marked.get(client_id, 0) <= self.journal.committed

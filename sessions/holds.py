"""What waits for the store: of a session before it is sent, and whoever else wants to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sessions.journal import Hold, Item
from sessions.message import Message

if TYPE_CHECKING:
    from sessions.session import Session


class Parked(Hold):
    """QoS 2 messages that leave once their packet ids are on disk: else a crash could send
    them again under others."""

    __slots__ = ("box", "sent", "session")

    def __init__(self, session: Session, sent: list[tuple[int, Item]]) -> None:
        super().__init__()
        self.session = session
        self.box = session.outbox
        self.sent = sent

    def release(self, now: float) -> None:
        try:
            self._send(now)
        except Exception as error:  # it costs this client its connection: the next one repeats
            self.box.owner.on_error(error, b"", now)

    def refuse(self, now: float) -> None:
        """Their publisher is told that they are not taken, so nobody gets them from here."""
        session = self.session
        window = session.window
        for packet_id, item in self.sent:
            entry = window.unacked.get(packet_id)
            if entry is not None and entry[0] is item[0]:
                window.forget(packet_id)
                session.budget.drop("not_stored")
        session.pump(now)

    def _send(self, now: float) -> None:
        """Their packet ids are on disk. On another connection than then, they are repeated."""
        session = self.session
        if session.outbox is not self.box:
            return
        unacked = session.window.unacked
        ids: list[int] = []
        messages: list[Message] = []
        grant = self.sent[0][1][1]
        for packet_id, item in self.sent:
            entry = unacked.get(packet_id)
            if entry is None or entry[0] is not item[0]:
                continue  # compiled, a tuple has no identity, so the message has to do
            if messages and (item[1] is not grant or item[0].envelope is not messages[0].envelope):
                session.send_run(ids, messages, grant, now)
                ids, messages = [], []
            grant = item[1]
            ids.append(packet_id)
            messages.append(item[0])
        if messages:
            session.send_run(ids, messages, grant, now)


class Resumption(Hold):
    """What a resumed session repeats, once all of it is on disk as it stands."""

    __slots__ = ("box", "session")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.box = session.outbox

    def release(self, now: float) -> None:
        if self.session.outbox is self.box:
            self.session.is_gated = False
            try:
                self.session.repeat(now)
            except Exception as error:
                self.box.owner.on_error(error, b"", now)


class Then(Hold):
    """Something to be done once what was recorded is on disk."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[float], None]) -> None:
        super().__init__()
        self.then = then

    def release(self, now: float) -> None:
        self.then(now)

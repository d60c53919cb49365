"""What waits for the store: of a session before it is sent, and whoever else wants to know."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.constants import PUBREL
from mqtt_broker.codec.encode import encode_ack
from sessions.journal.journal import Item
from sessions.journal.transaction import PendingCommit, PublishTransaction
from sessions.messages.message import DeliveryOptions, Message
from sessions.messages.outbox import CONGESTED

if TYPE_CHECKING:
    from sessions.session import Session

NOTHING: Final[deque[int]] = deque(maxlen=0)  # shared by the many; an own one is 600 bytes


class PendingPublish(PendingCommit):
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
        """Their packet ids are on disk. On another connection than then, they are repeated.

        Nor do they overtake what was numbered before and is kept back.
        """
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
            if item[0].envelope.is_expired(now):
                session.expire(packet_id, item[0], now)
                continue
            if session.gates or session.repeats:
                put_behind(session, [packet_id])
                continue
            if messages and (item[1] is not grant or item[0].envelope is not messages[0].envelope):
                session.send_run(ids, messages, grant, now)
                ids, messages = [], []
            grant = item[1]
            ids.append(packet_id)
            messages.append(item[0])
        if messages:
            session.send_run(ids, messages, grant, now)
        if session.has_waiting:
            session.pump(now)


class PendingResume(PendingCommit):
    """What a resumed session repeats, once all of it is on disk as it stands."""

    __slots__ = ("box", "session")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.box = session.outbox

    def release(self, now: float) -> None:
        session = self.session
        if session.outbox is self.box:
            session.gates -= 1
            session.is_resuming = False
            try:
                repeat(session, now)
            except Exception as error:
                self.box.owner.on_error(error, b"", now)


def repeat(session: Session, now: float) -> None:
    """Send a resumed session's window again, the PUBRELs first."""
    for packet_id in session.window.releasing:
        session.outbox.put(encode_ack(PUBREL, packet_id))
    session.repeats = deque(session.window.unacked) or NOTHING
    session.pump(now)


def put_behind(session: Session, packet_ids: list[int]) -> None:
    """Note that these were numbered, and are written for the first time when it is their turn."""
    if session.repeats is NOTHING:
        session.repeats = deque()
    session.repeats.extend(packet_ids)
    if session.unsent is None:
        session.unsent = set()
    session.unsent.update(packet_ids)


def deliver_behind(
    session: Session,
    messages: list[Message],
    grant: DeliveryOptions,
    n: int,
    txn: PublishTransaction | None,
    now: float,
) -> None:
    """Keep messages that may not leave now: in the queue, or in the window if only SUBACK keeps
    them back, for then they have the room they would have behind it."""
    room = 0
    if (
        session.gates
        and not session.is_resuming
        and session.queue is None
        and session.outbox.state < CONGESTED
    ):
        room = max(0, min(session.window.room, len(messages)))
    if room < len(messages):
        session.enqueue(messages[room:], grant, n + room if n else 0, txn, now)
    if not room:
        return
    messages = messages[:room]
    items: list[Item] = []
    for place, message in enumerate(messages):
        items.append((message, grant, n + place if n else 0, txn))
    ids = session.window.admit(items, grant.qos)
    if txn is not None:
        txn.deliver(session.sid, n, messages, grant, ids)
        # What SUBSCRIBE brings has no message of its own, and SUBACK waits for it anyway.
        if grant.qos == 2 and txn.awaits_commit and txn.messages:
            txn.hold(PendingPublish(session, list(zip(ids, items, strict=True))))
            return
    put_behind(session, ids)


def send_numbered(session: Session, now: float, bytes_max: int = 1 << 62) -> bool:
    """Write what has its packet id already, as far as the peer allows; False when its window is
    full, or `bytes_max` are written."""
    window = session.window
    repeats = session.repeats
    while repeats and session.outbox.state < CONGESTED:
        if bytes_max < 0 or (
            len(window.unacked) - len(repeats) + len(window.releasing) >= window.limit
        ):
            return False
        packet_id = repeats.popleft()
        is_first = session.unsent is not None and packet_id in session.unsent
        if is_first and session.unsent is not None:
            session.unsent.remove(packet_id)
        entry = window.unacked.get(packet_id)
        if entry is None:
            continue
        message, grant, _, _ = entry
        if is_first and message.envelope.is_expired(now):
            session.expire(packet_id, message, now)
            continue
        # What was sent once does not expire. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
        session.send_one(packet_id, message, grant, now, dup=not is_first)
        bytes_max -= message.envelope.size
    return True


class PendingCall(PendingCommit):
    """Something to be done once what was recorded is on disk."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[float], None]) -> None:
        super().__init__()
        self.then = then

    def release(self, now: float) -> None:
        self.then(now)

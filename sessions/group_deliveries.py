"""Messages of shared subscriptions while a client has them: they are a member's on loan.

A session that ends with its connection has no number in the store. What it is given by a group
that outlives it is stored under the group until somebody acknowledges it, and is recognised by
a place `n` in a session whose `sid` is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.journal.journal import Item, Journal

if TYPE_CHECKING:
    from sessions.session import Session


def finish(journal: Journal, items: list[Item], now: float) -> None:
    """Record that these are over, each with its own group. Those without a place are nobody's."""
    by_sid: dict[int, list[Item]] = {}
    for item in items:
        group = item[1].group
        if not item[2] or group is None:
            continue
        if group.sid:
            by_sid.setdefault(group.sid, []).append(item)
        elif item[3] is not None:
            item[3].on_delivered(now)  # the group is gone, and with it what it stored
    for sid, found in by_sid.items():
        journal.on_done(sid, found, now)


def take_back(session: Session, groups: list[object]) -> list[Item]:
    """Take from a session what came from these shared subscriptions and may go to another member.

    Everything that waits, and QoS 1 messages under way; a QoS 2 exchange that began is
    finished with this client or not at all. [MQTT-4.8.2-4], [MQTT-4.8.2-5]
    """
    taken: list[Item] = []
    window = session.window
    for packet_id, entry in list(window.unacked.items()):
        if packet_id not in window.qos2 and _is_of(session, entry, groups):
            window.forget(packet_id)
            taken.append(entry)
    queue = session.queue
    if queue is not None:  # the store alone never has any of these
        waiting = queue.take(lambda item: _is_of(session, item, groups))
        size = sum(item[0].envelope.size for item in waiting)
        session.budget.memory_bytes -= size
        session.budget.queued_messages -= len(waiting)
        session.budget.queued_bytes -= size
        taken += waiting
        if not len(queue):
            session.queue = None
    return taken


def _is_of(session: Session, item: Item, groups: list[object]) -> bool:
    """Of a group that it left, too, it has what that group still stores."""
    group = item[1].group
    return group in groups or (group is not None and item[2] > 0 and not session.sid)

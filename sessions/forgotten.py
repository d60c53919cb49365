"""Deliveries whose session, or shared subscription, is over: the list may be long."""

from __future__ import annotations

from sessions.journal.transaction import Delivery
from sessions.messages.work import DONE, FORGOTTEN, MORE, Work


class ForgottenDeliveries:
    """Lets go of deliveries, a share a turn; their end is recorded already."""

    __slots__ = ("_items", "_work")

    def __init__(self, items: list[Delivery], work: Work) -> None:
        self._items = items
        self._work = work

    def go_on(self, now: float) -> int:
        """Let go of some of them; see `WorkItem`."""
        work = self._work
        items = self._items
        while items:
            _, _, place, txn = items.pop()
            work.spent += FORGOTTEN
            if place and txn is not None:
                txn.on_delivered(now)
            if work.spent >= work.limit and items:
                return MORE
        return DONE

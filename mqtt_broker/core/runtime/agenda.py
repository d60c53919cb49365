"""The agenda: work that is too much for one turn, and goes on a slice a turn.

A client may ask for more in one packet than others can wait for: a message to very many, very many
filters, the end of a session that holds much. Such work is a `WorkItem`. It does a slice, keeps in
its own fields how far it is, and is asked again in the next turn, after everybody with input was
served. So it waits as data, like everything else that waits.

An item of a client's own is its connection's `operation`: see `Connection.begin`. The client is
not read meanwhile, and its other packets wait behind it, so order holds without being looked at.

How to write one:

    class Counting:
        def go_on(self, now: float) -> int:
            while self.left:
                self.left -= 1        # one step at least, however small the share is
                self._work.spent += 5
                if self._work.is_over:
                    return MORE
            return DONE

Between two slices anything may happen: whoever it is about may have gone, its session may have
ended, and what it looks at may have changed. An item holds no iterator over what others change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sessions.messages.work import MORE, Work, WorkItem


class Agenda:
    """The items that go on, in turn."""

    __slots__ = ("_on_bug", "_work", "items")

    def __init__(self, work: Work, on_bug: Callable[[Exception], None]) -> None:
        self._work = work
        self._on_bug = on_bug
        self.items: deque[WorkItem] = deque()

    def add(self, item: WorkItem) -> None:
        """Let an item go on from the next turn on."""
        self.items.append(item)

    def run(self, now: float) -> None:
        """Give each item a share in turn, until the turn is over; the next one goes on there."""
        work = self._work
        items = self.items
        end = work.spent + work.turn_units
        for _ in range(len(items)):
            item = items.popleft()
            work.begin()
            try:
                if item.go_on(now) == MORE:
                    items.append(item)
            except Exception as error:  # ours; it costs this item, and none of the others
                self._on_bug(error)
            if work.spent >= end:
                return

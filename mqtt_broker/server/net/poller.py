"""Poll the MQTT sockets and serve them in turns.

A turn asks the kernel once which sockets are ready, serves each of them, then ends: the broker
writes once to every peer that has output. So a burst from many publishers becomes one write to
their subscriber, without a callback object, a context and a queue for each socket.

The work of a turn is bounded and divided among the sockets that are ready: the more there are, the
less each may bring. Sockets that are left over are served first in the next turn.

`event_loop` calls this inside a `TurnLoop`, or attaches it to any other asyncio loop.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable
from typing import Any, Final

from mqtt_broker.core.interfaces.link import LATER, NOW, SOON
from sessions.messages.work import Work

_READ: Final = 1
_WRITE: Final = 4
EVENTS_MAX: Final = 1024
# All links read into one buffer of this size and keep a copy of the input. Asking `recv` for as
# many bytes would make the allocator map and unmap memory at each call: three more system calls.
READ_BYTES: Final = 262_144
_READ_BYTES_OF_MANY: Final = 65_536  # while more than so many sockets are ready:
_MANY: Final = 8
# With so many messages in flight to a client its acknowledgements are read soon: each one that is
# unread takes a buffer of 2 KB in the kernel.
UNREAD_MAX: Final = 16
# For a wait that ends before its next tick (4 or 10 ms) the kernel programs the hardware timer, and
# again when an event comes first: 7 us a wait on a virtual machine.
LAG_S: Final = 0.01
Act = Callable[[], None]


def nothing() -> None:
    """Do nothing at the end of a turn."""


def _ignore(seconds: float) -> None:
    """Measure nothing."""


def _raise(error: Exception) -> None:
    raise error


class _Epoll:
    """The few calls of `select.epoll` that we use, for systems without epoll."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def fileno(self) -> int:
        """Return the descriptor, which is readable when a socket is; -1: there is none."""
        found = getattr(self._selector, "fileno", None)
        return -1 if found is None else int(found())

    def register(self, fd: int, mask: int) -> None:
        if mask:
            self._selector.register(fd, to_events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self.unregister(fd)
        self.register(fd, mask)

    def unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        ready = self._selector.select(None if timeout < 0 else timeout)
        return [(key.fd, to_mask(events)) for key, events in ready]

    def close(self) -> None:
        self._selector.close()


def to_events(mask: int) -> int:
    """Convert a mask of epoll to one of `selectors`."""
    read = selectors.EVENT_READ if mask & _READ else 0
    return read | (selectors.EVENT_WRITE if mask & _WRITE else 0)


def to_mask(events: int) -> int:
    """Convert a mask of `selectors` to one of epoll."""
    read = _READ if events & selectors.EVENT_READ else 0
    return read | (_WRITE if events & selectors.EVENT_WRITE else 0)


class Poller:
    """The sockets that are served in turns, and the callback that ends a turn.

    Reads of a socket are *deferred* while its peer sends only acknowledgements, which do not
    justify a wake-up of their own. After something was sent to such sockets they are not watched
    for `LAG_S`, and then read many at a time. So a message costs one wake-up and one read, not two
    (paced QoS 1: 19 us instead of 28). The sender can ask for an acknowledgement sooner. While
    nothing was sent to them, these sockets are watched like any other.
    """

    def __init__(self, *, may_lag: bool = False) -> None:
        self.epoll: Any = _new_epoll()
        self.readers: dict[int, Act] = {}
        self.writers: dict[int, Act] = {}
        self.end_turn: Act = nothing
        self.on_turn: Callable[[float], None] = _ignore
        self.is_wanted = False  # the event loop has other work
        self.read_bytes = READ_BYTES  # that a link may read at a time
        self._work: Work = Work()
        self._left: list[tuple[int, int]] = []  # events that the last turn did not serve
        self.on_error: Callable[[Exception], None] = _raise
        self._masks: dict[int, int] = {}  # what each socket waits for; 0: it is not watched
        # Deferred reads.
        has_descriptor = self.epoll.fileno() >= 0  # as epoll and kqueue have
        self._deferred_epoll: Any = _new_epoll() if has_descriptor else self.epoll
        self._deferred_fd: int = self._deferred_epoll.fileno()
        # This loop's own wait can end after `LAG_S`.
        self._may_lag = may_lag and has_descriptor
        self.deferred: set[int] = set()
        self._expects = False  # something was sent to one of them in this turn
        self._urgency = LATER  # the most urgent of what was sent since they were read
        self._lag_ends = 0.0  # when the next turn reads them at the latest
        self._has_asked = False  # they were read in this turn
        self._is_nested = True  # watched like the others: nothing is deferred now
        if has_descriptor:
            self.epoll.register(self._deferred_fd, _READ)

    def bound(self, work: Work) -> None:
        """End each turn when this counter reaches the work of a turn."""
        self._work = work

    def measure(self, on_turn: Callable[[float], None]) -> None:
        """Call `on_turn` with the seconds that each turn took."""
        self.on_turn = on_turn

    def add(self, fd: int, on_readable: Act) -> None:
        """Call `on_readable` in every turn in which the socket has input."""
        self.readers[fd] = on_readable
        self._masks[fd] = _READ
        self.epoll.register(fd, _READ)

    def watch(self, fd: int, on_readable: Act | None, on_writable: Act | None) -> None:
        """Change the callbacks of a socket that was added."""
        mask = 0
        self.readers.pop(fd, None)
        self.writers.pop(fd, None)
        if on_readable is not None:
            self.readers[fd] = on_readable
            mask = _READ
        if on_writable is not None:
            self.writers[fd] = on_writable
            mask |= _WRITE
        epoll = self._deferred_epoll if fd in self.deferred else self.epoll
        before, self._masks[fd] = self._masks[fd], mask
        # A socket that waits for nothing is removed: epoll would report at every call that its
        # peer has hung up.
        if not before:
            if mask:
                epoll.register(fd, mask)
        elif mask:
            epoll.modify(fd, mask)
        else:
            epoll.unregister(fd)

    def set_deferred(self, fd: int, is_deferred: bool) -> None:
        """Start or stop deferring the reads of a socket that waits for input only."""
        if is_deferred:
            self.epoll.unregister(fd)
            self._deferred_epoll.register(fd, _READ)
            self.deferred.add(fd)
        else:
            self._deferred_epoll.unregister(fd)
            self.deferred.discard(fd)
            self.epoll.register(fd, _READ)

    def expect(self, urgency: int) -> None:
        """Note that something was sent to a deferred socket, and how urgent its answer is."""
        self._expects = True
        if urgency > self._urgency:
            self._urgency = urgency

    def remove(self, fd: int) -> None:
        """Forget a socket; one that was never added is ignored."""
        self.readers.pop(fd, None)
        self.writers.pop(fd, None)
        if self._masks.pop(fd, 0):
            (self._deferred_epoll if fd in self.deferred else self.epoll).unregister(fd)
        self.deferred.discard(fd)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Serve turns for `timeout` seconds (below 0: for ever), or until the loop has other work.

        Returns the events of other sockets. `is_wanted` ends the wait from inside a turn.
        """
        clock = time.monotonic
        deadline = clock() + seconds if seconds > 0 else 0.0
        poll = self.epoll.poll
        self.is_wanted = False
        while True:
            if self._urgency == NOW:  # something was sent since the turn
                self._settle()
            lags = not self._is_nested  # deferred acknowledgements may arrive without a wake-up
            if self._left:
                limit = 0.0
            else:
                limit = LAG_S if lags and not 0 <= seconds < LAG_S else seconds
            events = poll(limit, EVENTS_MAX)
            others = self.serve(events) if events or lags or self._left else events
            if others or self.is_wanted or seconds == 0:
                return others
            if seconds > 0:
                seconds = deadline - clock()
                if seconds <= 0:
                    return []

    def serve(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Serve one turn; return the events of other sockets."""
        began = time.monotonic()
        others: list[tuple[int, int]] = []
        readers = self.readers
        writers = self.writers
        if not self._is_nested and (
            not events or self._urgency or time.monotonic() >= self._lag_ends
        ):
            events += self._poll_deferred()
        if self._left:
            events = self._behind_left(events)
        work = self._work
        end = work.spent + work.turn_units
        is_divided = len(events) > 2
        if is_divided:
            self._divide(len(events))
        for at, (fd, mask) in enumerate(events):
            if work.spent >= end:
                self._left = events[at:]
                break
            # Anything but "writable" (an error, a hang-up) is found by reading.
            try:
                on_readable = readers.get(fd)
                if on_readable is not None:
                    if mask & ~_WRITE:
                        on_readable()
                    if mask & _WRITE and fd in writers:
                        writers[fd]()
                elif fd in writers:
                    writers[fd]()
                elif fd == self._deferred_fd:
                    events += self._poll_deferred()  # this loop goes on with them
                elif fd not in self._masks:
                    others.append((fd, mask))
            except Exception as error:  # a bug: it may not end the turn for the other sockets
                self.remove(fd)
                self.on_error(error)
        if is_divided:
            self._divide(1)
        self.end_turn()
        if events:
            self.on_turn(time.monotonic() - began)
        self._settle()
        return others

    def _behind_left(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Append events to those left over, each socket once."""
        left, self._left = self._left, []
        known = {fd for fd, _ in left}
        return left + [event for event in events if event[0] not in known]

    def _divide(self, count: int) -> None:
        """Divide the turn among so many sockets."""
        self.read_bytes = READ_BYTES if count <= _MANY else _READ_BYTES_OF_MANY
        self._work.divide(count)

    def _poll_deferred(self) -> list[tuple[int, int]]:
        """Return the events of deferred sockets, which are then all read."""
        self._has_asked = True
        ready: list[tuple[int, int]] = self._deferred_epoll.poll(0, EVENTS_MAX)
        self._urgency = LATER if len(ready) < EVENTS_MAX else SOON  # there may be more of them
        return ready

    def _settle(self) -> None:
        """Decide whether deferred sockets may wake up the next wait."""
        if self._is_nested:
            lags = self._expects and self._may_lag and self._urgency < NOW
        else:
            lags = self._urgency < NOW and (self._expects or not self._has_asked)
        if lags and (self._is_nested or self._has_asked):
            self._lag_ends = time.monotonic() + LAG_S
        if lags is self._is_nested:
            self._is_nested = not lags
            self.epoll.modify(self._deferred_fd, 0 if lags else _READ)
        if self._is_nested:
            self._urgency = LATER
        self._expects = self._has_asked = False

    def serve_ready(self) -> None:
        """Serve one turn with the sockets that are ready now."""
        self.serve(self.epoll.poll(0, EVENTS_MAX))

    def close(self) -> None:
        """Close both epoll descriptors."""
        self.epoll.close()
        self._deferred_epoll.close()


def _new_epoll() -> Any:
    return select.epoll() if hasattr(select, "epoll") else _Epoll()

"""Count work in units of about a tenth of a microsecond of compiled code, and bound it.

One thread serves everybody, in turns. What one client, or one item of the agenda, may do in a turn
is a share: `begin` says where it ends, whoever works adds to `spent` what it did, and stops when
`spent` has come to `limit`. There is no clock in it: the same input does the same work everywhere,
and stops at the same place.

An amount is what the work costs about, for few and for many. What costs less than a hundredth of a
share, and does not grow with anything, need not be counted.
"""

from __future__ import annotations

from typing import Final, Protocol

SHARE_UNITS: Final = 50_000  # of one client or item in a turn: 5 ms where the core is compiled
TURN_UNITS: Final = 100_000  # of all clients together in a turn, and of all items again
UNBOUNDED: Final = 1 << 62

# What a slice of an item of work says.
DONE: Final = 0
MORE: Final = 1  # it goes on in the next turn
WAITS: Final = 2  # for something that adds it to the agenda again

# Amounts.
PACKET: Final = 5  # decoded, and told apart
PUBLISHED: Final = 4  # a message at QoS 1 or 2, beside its deliveries
DELIVERY: Final = 10  # of a message at QoS 1 or 2 to one session, or of one that is not plain
CHECKED: Final = 50  # a payload, beside its length
ACKNOWLEDGED: Final = 4  # a packet id
FORGOTTEN: Final = 1  # a delivery to a session that ends
LOOKED_AT: Final = 2  # a delivery, whether it goes to another member of a group
FILTER: Final = 30  # subscribed to, or no longer
STREAM: Final = 500  # subscribed to, or no longer, with the reads that begin for it
CHARS_A_UNIT: Final = 8  # of the place where reading a stream is to begin
ROUTE: Final = 30  # of a new topic
MATCHED: Final = 5  # a subscription found for a new topic
FILTER_CHECKED: Final = 4  # a filter of a packet, before it is acted upon
VISITED: Final = 3  # a node of the tree of retained messages
COPIED: Final = 5  # a retained message for one subscription, beside its delivery
RECORDED: Final = 15  # more for one that is recorded
TIMER: Final = 10
CONNECTED: Final = 250
CLOSED: Final = 200
WRITE: Final = 40  # to a peer, whatever the size
BYTES_A_UNIT: Final = 500  # written or read


class WorkItem(Protocol):
    """Work that is done in slices."""

    def go_on(self, now: float) -> int:
        """Do a slice: one step at least, and no more when `Work.is_over`.

        Returns DONE, MORE or WAITS. Who says WAITS has arranged to be added again.
        """


class WorkQueue(Protocol):
    """The agenda, for those who only add to it."""

    def add(self, item: WorkItem) -> None:
        """Let an item go on from the next turn on."""


class Work:
    """The work that was done, and where the share of whoever works ends."""

    __slots__ = ("_share_max", "deliveries_max", "limit", "share", "spent", "turn_units")

    def __init__(self, share: int = SHARE_UNITS, turn_units: int = TURN_UNITS) -> None:
        self.share = share
        self._share_max = share
        self.turn_units = turn_units
        self.deliveries_max = max(1, share // (2 * DELIVERY))  # that are made without a look at it
        self.spent = 0  # since the start; only differences say anything
        self.limit = UNBOUNDED  # nobody began a share: what the embedder asks for is done at once

    def begin(self) -> None:
        """Give a share to whoever works next."""
        self.limit = self.spent + self.share

    def narrow(self, part: int) -> int:
        """Allow only a part of a share for what comes next; returns the limit to `widen` to."""
        limit = self.limit
        self.limit = min(limit, self.spent + self.share // part)
        return limit

    def widen(self, limit: int) -> None:
        """Allow again what was allowed before `narrow`."""
        self.limit = limit

    def divide(self, count: int) -> None:
        """Divide a turn among so many: nobody's share is less than a twentieth of a whole one."""
        self.share = min(self._share_max, max(self.turn_units // count, self._share_max // 20, 1))

    def lift(self) -> None:
        """Give a share without an end: nobody waits."""
        self.limit = UNBOUNDED

    def stop(self) -> None:
        """End the share: what is left goes on in other turns."""
        self.limit = self.spent

    @property
    def is_over(self) -> bool:
        """Tell whether the share is used up."""
        return self.spent >= self.limit

"""Consumer groups: members share the partitions of a stream, and the group keeps the offsets.

    ConsumerGroup  owns the cursors, assigns them to members, keeps the committed offsets
    Member         one subscription `$share/<group>/$stream/<name>`, with the cursors it has

The group's position in a partition is the first unacknowledged record. Partitions are assigned
evenly to the members that are online, and as few of them move as possible. When a partition moves
from a connected member, it is handed over once its records in flight are acknowledged, or after
`HANDOVER_S`. Records in flight to a lost member are read again by the next one.

A record whose delivery failed (its member was lost, or answered with an error) is delivered again;
after more than `redeliveries_max` failures it becomes a dead letter. Records that were in flight to
a lost member are delivered again one at a time, so that a record that crashes its consumers is
identified, and no other record is counted as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mqtt_broker.core.runtime.timers import Timer
from mqtt_broker.streams.replay.context import ReplayContext
from mqtt_broker.streams.replay.dead_letters import dead_letter_of
from mqtt_broker.streams.replay.pages import Page, PageReader
from mqtt_broker.streams.replay.subscription import PartitionCursor, StreamSubscription
from mqtt_broker.streams.write.stream import Stream
from sessions.session import Subscription
from sessions.sources import SourcedMessage

HANDOVER_S: Final = 10.0  # how long a handover waits for records in flight
RETRY_S_MIN: Final = 0.1  # before a failed record is sent again; doubled with each failure
RETRY_S_MAX: Final = 30.0
OUTSTANDING_MAX: Final = 4_096  # records after the first unacknowledged one


class GroupCursor(PartitionCursor):
    """A partition of a group."""

    __slots__ = (
        "assigned_to", "due_at", "failures", "moving_since", "one_at_a_time_until", "owner",
        "redeliver", "redeliver_until", "resent",
    )  # fmt: skip

    def __init__(self, partition: int, reader: PageReader, offset: int) -> None:
        super().__init__(partition, reader, offset)
        self.owner: Member | None = None
        self.assigned_to: Member | None = None  # the member that is to get it
        self.moving_since = 0.0  # when the handover started
        self.redeliver: set[int] = set()  # below `redeliver_until`, only these are sent
        self.redeliver_until = 0
        self.failures: dict[int, int] = {}  # by offset, of unacknowledged records
        self.resent = -1  # the offset sent again, until its exchange ends
        self.due_at = 0.0  # when the first that failed may be sent again
        self.one_at_a_time_until = 0  # the first position where records need not be sent singly

    @property
    def one_at_a_time(self) -> bool:
        """Tell whether one of the next records may have crashed a member."""
        return (
            self.position < self.one_at_a_time_until
            and not self.is_stuck
            and not self.in_flight.failed
            and self.resent < 0
        )

    @property
    def is_blocked(self) -> bool:
        """Tell whether new records must wait for failed or old ones."""
        return (
            self.is_stuck
            or len(self.in_flight.failed) > 0
            or self.resent >= 0
            or self.next_send - self.position >= OUTSTANDING_MAX
        )

    def unassign(self) -> None:
        """Take the partition from its member, until it is assigned again."""
        self.assigned_to = None

    def finish(self, offset: int) -> None:
        """Do not send this record any more."""
        self.in_flight.end(offset)
        self.failures.pop(offset, None)
        self.redeliver.discard(offset)

    def abandon(self, *, is_lost: bool) -> None:
        """Read records in flight to a removed member again; after a loss, send them singly."""
        in_flight = self.in_flight
        position = self.position
        if in_flight:
            offsets = in_flight.offsets()
            self.redeliver_until = max(self.redeliver_until, self.next_send)
            self.redeliver.update(offsets)
            if is_lost:
                self.one_at_a_time_until = max(self.one_at_a_time_until, max(offsets) + 1)
                for offset in offsets:
                    if offset not in in_flight.failed:  # which was counted when it failed
                        self.failures[offset] = self.failures.get(offset, 0) + 1
        in_flight.clear()
        self.resent = -1
        self.seek(position)


class Member(StreamSubscription):
    """A subscription that is a member of a group."""

    def __init__(
        self,
        context: ReplayContext,
        stream: Stream,
        subscription: Subscription,
        group: ConsumerGroup,
    ) -> None:
        super().__init__(context, stream, subscription)
        self.group = group
        self.cursors: list[GroupCursor] = []  # that it owns, by their partitions

    @property
    def client_id(self) -> str:
        return self.session.client_id

    @property
    def one_at_a_time(self) -> bool:
        return any(cursor.one_at_a_time and cursor.assigned_to is self for cursor in self.cursors)

    def cursor_of(self, message: SourcedMessage) -> GroupCursor | None:
        cursor = self.group.cursors[message.partition]
        return cursor if cursor.owner is self else None

    def may_send(self, cursor: PartitionCursor) -> bool:
        assert isinstance(cursor, GroupCursor)
        return (
            cursor.owner is self
            and cursor.assigned_to is self
            and not cursor.is_blocked
            and (cursor.one_at_a_time or not self.one_at_a_time)
        )

    def _room(self) -> int:
        room = super()._room()
        return min(room, 1 - self.in_window) if self.one_at_a_time else room

    def select(
        self, cursor: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        assert isinstance(cursor, GroupCursor)
        if not self.one_at_a_time and cursor.next_send >= cursor.redeliver_until:
            return page.take(room)
        chosen: list[SourcedMessage] = []
        while page.taken < len(page.messages) and len(chosen) < room:
            message = page.messages[page.taken]
            page.taken += 1
            if self._is_wanted(cursor, message, now):
                chosen.append(message)
            else:
                cursor.next_send = max(cursor.next_send, message.offset + 1)
        return chosen

    def _is_wanted(self, cursor: GroupCursor, message: SourcedMessage, now: float) -> bool:
        offset = message.offset
        if offset >= cursor.redeliver_until:
            return True
        if offset not in cursor.redeliver or self.group.dead_letter(cursor, message, now):
            return False
        cursor.redeliver.discard(offset)
        self.context.counters.redelivered += 1
        return True

    def resend(self, room: int, now: float) -> None:
        """Send the first failed record of each partition again, if its delay has passed."""
        for cursor in self.cursors:
            is_due = cursor.in_flight.failed and cursor.resent < 0 and cursor.due_at <= now
            if is_due and room > 0:
                message = cursor.in_flight.take_failed()
                cursor.resent = message.offset
                self.context.counters.redelivered += 1
                self._put([message], now)
                room -= 1

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        if self.is_over:
            return
        for message in messages:
            cursor = self.cursor_of(message)
            if cursor is None or message.offset not in cursor.in_flight:
                continue
            if cursor.resent == message.offset:
                cursor.resent = -1
            if reason >= 0x80:
                self.group.on_failed(cursor, message, now)
            else:
                cursor.finish(message.offset)
        self.group.on_done(self, now)

    def on_moved(self, cursor: PartitionCursor) -> None:
        self.context.positions.note(self.group)

    def end(self, error: Exception, now: float) -> None:
        self.group.end(error, now)

    def on_void_read(self, cursor: PartitionCursor, now: float) -> None:
        self.group.hand_over(now)
        if isinstance(cursor, GroupCursor) and cursor.owner is None:
            self.context.read_ahead.close(cursor)

    def tell(self, error: Exception, now: float) -> None:
        for member in self.group.subscriptions:
            if member.session.is_online:
                super(Member, member).tell(error, now)

    # Its cursors.

    def receive(self, cursor: GroupCursor) -> None:
        """Start reading this partition."""
        cursor.owner = self
        self.cursors.append(cursor)
        self.cursors.sort(key=lambda one: one.partition)
        if cursor.one_at_a_time:  # new records wait until the failing one is identified
            self.drop_pages()

    def release(self, cursor: GroupCursor) -> None:
        """Stop reading this partition."""
        self.drop_page(cursor)
        cursor.owner = None
        self.context.read_ahead.close(cursor)
        self.cursors.remove(cursor)


class ConsumerGroup:
    """The members of one group on one stream, and the offsets they have reached together."""

    def __init__(
        self,
        context: ReplayContext,
        stream: Stream,
        name: str,
        owner: str,
        founder: str,
        on_end: Callable[[ConsumerGroup, Exception, float], None],
    ) -> None:
        self.context = context
        self.stream = stream
        self.name = name
        self.owner = owner  # its name in the store
        self.founder = founder  # the client id of its first member; empty: it comes from the store
        self.cursors: list[GroupCursor] = []  # empty until the start positions are known
        self.members: dict[tuple[str, str], Member] = {}  # by client id and filter
        self.leaving: list[Member] = []  # with records in flight
        self._on_end = on_end
        self._timer: Timer | None = None
        self._rebalancing: Timer | None = None  # members joined or left in this turn

    @property
    def is_stored(self) -> bool:
        return True

    @property
    def online(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_active]

    @property
    def subscriptions(self) -> list[Member]:
        """All members, including those that are leaving."""
        return [*self.members.values(), *self.leaving]

    @property
    def lag(self) -> list[int]:
        partitions = self.stream.partitions
        return [
            max(0, partitions[cursor.partition].committed - cursor.position)
            for cursor in self.cursors
        ]

    def open(self, offsets: tuple[int, ...]) -> None:
        """Start at these offsets."""
        self.cursors = [
            GroupCursor(partition, self.context.page_reader(self.stream, partition), offset)
            for partition, offset in enumerate(offsets)
        ]

    def end(self, error: Exception, now: float) -> None:
        self._on_end(self, error, now)

    # Members come and go.

    def join(self, member: Member) -> None:
        self.members[member.client_id, member.subscription.filter] = member

    def leave(self, member: Member, now: float) -> None:
        """Remove a member; its records in flight may still be acknowledged."""
        del self.members[member.client_id, member.subscription.filter]
        if member.session.is_online and any(cursor.in_flight for cursor in member.cursors):
            self.leaving.append(member)
        else:
            self._release(member, is_lost=False)
            member.close()
        for cursor in self.cursors:
            if cursor.assigned_to is member:  # nothing new is sent to it. [MQTT-3.10.4-2]
                cursor.unassign()
        self.rebalance_soon(now)

    def on_lost(self, member: Member, now: float) -> None:
        """Take the partitions from a member that lost its connection."""
        self._release(member, is_lost=True)
        if member in self.leaving:
            self.leaving.remove(member)
            member.close()
        self.rebalance_soon(now)
        self.context.positions.record(self)

    def _release(self, member: Member, *, is_lost: bool) -> None:
        member.session.outbound.take_back_sourced(member)
        for cursor in list(member.cursors):
            member.release(cursor)
            cursor.abandon(is_lost=is_lost)
        member.drop_pages()

    def rebalance_soon(self, now: float) -> None:
        """Assign the partitions again in a moment, once for all members that join or leave."""
        if self._rebalancing is None:
            self._rebalancing = self.context.timers.at(now, self._on_changed)

    def _on_changed(self, now: float) -> None:
        self._rebalancing = None
        self.rebalance(now)

    def rebalance(self, now: float) -> None:
        """Assign the partitions evenly, with as few moves as possible."""
        if not self.cursors:
            return
        online = self.online
        held: dict[Member, list[GroupCursor]] = {member: [] for member in online}
        free: list[GroupCursor] = []
        for cursor in self.cursors:
            if cursor.assigned_to is not None and cursor.assigned_to in held:
                held[cursor.assigned_to].append(cursor)
            else:
                cursor.unassign()
                free.append(cursor)
        if online:
            self._assign(held, free, now)
        self.hand_over(now)

    def _assign(
        self, held: dict[Member, list[GroupCursor]], free: list[GroupCursor], now: float
    ) -> None:
        """Give every member an even share; those that have the most keep one more."""
        low, more = divmod(len(self.cursors), len(held))
        by_size = sorted(held, key=lambda member: -len(held[member]))
        share = {member: low + (place < more) for place, member in enumerate(by_size)}
        for member, cursors in held.items():
            free += cursors[share[member] :]
            del cursors[share[member] :]
        for cursor in list(free):  # a partition that is still with its member can stay there
            owner = cursor.owner
            if owner is not None and owner in held and len(held[owner]) < share[owner]:
                held[owner].append(cursor)
                free.remove(cursor)
        for member, cursors in held.items():
            while len(cursors) < share[member]:
                cursors.append(free.pop(0))
            for cursor in cursors:
                if cursor.assigned_to is not member:
                    cursor.assigned_to = member
                    cursor.moving_since = now

    def hand_over(self, now: float) -> None:
        """Give partitions to their new members, unless records are in flight to another one."""
        changed: list[Member] = []
        wait_until = 0.0
        for cursor in self.cursors:
            owner = cursor.owner
            if owner is cursor.assigned_to:
                continue
            if owner is not None:
                if cursor.in_flight and now < cursor.moving_since + HANDOVER_S:
                    until = cursor.moving_since + HANDOVER_S
                    wait_until = min(wait_until or until, until)
                    continue
                owner.session.outbound.take_back_sourced(owner, cursor.partition)
                owner.release(cursor)
                cursor.abandon(is_lost=False)
                changed.append(owner)
            if cursor.assigned_to is not None and not cursor.is_reading:
                cursor.assigned_to.receive(cursor)
                changed.append(cursor.assigned_to)
        if changed:
            self.context.positions.record(self)  # the next member begins where the last one ended
        self._wait(wait_until)
        for member in list(self.leaving):
            if not member.cursors:
                self.leaving.remove(member)
                member.close()
        for member in dict.fromkeys(changed):
            if member.session.is_online:
                member.session.outbound.pump(now)  # all sources of the session share its window

    def _wait(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until:
            self._timer = self.context.timers.at(until, self._on_waited)

    def _on_waited(self, now: float) -> None:
        self._timer = None
        self.hand_over(now)

    # Records.

    def on_done(self, member: Member, now: float) -> None:
        """Continue after exchanges of a member have ended."""
        self.context.positions.note(self)
        if any(
            cursor.assigned_to is not member and not cursor.in_flight for cursor in member.cursors
        ):
            self.hand_over(now)

    def on_failed(self, cursor: GroupCursor, message: SourcedMessage, now: float) -> None:
        """Schedule a record that a consumer answered with an error to be sent again."""
        failures = cursor.failures[message.offset] = cursor.failures.get(message.offset, 0) + 1
        if self.dead_letter(cursor, message, now):
            return
        cursor.in_flight.fail(message.offset)
        delay = min(RETRY_S_MIN * 2 ** min(failures - 1, 20), RETRY_S_MAX)
        cursor.due_at = now + delay
        if cursor.owner is not None:
            cursor.owner.drop_page(cursor)
        self.context.timers.at(cursor.due_at, partial(self._retry, cursor))

    def _retry(self, cursor: GroupCursor, now: float) -> None:
        if cursor.owner is not None:
            cursor.owner.pump(now)

    def dead_letter(self, cursor: GroupCursor, message: SourcedMessage, now: float) -> bool:
        """Give up a record that failed too often. Return False if it may be tried again."""
        context = self.context
        limit = context.redeliveries_max
        failures = cursor.failures.get(message.offset, 0)
        if not limit or failures <= limit:
            return False
        stream = self.stream.name
        context.counters.dead += 1
        context.log(
            f"group {self.name!r}: {stream} p{message.partition} offset {message.offset} "
            f"was given up after {failures} deliveries"
        )
        if context.dead_letters is not None:
            letter = dead_letter_of(message, stream, failures, now)
            context.dead_letters.add("redelivery", letter, f"$share/{self.name}/$stream/{stream}")
        cursor.finish(message.offset)
        return True

    def close(self) -> None:
        self._wait(0.0)
        if self._rebalancing is not None:
            self._rebalancing.cancel()
        for member in self.subscriptions:
            member.session.outbound.take_back_sourced(member)
            member.close()
        for cursor in self.cursors:
            cursor.owner = cursor.assigned_to = None
            self.context.read_ahead.close(cursor)
        self.members.clear()
        self.leaving.clear()

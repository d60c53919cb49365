"""Consumer groups: members share the partitions of a stream, and the group remembers how far.

    Group    owns the lanes, deals them to members, keeps the committed offsets
    Member   one subscription `$share/<group>/$stream/<name>`, a taker of the lanes dealt to it

The group is at the first record of each partition that nobody has acknowledged. Partitions are
dealt evenly among the members that are online, and as few of them move as possible. One that
leaves a living member is handed over when what it has under way there is acknowledged, or
after `HANDOVER_S`. What a lost member had under way is read again by the next one.

A record whose delivery failed (its member was lost, or answered with an error) is delivered
again; more than `redeliveries_max` failures, and it goes to the dead letters. What a lost member
had under way is delivered again one record at a time, so that the record that kills its
consumers is found, and those beside it are not blamed.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Final

from mqtt_broker.streams.replay.pages import Page, PageReader
from mqtt_broker.streams.replay.subscription import PartitionCursor, StreamSubscription
from sessions.session import Subscription
from sessions.sources import SourcedMessage, take_back

if TYPE_CHECKING:
    from mqtt_broker.core.runtime.timers import Timer
    from mqtt_broker.streams.replay.service import ReplayService
    from mqtt_broker.streams.write.stream import Stream

HANDOVER_S: Final = 10.0  # for what a partition has under way when it moves
RETRY_S_MIN: Final = 0.1  # until what failed is delivered again; doubled with each failure
RETRY_S_MAX: Final = 30.0
OUTSTANDING_MAX: Final = 4_096  # records behind the first that is not acknowledged


class GroupCursor(PartitionCursor):
    """A partition of a group."""

    __slots__ = (
        "again", "again_until", "careful_until", "due_at", "failed", "failures", "goes_to",
        "moving_since", "owner", "repeated",
    )  # fmt: skip

    def __init__(self, partition: int, cursor: PageReader, offset: int) -> None:
        super().__init__(partition, cursor, offset)
        self.owner: Member | None = None
        self.goes_to: Member | None = None  # who is to have it
        self.moving_since = 0.0  # when it was to leave its owner
        self.again: set[int] = set()  # before `again_until` only these are to be sent
        self.again_until = 0
        self.failures: dict[int, int] = {}  # by offset, of what is not acknowledged
        self.failed: list[int] = []  # offsets under way that wait to be sent again, in order
        self.repeated = -1  # the offset that was sent again, until it is over
        self.due_at = 0.0  # when the first that failed may be sent again
        self.careful_until = 0  # before this position one record at a time

    @property
    def is_careful(self) -> bool:
        """Whether one of these records may have cost a member its life."""
        return (
            self.position < self.careful_until
            and not self.is_stuck
            and not self.failed
            and self.repeated < 0
        )

    @property
    def is_blocked(self) -> bool:
        """Whether nothing new may be sent: what failed goes first, what is old ends first."""
        return (
            self.is_stuck
            or len(self.failed) > 0
            or self.repeated >= 0
            or self.next - self.position >= OUTSTANDING_MAX
        )

    def settle(self, offset: int) -> None:
        """Nobody is to get this record any more."""
        self.under_way.pop(offset, None)
        self.failures.pop(offset, None)
        self.again.discard(offset)

    def abandon(self, *, is_lost: bool) -> None:
        """Nobody has what was under way: it is read again, after a loss one at a time."""
        under_way = self.under_way
        position = self.position
        if under_way:
            self.again_until = max(self.again_until, self.next)
            self.again.update(under_way)
        if is_lost and under_way:
            self.careful_until = max(self.careful_until, max(under_way) + 1)
            for offset in under_way:
                if offset not in self.failed:  # which was counted when it failed
                    self.failures[offset] = self.failures.get(offset, 0) + 1
        under_way.clear()
        self.failed.clear()
        self.repeated = -1
        self.seek(position)


class Member(StreamSubscription):
    """One subscription of a group."""

    def __init__(
        self,
        replay: ReplayService,
        stream: Stream,
        subscription: Subscription,
        group: ConsumerGroup,
    ) -> None:
        super().__init__(replay, stream, subscription)
        self.group = group
        self.mine: list[GroupCursor] = []

    @property
    def client_id(self) -> str:
        return self.session.client_id

    @property
    def is_careful(self) -> bool:
        return any(lane.is_careful and lane.goes_to is self for lane in self.mine)

    def lane_of(self, message: SourcedMessage) -> GroupCursor | None:
        lane = self.group.lanes[message.partition]
        return lane if lane.owner is self else None

    def is_open(self, lane: PartitionCursor) -> bool:
        assert isinstance(lane, GroupCursor)
        return (
            lane.owner is self
            and lane.goes_to is self
            and not lane.is_blocked
            and (lane.is_careful or not self.is_careful)
        )

    def select(
        self, lane: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        assert isinstance(lane, GroupCursor)
        is_careful = self.is_careful
        if not is_careful and lane.next >= lane.again_until:
            taken = page.taken
            messages = page.messages[taken : taken + room]
            page.taken = taken + len(messages)
            return messages
        if is_careful:
            room = min(room, 1 - self.sent)
        chosen: list[SourcedMessage] = []
        while page.taken < len(page.messages) and len(chosen) < room:
            message = page.messages[page.taken]
            page.taken += 1
            if self._is_wanted(lane, message, now):
                chosen.append(message)
            else:
                lane.next = max(lane.next, message.offset + 1)
        return chosen

    def _is_wanted(self, lane: GroupCursor, message: SourcedMessage, now: float) -> bool:
        offset = message.offset
        if offset >= lane.again_until:
            return True
        if offset not in lane.again or self.group.is_poison(lane, message, now):
            return False
        lane.again.discard(offset)
        self.replay.redelivered += 1
        return True

    def send_again(self, room: int, now: float) -> int:
        """The first that failed of each partition, when its time has come."""
        count = 0
        if self.sent and self.is_careful:
            return 0
        for lane in self.mine:
            if lane.failed and lane.repeated < 0 and lane.due_at <= now and count < room:
                offset = lane.failed.pop(0)
                lane.repeated = offset
                self.replay.redelivered += 1
                self.send(lane, [lane.under_way[offset]], now)
                count += 1
        return count

    def on_over(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        if self.is_over:
            return
        self.forget(messages)
        for message in messages:
            lane = self.lane_of(message)
            if lane is None or message.offset not in lane.under_way:
                continue
            if lane.repeated == message.offset:
                lane.repeated = -1
            if reason >= 0x80:
                self.group.on_failed(lane, message, now)
            else:
                lane.settle(message.offset)
        self.group.on_taken(self, now)

    def on_moved(self, lane: PartitionCursor, now: float) -> None:
        self.replay.note(self.group)

    def on_ended(self, error: Exception, now: float) -> None:
        self.replay.on_group_ended(self.group, error, now)

    def on_free(self, lane: PartitionCursor, now: float) -> None:
        self.group.hand_over(now)
        if isinstance(lane, GroupCursor) and lane.owner is None:
            self.replay.ahead.close(lane)

    # Its lanes.

    def take(self, lane: GroupCursor) -> None:
        lane.owner = self
        self.mine.append(lane)
        self.mine.sort(key=lambda one: one.partition)
        self.lanes = list(self.mine)
        if lane.is_careful:  # the others wait until the one to blame is found
            self.drop_pages()

    def give(self, lane: GroupCursor) -> None:
        self.set_back(lane)
        lane.owner = None
        self.replay.ahead.close(lane)
        self.mine.remove(lane)
        self.lanes = list(self.mine)


class ConsumerGroup:
    """The members of one group on one stream, and how far they are together."""

    def __init__(self, replay: ReplayService, stream: Stream, name: str) -> None:
        self.replay = replay
        self.stream = stream
        self.name = name
        self.owner = f"group:{name}"
        self.lanes: list[GroupCursor] = []  # none until it is known where it begins
        self.members: dict[tuple[str, str], Member] = {}  # by client id and filter
        self.leaving: list[Member] = []  # they still have something under way
        self._timer: Timer | None = None

    @property
    def online(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_active]

    @property
    def takers(self) -> list[Member]:
        return [*self.members.values(), *self.leaving]

    @property
    def lag(self) -> list[int]:
        partitions = self.stream.partitions
        return [max(0, partitions[lane.partition].committed - lane.position) for lane in self.lanes]

    def open(self, offsets: tuple[int, ...]) -> None:
        """It is known where the group is."""
        self.lanes = [
            GroupCursor(partition, self.replay.cursor(self.stream, partition), offset)
            for partition, offset in enumerate(offsets)
        ]

    # Members come and go.

    def join(self, member: Member) -> None:
        self.members[member.client_id, member.subscription.filter] = member

    def leave(self, member: Member, now: float) -> None:
        """It wants no more; what it has under way may still be acknowledged."""
        del self.members[member.client_id, member.subscription.filter]
        if member.session.is_online and any(lane.under_way for lane in member.mine):
            self.leaving.append(member)
        else:
            self._release(member, is_lost=False)
            member.close()
        self.rebalance(now)

    def on_lost(self, member: Member, now: float) -> None:
        """Its connection is gone, and with it what it had under way."""
        self._release(member, is_lost=True)
        if member in self.leaving:
            self.leaving.remove(member)
            member.close()
        self.rebalance(now)
        self.replay.record(self)

    def _release(self, member: Member, *, is_lost: bool) -> None:
        member.forget(take_back(member.session, member))
        for lane in list(member.mine):
            member.give(lane)
            lane.abandon(is_lost=is_lost)
        member.drop_pages()

    def rebalance(self, now: float) -> None:
        """Deal the partitions anew: evenly, and with as few moves as possible."""
        if not self.lanes:
            return
        online = self.online
        held: dict[Member, list[GroupCursor]] = {member: [] for member in online}
        free: list[GroupCursor] = []
        for lane in self.lanes:
            if lane.goes_to is not None and lane.goes_to in held:
                held[lane.goes_to].append(lane)
            else:
                lane.goes_to = None
                free.append(lane)
        if online:
            self._deal(held, free, now)
        self.hand_over(now)

    def _deal(
        self, held: dict[Member, list[GroupCursor]], free: list[GroupCursor], now: float
    ) -> None:
        """Even shares; the members that have most keep one more."""
        low, more = divmod(len(self.lanes), len(held))
        by_size = sorted(held, key=lambda member: -len(held[member]))
        share = {member: low + (place < more) for place, member in enumerate(by_size)}
        for member, lanes in held.items():
            free += lanes[share[member] :]
            del lanes[share[member] :]
        for lane in list(free):  # one that has not left its owner yet may as well stay
            owner = lane.owner
            if owner is not None and owner in held and len(held[owner]) < share[owner]:
                held[owner].append(lane)
                free.remove(lane)
        for member, lanes in held.items():
            while len(lanes) < share[member]:
                lanes.append(free.pop(0))
            for lane in lanes:
                if lane.goes_to is not member:
                    lane.goes_to = member
                    lane.moving_since = now

    def hand_over(self, now: float) -> None:
        """Give partitions to who is to have them, if nothing of them is under way elsewhere."""
        changed: list[Member] = []
        wait_until = 0.0
        for lane in self.lanes:
            owner = lane.owner
            if owner is lane.goes_to:
                continue
            if owner is not None:
                if lane.under_way and now < lane.moving_since + HANDOVER_S:
                    until = lane.moving_since + HANDOVER_S
                    wait_until = min(wait_until or until, until)
                    continue
                owner.forget(take_back(owner.session, owner, lane.partition))
                owner.give(lane)
                lane.abandon(is_lost=False)
                changed.append(owner)
            if lane.goes_to is not None and not lane.is_reading:
                lane.goes_to.take(lane)
                changed.append(lane.goes_to)
        if changed:
            self.replay.record(self)  # whoever has it next begins where the last one ended
        self._wait(wait_until)
        for member in list(self.leaving):
            if not member.mine:
                self.leaving.remove(member)
                member.close()
        for member in dict.fromkeys(changed):
            if member.session.is_online:
                member.session.pump(now)  # room in its window is for all that wait for it

    def _wait(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until:
            self._timer = self.replay.broker.timers.at(until, self._on_waited)

    def _on_waited(self, now: float) -> None:
        self._timer = None
        self.hand_over(now)

    # Records.

    def on_taken(self, member: Member, now: float) -> None:
        """Some are acknowledged."""
        self.replay.note(self)
        if any(lane.goes_to is not member and not lane.under_way for lane in member.mine):
            self.hand_over(now)

    def on_failed(self, lane: GroupCursor, message: SourcedMessage, now: float) -> None:
        """A consumer says that it could not do it."""
        failures = lane.failures[message.offset] = lane.failures.get(message.offset, 0) + 1
        if self.is_poison(lane, message, now):
            return
        insort(lane.failed, message.offset)
        delay = min(RETRY_S_MIN * 2 ** min(failures - 1, 20), RETRY_S_MAX)
        lane.due_at = now + delay
        if lane.owner is not None:
            lane.owner.set_back(lane)
        self.replay.broker.timers.at(lane.due_at, lambda then: self._retry(lane, then))

    def _retry(self, lane: GroupCursor, now: float) -> None:
        if lane.owner is not None:
            lane.owner.pump(now)

    def is_poison(self, lane: GroupCursor, message: SourcedMessage, now: float) -> bool:
        """Whether it failed too often; then it is given up here."""
        limit = self.replay.redeliveries_max
        failures = lane.failures.get(message.offset, 0)
        if not limit or failures <= limit:
            return False
        self.replay.bury(self, message, failures, now)
        lane.settle(message.offset)
        return True

    def close(self) -> None:
        self._wait(0.0)
        for member in self.takers:
            member.forget(take_back(member.session, member))
            member.close()
        for lane in self.lanes:
            lane.owner = lane.goes_to = None
            self.replay.ahead.close(lane)
        self.members.clear()
        self.leaving.clear()

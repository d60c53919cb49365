"""The replay door of the broker: streams that MQTT clients subscribe to.

    replay = Replay(log, broker, read, clock, cursors=...)     before sessions are restored
    broker.replays = replay
    replay.on_restored()                                       after
    replay.on_committed({"telemetry"}, now)                    there is more to be read
    replay.on_deleted("telemetry", now)                        the stream is no more

`read(work, done)` does `work` in a thread and `done` with its result on the loop; only there
files are opened. Positions go to the journal, for sessions that are stored and for groups: not
more often than every `RECORD_S`, and at once when a client goes or a partition changes hands.

Nothing ends in silence: what cannot be read any more is logged, and told to the client by a
message on `$stream/<name>/$error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.message_log import ATTACHED, AWAY, ONLINE, Refusal
from mqtt_broker.streams.format.errors import (
    Damaged,
    Invalid,
    OffsetGone,
    StreamGone,
    UnknownStream,
    WrongEpoch,
)
from mqtt_broker.streams.format.offsets import EARLIEST, Offsets, check
from mqtt_broker.streams.replay.consumer_group import ConsumerGroup, Member
from mqtt_broker.streams.replay.dead_letters import letter_of
from mqtt_broker.streams.replay.figures import GroupFigures, ReplayFigures
from mqtt_broker.streams.replay.notices import tell
from mqtt_broker.streams.replay.pages import PageReader, Sources
from mqtt_broker.streams.replay.read_ahead import ReadAheadBudget
from mqtt_broker.streams.replay.start_positions import (
    Start,
    StartRefused,
    Wanted,
    ends_of,
    parse_filter,
    parse_start,
    starts_of,
)
from mqtt_broker.streams.replay.subscription import (
    UNREAD_BYTES_MAX,
    ClientSubscription,
    PartitionCursor,
    StreamSubscription,
)
from sessions.journal.rows import CursorRow
from sessions.messages.message import DeliveryOptions, Message
from sessions.session import Session, Subscription
from sessions.sources import SourcedMessage

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.core.runtime.timers import Timer
    from mqtt_broker.streams.write.log import Log
    from mqtt_broker.streams.write.stream import Stream

RECORD_S: Final = 0.1  # between two records of how far somebody is
READERS_MAX: Final = 10_000  # subscriptions to streams
GROUPS_MAX: Final = 10_000  # that are remembered, with members or without
GROUP_CHARS_MAX: Final = 200  # of a name, which stands in paths of the API and in labels
BUFFERED_BYTES_MAX: Final = 128 << 20  # of pages that were read ahead
FILES_MAX: Final = 512  # kept open for readers
_CLIENT: Final = "client:"
_GROUP: Final = "group:"


class Read(Protocol):
    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class Dead(Protocol):
    """Takes what is given up, for whom it was."""

    def __call__(self, reason: str, message: Message, client_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    redeliveries_max: int = 0  # of one record to a group, until it is given up; 0: no end
    readers_max: int = READERS_MAX
    groups_max: int = GROUPS_MAX
    buffered_bytes_max: int = BUFFERED_BYTES_MAX
    files_max: int = FILES_MAX


class ReplayService:
    """Every reader and every group of one broker."""

    def __init__(
        self,
        log: Log,
        broker: Broker,
        read: Read,
        clock: Callable[[], float],
        *,
        cursors: Iterable[CursorRow] = (),
        limits: ReplayLimits = ReplayLimits(),
        skips_damage: Callable[[str], bool] = lambda stream: False,
        dead: Dead | None = None,
    ) -> None:
        self._log = log
        self.broker = broker
        self.read = read
        self._clock = clock
        self._limits = limits
        self._skips_damage = skips_damage
        self._dead = dead
        self._sources = Sources()
        self._takers: dict[tuple[str, str], StreamSubscription] = {}  # by client id and filter
        self._of_stream: dict[str, dict[StreamSubscription, None]] = {}
        self._groups: dict[tuple[str, str], ConsumerGroup] = {}  # by group and stream
        self._moved: dict[
            ClientSubscription | ConsumerGroup, None
        ] = {}  # whose positions are to be recorded
        self._timer: Timer | None = None
        self.ahead = ReadAheadBudget(limits.buffered_bytes_max, limits.files_max)
        self.messages = 0
        self.gaps = 0
        self.redelivered = 0
        self.dead = 0
        self._cursors: dict[tuple[str, str], tuple[str, dict[int, int]]] = {}
        for row in cursors:
            found = self._cursors.setdefault((row.owner, row.stream), (row.epoch, {}))
            found[1][row.partition] = row.offset
        for owner, name in list(self._cursors):
            if owner.startswith(_GROUP):
                self._restore_group(owner[len(_GROUP) :], name)

    # What takers ask.

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def redeliveries_max(self) -> int:
        return self._limits.redeliveries_max

    @property
    def is_pressed(self) -> bool:
        """Whether so much waits for slow clients that nobody should be sent more than it takes."""
        return self.broker.waiting_bytes > self.broker.waiting_bytes_max // 2

    @property
    def unread_bytes_max(self) -> int:
        return min(UNREAD_BYTES_MAX, self.broker.settings.outbox_bytes_max // 2)

    def log(self, line: str) -> None:
        self.broker.log(f"replay: {line}")

    def cursor(self, stream: Stream, partition: int) -> PageReader:
        name = stream.name
        return PageReader(self._sources, stream, partition, lambda: self._skips_damage(name))

    # The door.

    def refusal(
        self, session: Session, text: str, start: str | None, *, goes_on: bool
    ) -> Refusal | None:
        try:
            wanted = parse_filter(text)
            stream = self._log.stream(wanted.stream)
        except (Invalid, UnknownStream) as error:
            return Refusal(reasons.TOPIC_FILTER_INVALID, str(error))
        said = start if wanted.start is None else wanted.start
        taker = self._takers.get((session.client_id, text))
        if taker is None and len(self._takers) >= self._limits.readers_max:
            return Refusal(
                reasons.QUOTA_EXCEEDED, f"streams have {len(self._takers)} readers, the most"
            )
        is_known = taker is not None and goes_on
        if wanted.group:
            is_known = (wanted.group, wanted.stream) in self._groups
            if not is_known and len(wanted.group) > GROUP_CHARS_MAX:
                return Refusal(
                    reasons.TOPIC_FILTER_INVALID,
                    f"the group's name has {len(wanted.group)} characters, "
                    f"it may have {GROUP_CHARS_MAX}",
                )
            if not is_known and len(self._groups) >= self._limits.groups_max:
                return Refusal(
                    reasons.QUOTA_EXCEEDED, f"there are {len(self._groups)} groups, the most"
                )
        if said is not None:
            try:
                parse_start(stream, said)
            except StartRefused as refused:
                # Where it is already is not served anew; what is no place is a mistake.
                if not is_known or refused.refusal.reason == reasons.TOPIC_FILTER_INVALID:
                    return refused.refusal
        return None

    def join(
        self, subscription: Subscription, start: str | None, now: float, *, goes_on: bool
    ) -> None:
        session = subscription.session
        key = session.client_id, subscription.filter
        wanted = parse_filter(subscription.filter)
        said = start if wanted.start is None else wanted.start
        taker = self._takers.get(key)
        if taker is not None and (goes_on or said is None or isinstance(taker, Member)):
            taker.adapt(subscription)
            taker.pump(now)
            return
        if taker is not None:
            self._remove(taker, now)
        stream = self._log.streams.get(wanted.stream)
        if stream is None:
            self._tell(
                session, wanted.stream, DeliveryOptions(0), UnknownStream(wanted.stream), now
            )
            return
        if wanted.group:
            self._join_group(stream, wanted, subscription, said, now)
        else:
            self._join_alone(stream, subscription, said, now)

    def begin(self, subscription: Subscription, now: float) -> None:
        taker = self._takers.get((subscription.session.client_id, subscription.filter))
        if taker is not None:
            self._begin(taker, now)

    def leave(self, subscription: Subscription, now: float) -> None:
        taker = self._takers.get((subscription.session.client_id, subscription.filter))
        if taker is not None:
            self._remove(taker, now)

    def on_session(self, session: Session, change: int, now: float) -> None:
        if change == ATTACHED:
            self._on_attached(session)
        elif change == ONLINE:
            self._on_online(session, now)
        elif change == AWAY:
            self._on_away(session, now)

    def _on_attached(self, session: Session) -> None:
        for feed in list(session.feeds or ()):
            if isinstance(feed, ClientSubscription):
                feed.on_attached()
            elif isinstance(feed, StreamSubscription):
                feed.adapt(feed.subscription)

    def _on_online(self, session: Session, now: float) -> None:
        for feed in list(session.feeds or ()):
            if isinstance(feed, StreamSubscription):
                self._begin(feed, now)

    def _on_away(self, session: Session, now: float) -> None:
        for feed in list(session.feeds or ()):
            if isinstance(feed, Member):
                feed.group.on_lost(feed, now)
            elif isinstance(feed, ClientSubscription):
                feed.drop_pages()
                self.record(feed)

    # What others tell.

    def on_committed(self, streams: Iterable[str], now: float) -> None:
        """These have more to be read."""
        for name in streams:
            for taker in list(self._of_stream.get(name, ())):
                taker.read_on(now)

    def on_deleted(self, name: str, now: float) -> None:
        """The stream is no more; what the store has of its groups goes with it."""
        error = StreamGone(name)
        for taker in list(self._of_stream.get(name, ())):
            self._sources.forget(taker.stream)
            if isinstance(taker, ClientSubscription):
                self.on_reader_ended(taker, error, now)
        for group in list(self._groups.values()):
            if group.stream.name == name:
                self._sources.forget(group.stream)
                self.on_group_ended(group, error, now)

    def on_restored(self) -> None:
        """Every session is there: what is left of positions belongs to nobody."""
        for owner, stream in self._cursors:
            if self.broker.journal is not None:
                self.broker.journal.on_cursors_gone(owner, stream)
        self._cursors.clear()

    def close(self) -> None:
        """Let go of files; no read is under way."""
        self.ahead.close_all()

    # Readers of their own.

    def _join_alone(
        self, stream: Stream, subscription: Subscription, said: str | None, now: float
    ) -> None:
        session = subscription.session
        owner = f"{_CLIENT}{session.client_id} {subscription.filter}"
        kept = self._cursors.pop((owner, stream.name), None)
        if kept is not None and kept[0] != stream.epoch:
            error = WrongEpoch(stream.name, kept[0], stream.epoch)
            self._forget_cursors(owner, stream.name)
            self._tell(session, stream.name, DeliveryOptions(0), error, now)
            return
        reader = ClientSubscription(self, stream, subscription, owner)
        self._add(reader)
        if kept is not None:
            self._place(reader, self._still_there(stream, kept[1]))
            return
        start = parse_start(stream, said or EARLIEST)
        self._find(stream, start, partial(self._on_found, reader))

    def _on_found(self, reader: ClientSubscription, found: tuple[int, ...] | Exception) -> None:
        if reader.is_over:
            return
        if isinstance(found, tuple):
            self._place(reader, found)
        else:
            self.on_reader_ended(reader, found, self.now)

    def _place(self, reader: ClientSubscription, offsets: tuple[int, ...]) -> None:
        """It is known where the reader begins."""
        reader.lanes = [
            PartitionCursor(partition, self.cursor(reader.stream, partition), offset)
            for partition, offset in enumerate(offsets)
        ]
        self.record(reader)
        reader.pump(self.now)

    def on_reader_ended(self, reader: ClientSubscription, error: Exception, now: float) -> None:
        self._remove(reader, now)
        self._tell(reader.session, reader.stream.name, reader.grant, error, now)

    # Groups.

    def _join_group(
        self,
        stream: Stream,
        wanted: Wanted,
        subscription: Subscription,
        said: str | None,
        now: float,
    ) -> None:
        key = wanted.group, stream.name
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ConsumerGroup(self, stream, wanted.group)
            start = parse_start(stream, said or EARLIEST)
            self._find(stream, start, partial(self._on_group_found, group))
        member = Member(self, stream, subscription, group)
        self._add(member)
        group.join(member)

    def _on_group_found(self, group: ConsumerGroup, found: tuple[int, ...] | Exception) -> None:
        if self._groups.get((group.name, group.stream.name)) is not group or group.lanes:
            return  # it is no more, or an operator has said meanwhile where it is
        if isinstance(found, tuple):
            group.open(found)
            self.record(group)
            group.rebalance(self.now)
        else:
            self.on_group_ended(group, found, self.now)

    def _restore_group(self, name: str, stream_name: str) -> None:
        owner = f"{_GROUP}{name}"
        epoch, offsets = self._cursors.pop((owner, stream_name))
        stream = self._log.streams.get(stream_name)
        if stream is None or stream.epoch != epoch:
            self.log(f"group {name!r}: the stream {stream_name!r} it has read is no more")
            self._forget_cursors(owner, stream_name)
            return
        group = self._groups[name, stream_name] = ConsumerGroup(self, stream, name)
        group.open(self._still_there(stream, offsets))
        for lane in group.lanes:
            lane.recorded = offsets.get(lane.partition, -1)

    def on_group_ended(self, group: ConsumerGroup, error: Exception, now: float) -> None:
        self._groups.pop((group.name, group.stream.name), None)
        takers = group.takers
        group.close()
        self._forget_cursors(group.owner, group.stream.name)
        self._moved.pop(group, None)
        for taker in takers:
            self._drop(taker)
            self._tell(taker.session, group.stream.name, taker.grant, error, now)

    # Both.

    def _add(self, taker: StreamSubscription) -> None:
        self._takers[taker.session.client_id, taker.subscription.filter] = taker
        self._of_stream.setdefault(taker.stream.name, {})[taker] = None

    def _drop(self, taker: StreamSubscription) -> None:
        key = taker.session.client_id, taker.subscription.filter
        if self._takers.get(key) is taker:
            del self._takers[key]
        takers = self._of_stream.get(taker.stream.name)
        if takers is not None:
            takers.pop(taker, None)
            if not takers:
                del self._of_stream[taker.stream.name]

    def _begin(self, taker: StreamSubscription, now: float) -> None:
        taker.is_begun = True
        if isinstance(taker, Member):
            taker.group.rebalance(now)
        taker.pump(now)

    def _remove(self, taker: StreamSubscription, now: float) -> None:
        self._drop(taker)
        if isinstance(taker, Member):
            taker.group.leave(taker, now)
        elif isinstance(taker, ClientSubscription):
            taker.close()
            for lane in taker.lanes:
                self.ahead.close(lane)
            self._moved.pop(taker, None)
            if any(lane.recorded >= 0 for lane in taker.lanes):
                self._forget_cursors(taker.owner, taker.stream.name)

    def _find(
        self,
        stream: Stream,
        start: Start,
        then: Callable[[tuple[int, ...] | Exception], None],
    ) -> None:
        """At once, unless it is a time: that is looked for in files."""
        at_us = start.at_us
        if at_us is None:
            then(start.offsets)
            return

        def look() -> tuple[int, ...] | Exception:
            try:
                return self._sources.get(stream).at_time(at_us).ends
            except Exception as error:  # told on the loop
                return error

        self.read(look, then)

    def _still_there(self, stream: Stream, offsets: dict[int, int]) -> tuple[int, ...]:
        """Positions of an earlier life. What retention took since is found out by reading."""
        ends, starts = ends_of(stream), starts_of(stream)
        found = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            offset = offsets.get(number, start)
            if offset > end:
                self.log(f"{stream.name} p{number}: position {offset} is beyond the end, {end}")
            found.append(min(offset, end))
        return tuple(found)

    # Positions.

    def note(self, who: ClientSubscription | ConsumerGroup) -> None:
        """Its positions may be others; they are recorded soon."""
        if self.broker.journal is None or who in self._moved:
            return
        if isinstance(who, ClientSubscription) and not who.session.sid:
            return
        self._moved[who] = None
        if self._timer is None:
            self._timer = self.broker.timers.at(self.now + RECORD_S, self._record_moved)

    def _record_moved(self, now: float) -> None:
        self._timer = None
        for who in list(self._moved):
            self.record(who)

    def record(self, who: ClientSubscription | ConsumerGroup) -> None:
        """Now, as far as they are others than the store knows."""
        self._moved.pop(who, None)
        journal = self.broker.journal
        if journal is None or (isinstance(who, ClientSubscription) and not who.session.sid):
            return
        offsets: list[tuple[int, int]] = []
        for lane in who.lanes:
            position = lane.position
            if position != lane.recorded:
                lane.recorded = position
                offsets.append((lane.partition, position))
        if offsets:
            journal.on_cursor(who.owner, who.stream.name, who.stream.epoch, offsets)

    def _forget_cursors(self, owner: str, stream: str) -> None:
        if self.broker.journal is not None:
            self.broker.journal.on_cursors_gone(owner, stream)

    # What went wrong.

    def on_gap(
        self, taker: StreamSubscription, lane: PartitionCursor, error: OffsetGone, now: float
    ) -> None:
        """Retention was faster; reading goes on at what is left."""
        self.gaps += max(0, error.earliest - max(lane.next, error.offset))
        self.tell(taker, error, now)

    def on_damage(self, taker: StreamSubscription, error: Damaged, now: float) -> None:
        """It was passed over, because somebody said so."""
        if error.until > error.offset:
            self.gaps += error.until - error.offset
        self.tell(taker, error, now)

    def tell(self, taker: StreamSubscription, error: Exception, now: float) -> None:
        takers: list[StreamSubscription] = [taker]
        if isinstance(taker, Member):
            takers = [member for member in taker.group.takers if member.session.is_online]
        for one in takers:
            self._tell(one.session, one.stream.name, one.grant, error, now)

    def _tell(
        self, session: Session, stream: str, grant: DeliveryOptions, error: Exception, now: float
    ) -> None:
        self.log(f"{session.client_id}: {error}")
        tell(session, stream, grant, error, now)

    def bury(
        self, group: ConsumerGroup, message: SourcedMessage, failures: int, now: float
    ) -> None:
        """A record that no consumer could do."""
        self.dead += 1
        place = f"{group.stream.name} p{message.partition} offset {message.offset}"
        self.log(f"group {group.name!r}: {place} was given up after {failures} deliveries")
        if self._dead is None:
            return
        letter = letter_of(message, group.stream.name, failures, now)
        self._dead("redelivery", letter, f"$share/{group.name}/$stream/{group.stream.name}")

    # Operators.

    def figures(self) -> ReplayFigures:
        return ReplayFigures(
            len(self._takers),
            len(self._groups),
            self.messages,
            self.gaps,
            self.redelivered,
            self.dead,
            self.ahead.bytes,
        )

    def groups(self, stream: str | None = None) -> list[GroupFigures]:
        """Of one stream, or of all."""
        found = []
        for group in self._groups.values():
            if stream is None or group.stream.name == stream:
                members: dict[str, list[int]] = {}
                for member in group.online:
                    mine = members.setdefault(member.client_id, [])
                    mine += [lane.partition for lane in member.mine]
                committed = tuple(lane.position for lane in group.lanes)
                found.append(
                    GroupFigures(
                        group.name, group.stream.name, members, committed, tuple(group.lag)
                    )
                )
        return sorted(found, key=lambda one: (one.stream, one.name))

    def group_reset(self, name: str, stream: str, offsets: Offsets) -> None:
        """Let a group go on from there; not while anybody reads for it."""
        group = self._idle_group(name, stream)
        if offsets.epoch != group.stream.epoch:
            raise WrongEpoch(stream, offsets.epoch, group.stream.epoch)
        check(stream, offsets, starts_of(group.stream), ends_of(group.stream))
        recorded = [lane.recorded for lane in group.lanes]
        for lane in group.lanes:
            self.ahead.close(lane)
        group.open(offsets.ends)
        for lane, before in zip(group.lanes, recorded, strict=False):
            lane.recorded = before
        self.record(group)

    def group_delete(self, name: str, stream: str) -> None:
        """Forget where a group is; not while anybody reads for it."""
        group = self._idle_group(name, stream)
        if group.members:
            raise Invalid("group", f"{name!r} has {len(group.members)} members, who are away")
        del self._groups[name, stream]
        group.close()
        self._moved.pop(group, None)
        self._forget_cursors(group.owner, stream)

    def _idle_group(self, name: str, stream: str) -> ConsumerGroup:
        self._log.stream(stream)
        group = self._groups.get((name, stream))
        if group is None:
            raise Invalid("group", f"stream {stream!r} has no group {name!r}")
        if group.online or group.leaving:
            raise Invalid("group", f"{name!r} has members that are online")
        return group

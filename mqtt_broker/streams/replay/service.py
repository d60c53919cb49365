"""Let MQTT clients subscribe to streams: the `StreamSubscriptions` of the broker's message log.

    replay = ReplayService(log, host, read, clock, cursors=...)   before sessions are restored
    replay.on_restored()                                          after
    replay.on_committed({"telemetry"}, now)                       there is more to be read
    replay.on_deleted("telemetry", now)                           the stream is no more

`read(work, done)` runs `work` in a thread and `done` with its result on the loop; files are opened
only in the thread.

When a subscription can no longer be read, the reason is logged, and sent to the client on
`$stream/<name>/$error`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.message_log import ATTACHED, AWAY, ONLINE, Refusal
from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.errors import Invalid, StreamGone, UnknownStream, WrongEpoch
from mqtt_broker.streams.format.figures import GroupFigures, ReplayFigures
from mqtt_broker.streams.format.offsets import EARLIEST, Offsets, check
from mqtt_broker.streams.replay.consumer_group import ConsumerGroup, Member
from mqtt_broker.streams.replay.context import (
    DEFAULT_LIMITS,
    ReplayContext,
    ReplayHost,
    ReplayLimits,
)
from mqtt_broker.streams.replay.read_ahead import Read
from mqtt_broker.streams.replay.start_positions import (
    StartPosition,
    StartRefused,
    StreamFilter,
    ends_of,
    parse_filter,
    parse_start,
    starts_of,
)
from mqtt_broker.streams.replay.subscription import (
    ClientSubscription,
    PartitionCursor,
    StreamSubscription,
)
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.stream import Stream
from sessions.journal.rows import CursorRow
from sessions.messages.backlog import DeadLetterSink
from sessions.messages.message import DeliveryOptions
from sessions.session import Session, Subscription

GROUP_CHARS_MAX: Final = 200  # of a name, which stands in paths of the API and in labels
_CLIENT: Final = "client:"
_GROUP: Final = "group:"


class ReplayService:
    """Every subscription to a stream, and every consumer group, of one broker."""

    def __init__(
        self,
        log: Log,
        host: ReplayHost,
        read: Read,
        clock: Callable[[], float],
        *,
        cursors: Iterable[CursorRow] = (),
        limits: ReplayLimits = DEFAULT_LIMITS,
        skips_damage: Callable[[str], bool] = lambda stream: False,
        dead_letters: DeadLetterSink | None = None,
    ) -> None:
        self._log = log
        self._limits = limits
        self.context = ReplayContext(
            host,
            read,
            clock,
            limits=limits,
            skips_damage=skips_damage,
            dead_letters=dead_letters,
        )
        # By client id and filter.
        self.subscriptions: dict[tuple[str, str], StreamSubscription] = {}
        self.by_stream: dict[str, dict[StreamSubscription, None]] = {}  # of streams that are read
        self._groups: dict[tuple[str, str], ConsumerGroup] = {}  # by group and stream
        self._readers_of: Counter[str] = Counter()  # subscriptions, by client id
        self._groups_of: Counter[str] = Counter()  # by the client id that was the first member
        # What the store had: the epoch and the offsets, by owner and stream.
        self._stored: dict[tuple[str, str], tuple[str, dict[int, int]]] = {}
        for row in cursors:
            found = self._stored.setdefault((row.owner, row.stream), (row.epoch, {}))
            found[1][row.partition] = row.offset
        for owner, name in list(self._stored):
            if owner.startswith(_GROUP):
                self._restore_group(owner[len(_GROUP) :], name)

    # What the broker calls.

    def refusal(
        self, session: Session, text: str, start: str | None, *, goes_on: bool
    ) -> Refusal | None:
        try:
            wanted = parse_filter(text)
            stream = self._log.stream(wanted.stream)
        except (Invalid, UnknownStream) as error:
            return Refusal(reasons.TOPIC_FILTER_INVALID, str(error))
        found = self.subscriptions.get((session.client_id, text))
        if found is None and len(self.subscriptions) >= self._limits.readers_max:
            return Refusal(
                reasons.QUOTA_EXCEEDED,
                f"limit reached: {self._limits.readers_max} subscriptions to streams",
            )
        of_client = self._limits.readers_of_client_max
        if found is None and self._readers_of[session.client_id] >= of_client:
            return Refusal(
                reasons.QUOTA_EXCEEDED,
                f"limit reached: {of_client} subscriptions to streams of one client",
            )
        is_known = found is not None and goes_on
        if wanted.group:
            is_known = (wanted.group, wanted.stream) in self._groups
            refusal = None if is_known else self._group_refusal(wanted.group, session.client_id)
            if refusal is not None:
                return refusal
        text_of_start = start if wanted.start is None else wanted.start
        if text_of_start is not None:
            try:
                parse_start(stream, text_of_start, self.context.now)
            except StartRefused as refused:
                # A reader that goes on needs no start that can be served; a malformed one is a
                # mistake all the same.
                if not is_known or refused.refusal.reason == reasons.TOPIC_FILTER_INVALID:
                    return refused.refusal
        return None

    def _group_refusal(self, name: str, client_id: str) -> Refusal | None:
        """Check that a group of this name may be created."""
        if len(name) > GROUP_CHARS_MAX:
            return Refusal(
                reasons.TOPIC_FILTER_INVALID,
                f"the name of the consumer group has {len(name)} characters, "
                f"{GROUP_CHARS_MAX} are allowed",
            )
        if len(self._groups) >= self._limits.groups_max:
            return Refusal(
                reasons.QUOTA_EXCEEDED, f"limit reached: {self._limits.groups_max} consumer groups"
            )
        of_client = self._limits.groups_of_client_max
        if self._groups_of[client_id] >= of_client:
            return Refusal(
                reasons.QUOTA_EXCEEDED, f"limit reached: {of_client} consumer groups of one client"
            )
        return None

    def join(
        self, subscription: Subscription, start: str | None, now: float, *, goes_on: bool
    ) -> None:
        session = subscription.session
        wanted = parse_filter(subscription.filter)
        text = start if wanted.start is None else wanted.start
        found = self._find(subscription)
        if found is not None and (goes_on or text is None or isinstance(found, Member)):
            found.adapt(subscription)
            found.pump(now)
            return
        if found is not None:
            self._remove(found, now)
        stream = self._log.streams.get(wanted.stream)
        if stream is None:
            error = UnknownStream(wanted.stream)
            self.context.tell(session, wanted.stream, DeliveryOptions(0), error, now)
            return
        if wanted.group:
            self._join_group(stream, wanted, subscription, text)
        else:
            self._join_alone(stream, subscription, text, now)

    def begin(self, subscription: Subscription, now: float) -> None:
        found = self._find(subscription)
        if found is not None:
            self._begin(found, now)

    def leave(self, subscription: Subscription, now: float) -> None:
        found = self._find(subscription)
        if found is not None:
            self._remove(found, now)

    def _find(self, subscription: Subscription) -> StreamSubscription | None:
        return self.subscriptions.get((subscription.session.client_id, subscription.filter))

    def on_session(self, session: Session, change: int, now: float) -> None:
        for source in list(session.outbound.sources or ()):
            if not isinstance(source, StreamSubscription):
                continue
            if change == ATTACHED:
                if isinstance(source, ClientSubscription):
                    source.on_attached()
                else:
                    source.adapt(source.subscription)
            elif change == ONLINE:
                self._begin(source, now)
            elif change == AWAY:
                self._on_away(source, now)

    def _on_away(self, found: StreamSubscription, now: float) -> None:
        if isinstance(found, Member):
            found.group.on_lost(found, now)
        elif isinstance(found, ClientSubscription):
            found.drop_pages()
            self.context.positions.record(found)

    # What happens to streams.

    def on_committed(self, streams: Iterable[str], now: float) -> None:
        """Continue reading these streams, which have grown."""
        for name in streams:
            for found in list(self.by_stream.get(name, ())):
                found.read_on(now)

    def on_deleted(self, name: str, now: float) -> None:
        """End all readers of the stream, and remove positions of its groups from the store."""
        error = StreamGone(name)
        for found in list(self.by_stream.get(name, ())):
            self.context.sources.forget(found.stream)
            if isinstance(found, ClientSubscription):
                found.end(error, now)
        for group in list(self._groups.values()):
            if group.stream.name == name:
                self.context.sources.forget(group.stream)
                group.end(error, now)

    def on_restored(self) -> None:
        """Remove positions that belong to no session, now that all sessions are restored."""
        for owner, stream in self._stored:
            self.context.positions.forget(owner, stream)
        self._stored.clear()

    def close(self) -> None:
        """Close files. No read is under way."""
        self.context.read_ahead.close_all()

    # Clients that read alone.

    def _join_alone(
        self, stream: Stream, subscription: Subscription, start: str | None, now: float
    ) -> None:
        session = subscription.session
        owner = f"{_CLIENT}{session.client_id} {subscription.filter}"
        stored = self._stored.pop((owner, stream.name), None)
        if stored is not None and stored[0] != stream.epoch:
            error = WrongEpoch(stream.name, stored[0], stream.epoch)
            self.context.positions.forget(owner, stream.name)
            self.context.tell(session, stream.name, DeliveryOptions(0), error, now)
            return
        reader = ClientSubscription(self.context, stream, subscription, owner, self._end_client)
        self._add(reader)
        if stored is not None:
            self._place(reader, self._restored_offsets(stream, stored[1]))
            return
        position = parse_start(stream, start or EARLIEST, now)
        self._locate(
            stream,
            position,
            session.client_id,
            partial(self._on_located, reader),
            lambda: not reader.is_over,
        )

    def _on_located(
        self, reader: ClientSubscription, found: tuple[int, ...] | Exception | None
    ) -> None:
        if reader.is_over:
            return
        if isinstance(found, tuple):
            self._place(reader, found)
        elif found is not None:
            reader.end(found, self.context.now)

    def _place(self, reader: ClientSubscription, offsets: tuple[int, ...]) -> None:
        """Start a client at these offsets."""
        reader.cursors = [
            PartitionCursor(partition, self.context.page_reader(reader.stream, partition), offset)
            for partition, offset in enumerate(offsets)
        ]
        self.context.positions.record(reader)
        reader.pump(self.context.now)

    def _end_client(self, reader: ClientSubscription, error: Exception, now: float) -> None:
        self._remove(reader, now)
        reader.tell(error, now)

    # Groups.

    def _make_group(self, stream: Stream, name: str, founder: str) -> ConsumerGroup:
        owner = f"{_GROUP}{name}"
        group = ConsumerGroup(self.context, stream, name, owner, founder, self._end_group)
        self._groups[name, stream.name] = group
        self._groups_of[founder] += 1
        return group

    def _join_group(
        self, stream: Stream, wanted: StreamFilter, subscription: Subscription, start: str | None
    ) -> None:
        group = self._groups.get((wanted.group, stream.name))
        if group is None:
            group = self._make_group(stream, wanted.group, subscription.session.client_id)
            position = parse_start(stream, start or EARLIEST, self.context.now)
            self._locate(
                stream,
                position,
                subscription.session.client_id,
                partial(self._on_group_located, group),
                lambda: True,
            )
        member = Member(self.context, stream, subscription, group)
        self._add(member)
        group.join(member)

    def _on_group_located(
        self, group: ConsumerGroup, found: tuple[int, ...] | Exception | None
    ) -> None:
        if self._groups.get((group.name, group.stream.name)) is not group or group.cursors:
            return  # it was deleted, or an operator has set its offsets meanwhile
        now = self.context.now
        if isinstance(found, tuple):
            group.open(found)
            self.context.positions.record(group)
            group.rebalance(now)
        elif found is not None:
            group.end(found, now)

    def _restore_group(self, name: str, stream_name: str) -> None:
        owner = f"{_GROUP}{name}"
        epoch, offsets = self._stored.pop((owner, stream_name))
        stream = self._log.streams.get(stream_name)
        if stream is None or stream.epoch != epoch:
            self.context.log(f"group {name!r}: its stream {stream_name!r} does not exist any more")
            self.context.positions.forget(owner, stream_name)
            return
        group = self._make_group(stream, name, "")
        group.open(self._restored_offsets(stream, offsets))
        for cursor in group.cursors:
            cursor.recorded = offsets.get(cursor.partition, -1)

    def _end_group(self, group: ConsumerGroup, error: Exception, now: float) -> None:
        members = group.subscriptions
        self._delete_group(group)
        for member in members:
            self._drop(member)
            self.context.tell(member.session, group.stream.name, member.options, error, now)

    def _delete_group(self, group: ConsumerGroup) -> None:
        if self._groups.pop((group.name, group.stream.name), None) is not None:
            _count_down(self._groups_of, group.founder)
        group.close()
        self.context.positions.drop(group)
        self.context.positions.forget(group.owner, group.stream.name)

    # Both.

    def _add(self, found: StreamSubscription) -> None:
        self.subscriptions[found.session.client_id, found.subscription.filter] = found
        self._readers_of[found.session.client_id] += 1
        self.by_stream.setdefault(found.stream.name, {})[found] = None

    def _drop(self, found: StreamSubscription) -> None:
        key = found.session.client_id, found.subscription.filter
        if self.subscriptions.get(key) is found:
            del self.subscriptions[key]
            _count_down(self._readers_of, found.session.client_id)
        others = self.by_stream.get(found.stream.name)
        if others is not None:
            others.pop(found, None)
            if not others:
                del self.by_stream[found.stream.name]

    def _begin(self, found: StreamSubscription, now: float) -> None:
        found.is_begun = True
        if isinstance(found, Member):
            found.group.rebalance_soon(now)
        found.pump(now)

    def _remove(self, found: StreamSubscription, now: float) -> None:
        self._drop(found)
        if isinstance(found, Member):
            found.group.leave(found, now)
        elif isinstance(found, ClientSubscription):
            found.close()
            positions = self.context.positions
            positions.drop(found)
            if any(cursor.recorded >= 0 for cursor in found.cursors):
                positions.forget(found.owner, found.stream.name)

    def _locate(
        self,
        stream: Stream,
        position: StartPosition,
        client_id: str,
        then: Callable[[tuple[int, ...] | Exception | None], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Find the offsets of a start: at once, or for a time by reading files.

        The result is None if it is no longer wanted when it is next.
        """
        at_us = position.at_us
        if at_us is None:
            then(position.offsets)
            return

        def look() -> tuple[int, ...] | Exception:
            try:
                source = self.context.sources.get(stream)
                return (source.earliest() if at_us == NULL else source.at_time(at_us)).ends
            except Exception as error:  # handled on the loop
                return error

        self.context.reads.read(client_id, look, then, is_wanted)

    def _restored_offsets(self, stream: Stream, offsets: dict[int, int]) -> tuple[int, ...]:
        """Return the offsets from the store, limited to the end; records may have been removed."""
        found = []
        for number, (start, end) in enumerate(zip(starts_of(stream), ends_of(stream), strict=True)):
            offset = offsets.get(number, start)
            if offset > end:
                self.context.log(
                    f"{stream.name} p{number}: position {offset} is beyond the end, {end}"
                )
            found.append(min(offset, end))
        return tuple(found)

    # Operators.

    def figures(self) -> ReplayFigures:
        counters = self.context.counters
        return ReplayFigures(
            len(self.subscriptions),
            counters.messages,
            counters.gaps,
            counters.redelivered,
            counters.dead,
            len(self._groups),
        )

    def groups(self, stream: str | None = None) -> list[GroupFigures]:
        """Return the groups of one stream, or of all."""
        found = []
        for group in self._groups.values():
            if stream is None or group.stream.name == stream:
                members: dict[str, list[int]] = {}
                for member in group.online:
                    partitions = members.setdefault(member.client_id, [])
                    partitions += [cursor.partition for cursor in member.cursors]
                committed = tuple(cursor.position for cursor in group.cursors)
                lag = tuple(group.lag)
                found.append(GroupFigures(group.name, members, committed, lag, group.stream.name))
        return sorted(found, key=lambda one: (one.stream, one.name))

    def group_reset(self, name: str, stream: str, offsets: Offsets) -> None:
        """Set the offsets of a group; refused while any of its members is online."""
        group = self._idle_group(name, stream)
        if offsets.epoch != group.stream.epoch:
            raise WrongEpoch(stream, offsets.epoch, group.stream.epoch)
        check(stream, offsets, starts_of(group.stream), ends_of(group.stream))
        recorded = [cursor.recorded for cursor in group.cursors]
        for cursor in group.cursors:
            self.context.read_ahead.close(cursor)
        group.open(offsets.ends)
        for cursor, before in zip(group.cursors, recorded, strict=False):
            cursor.recorded = before
        self.context.positions.record(group)

    def group_delete(self, name: str, stream: str) -> None:
        """Delete a group and its offsets; refused while it has members."""
        group = self._idle_group(name, stream)
        if group.members:
            raise Invalid(
                "group", f"{name!r} still has members that are not connected: {len(group.members)}"
            )
        self._delete_group(group)

    def _idle_group(self, name: str, stream: str) -> ConsumerGroup:
        self._log.stream(stream)
        group = self._groups.get((name, stream))
        if group is None:
            raise Invalid("group", f"stream {stream!r} has no group {name!r}")
        if group.online or group.leaving:
            raise Invalid("group", f"{name!r} has members that are online")
        return group


def _count_down(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]

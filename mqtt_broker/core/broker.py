"""The broker: everything its connections share, and the turns in which it runs.

    accept   a new link                     -> a Connection, to be fed with bytes
    flush    the end of a turn: write what the turn produced, once a peer
    tick     timers that are due; returns the next deadline
    resume   the access door's late answer to a CONNECT
    stop     tell everybody, and close

Nothing here knows the time, a socket or a file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT, PUBLISH
from mqtt_broker.codec.reasons import may_carry
from mqtt_broker.core import sys_topics
from mqtt_broker.core.clients import states
from mqtt_broker.core.clients.connection import Connection, Link
from mqtt_broker.core.clients.unanswered import Unanswered
from mqtt_broker.core.inbound import admission, connect, subscribe
from mqtt_broker.core.interfaces.access import Access, AskingGuard, Guard, OpenAccess, Verdict
from mqtt_broker.core.interfaces.message_log import ATTACHED, AWAY, ONLINE, MessageLog
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.limits import client_limits
from mqtt_broker.core.limits.preconnect_limits import PreconnectLimits
from mqtt_broker.core.limits.settings import DEFAULTS, UNLIMITED, Settings
from mqtt_broker.core.routing.dead_letters import REASONS, DeadLetters
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.core.runtime.timers import Timers
from mqtt_broker.topics.names import matches
from mqtt_broker.topics.retained import RetainedTree
from mqtt_broker.topics.shared import STRATEGIES, StrategyFactory
from sessions.journal.journal import MEMORY, Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull
from sessions.messages.counters import Counters
from sessions.messages.message import Message
from sessions.messages.outbox import DIRTY, Outbox
from sessions.registry import SessionRegistry
from sessions.session import Session

_RECHECKED_AT_ONCE: Final = 200  # sessions, when rules change: then others have their turn
_RECHECK_PAUSE_S: Final = 0.002
HEAD_MESSAGES_MIN: Final = 50  # that a client which is here has in memory, however little there is


def _raise(connection: Connection | None, data: bytes, error: Exception) -> None:
    raise error


class Broker:
    """One broker, whole from the start."""

    def __init__(
        self,
        settings: Settings = DEFAULTS,
        *,
        now: float,
        rng: random.Random,
        access: Access | None = None,
        log: Callable[[str], None] = lambda line: None,
        on_bug: Callable[[Connection | None, bytes, Exception], None] = _raise,
        heap_bytes: Callable[[], int] = lambda: 0,
        strategy: StrategyFactory | None = None,
        journal: Journal | None = None,
        durabilities: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.settings = settings
        self.limits = client_limits.KnownLimits(client_limits.of_settings(settings))  # of clients
        self.journal = journal  # None: everything is in memory
        self._durabilities = durabilities  # by Topic Filter; the first that matches counts
        self.rng = rng
        self.access: Access = OpenAccess() if access is None else access
        self.guarded = self.access.guards_topics
        self.guards: dict[str, Guard] = {}  # by client id: of sessions whose client was let in
        self._unchecked: list[str] = []  # clients whose subscriptions wait to be checked again
        self.is_strict = settings.maximum_qos < 2  # each PUBLISH is checked
        self.log = log
        self.on_bug = on_bug
        self.heap_bytes = heap_bytes
        self._strategy = strategy or STRATEGIES[settings.shared_strategy]

        self.budget = Backlog(
            settings.queue_messages_max,
            settings.queue_bytes_max,
            settings.queue_total_bytes_max,
            QueueFull(settings.queue_full),
            settings.queue_qos0,
            settings.inflight_max,
            0 if journal is None else 2 * settings.queue_memory_bytes_max,
        )
        self.sessions = SessionRegistry(self.budget, settings.receive_maximum, journal)
        if journal is not None:
            journal.report_to(log, lambda error: on_bug(None, b"", error))
        self.connections: dict[str, Connection] = {}  # by client id, those past CONNACK
        self.arriving: dict[str, Connection] = {}  # by client id, those that wait for the store
        self.users: dict[str, int] = {}  # user name: how many of its clients are connected
        self.links: set[Connection] = set()  # every one that is not closed
        self.strangers = PreconnectLimits(settings.connecting_bytes_max)
        self.routes = Routes()
        self.groups: dict[str, SharedGroup] = {}  # by the whole `$share/...` filter
        self.retained: RetainedTree[Message] = RetainedTree()
        self.retained_bytes = 0
        self.retained_of: dict[str, int] = {}  # client id: how many it published
        self.message_log: MessageLog | None = None
        self.checks: PayloadChecks | None = None
        self.dead_letters: DeadLetters | None = None
        if settings.dead_letters:
            wanted = settings.dead_letters.split(",")
            self.dead_letters = DeadLetters(self, frozenset(REASONS if "all" in wanted else wanted))
            self.budget.mourner = self.dead_letters
        self.stats = Counters(now)
        self.timers = Timers()
        self.is_shutting_down = False
        self.access_figures: Callable[[], dict[str, int]] = dict  # what the access door counts
        self.store_figures: Callable[[], dict[str, int]] = dict
        self.log_figures: Callable[[], dict[str, int]] = dict  # of streams and who reads them
        self.healed: dict[str, int] = {}  # what the store had that could not be, and how often
        self.watch_figures: Callable[[], dict[str, str]] = dict  # of the server's watchdog
        self.store_state = ""  # what is wrong with the store; empty: nothing
        self.unanswered = Unanswered()  # acknowledgements that wait for it

        self.dirty: list[Outbox] = []  # outboxes with something to write this turn
        self.flushed_at = now  # the time of the turn that is being written
        self.turn_bytes = 0  # appended to them since the last flush
        self.waiting_bytes = 0  # handed to links, not yet read by peers
        self.waiting_bytes_max = settings.outbox_total_bytes_max
        self._held_back: set[Connection] = set()

        if settings.sys_interval_s:
            sys_topics.start(self, now)
        self.timers.at(now + settings.retained_sweep_s, self._sweep_retained)

    @property
    def redeliveries_max(self) -> int:
        """How often a consumer group tries again; 0: always, nobody keeps what it gives up."""
        letters = self.dead_letters
        wanted = letters is not None and "redelivery" in letters.reasons
        return self.settings.redeliveries_max if wanted else 0

    def attach_log(self, log: MessageLog) -> None:
        """Write what is published to this log from now on, and let clients read it.

        The one part that a broker gets late: a log needs the broker it sends records through.
        """
        self.message_log = log

    def _tell_log(self, session: Session, change: int, now: float) -> None:
        if self.message_log is not None and session.outbound.sources is not None:
            self.message_log.subscriptions.on_session(session, change, now)

    # The turn.

    def accept(self, link: Link, now: float) -> Connection:
        connection = Connection(self, link, now)
        self.links.add(connection)
        self.stats.sockets += 1
        return connection

    def flush(self, now: float) -> None:
        """Write everything the turn produced: one write a peer."""
        if self.dead_letters is not None:
            try:
                self.dead_letters.publish(now)
            except Exception as error:  # of that letter; those behind it are for the next turn
                self.on_bug(None, b"", error)
        self.flushed_at = now
        for box in self.dirty:  # which grows while it is written
            try:
                self.write_out(box, now)
            except Exception as error:
                box.owner.on_error(error, b"", now)
        self.dirty.clear()
        self.turn_bytes = 0

    def write_out(self, box: Outbox, now: float) -> None:
        pieces = box.pieces
        box.state &= ~DIRTY
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.stats.bytes_sent += len(data)
        waiting = box.write(data)
        if waiting or box.waiting_bytes:
            box.owner.on_written(waiting, now)

    def tick(self, now: float) -> float:
        while self.timers.next() <= now:
            try:
                self.timers.run(now)
            except Exception as error:  # ours; the other deadlines stand all the same
                self.on_bug(None, b"", error)
        return self.timers.next()

    def resume(self, connection: Connection, verdict: Verdict, now: float) -> None:
        """The answer to a CONNECT that waited. Too late, or a second one: ignored."""
        if connection.is_undecided and connection.state != states.CLOSED:
            if connection.state == states.WAITING:
                connection.link.resume_reading()
            connection.resume(verdict, now)

    def stop(self, now: float) -> None:
        """Tell every client that the server goes, and close. [MQTT-4.13.1-1]"""
        self.is_shutting_down = True
        for connection in list(self.links):
            try:
                connection.end(now, reasons.SERVER_SHUTTING_DOWN, say=connection.has_session)
            except Exception as error:
                self.on_bug(connection, b"", error)

    # Connections come and go.

    @property
    def publishes_sent(self) -> int:
        return self.stats.packets_sent[PUBLISH] + self.budget.published

    @property
    def clients_connected(self) -> int:
        return len(self.connections)

    def attach(
        self, connection: Connection, receive_maximum: int, on_overflow: Callable[[], None]
    ) -> None:
        """The connection carries its session from now on."""
        session = connection.session
        before = session.outbound.version, session.outbound.is_plain
        session.outbound.attach(connection.outbox, receive_maximum, on_overflow)
        if session.subscriptions and before != (
            session.outbound.version,
            session.outbound.is_plain,
        ):
            for text in session.subscriptions:  # routes sort receivers by what they take
                self.routes.cache.drop(text)
        self.connections[session.client_id] = connection
        username = session.username
        if username is not None:
            self.users[username] = self.users.get(username, 0) + 1
            connection.counted_as = username
        self._tell_log(session, ATTACHED, connection.connected_at)
        self.stats.connections += 1
        self.stats.clients_maximum = max(self.stats.clients_maximum, len(self.connections))

    def on_closed(self, connection: Connection, why: str, now: float) -> None:
        """The connection's last word: its session lives on, or does not."""
        self.links.discard(connection)
        self._held_back.discard(connection)
        self.strangers.forget(connection)
        self.unanswered.forget(connection)
        admission.give_up(self, connection)
        self.waiting_bytes -= connection.outbox.waiting_bytes
        connection.outbox.waiting_bytes = 0
        self.release_held_back()
        if connection.has_session and connection.session.outbound.outbox is connection.outbox:
            session = connection.session
            session.outbound.detach()
            del self.connections[session.client_id]
            username = connection.counted_as
            if username is not None:
                self.users[username] -= 1
                if not self.users[username]:
                    del self.users[username]
            try:
                if self.settings.client_events:
                    body = json.dumps({"reason": why, "at": round(now, 3)})
                    sys_topics.publish_event(self, session.client_id, "disconnected", body, now)
            finally:
                connect.close_session(connection, now)

    def end_session(self, session: Session, now: float) -> None:
        connect.forget_session(self, session, now)

    # Shared subscriptions.

    def group(self, text: str, topic_filter: str) -> SharedGroup:
        """The group of a `$share` filter, made when its first member joins."""
        group = self.groups.get(text)
        if group is None:
            strategy = self._strategy(self.rng)
            group = SharedGroup(text, topic_filter, strategy, self.budget, self.journal)
            self.groups[text] = group
            self.routes.add_group(topic_filter, text, group)
        return group

    def leave_group(self, text: str, session: Session, now: float) -> None:
        group = self.groups[text]
        group.leave(session)
        if not group.members:
            group.dissolve(now)
            self.routes.remove_group(group.filter, text)
            del self.groups[text]

    def refresh_groups(self, session: Session, now: float) -> None:
        """The session came online or went away."""
        for text in session.subscriptions:
            group = self.groups.get(text)
            if group is not None:
                group.refresh(now)
        if session.is_online:
            self._tell_log(session, ONLINE, now)

    def move_shared(self, session: Session, now: float) -> None:
        """What the session held for its groups goes to other members. [MQTT-4.8.2-3]"""
        self.refresh_groups(session, now)
        self._tell_log(session, AWAY, now)
        mine: list[object] = [self.groups[t] for t in session.subscriptions if t in self.groups]
        outbound = session.outbound
        for item in outbound.take_back(mine) if mine or outbound.has_group_deliveries else ():
            group = item[1].group
            assert isinstance(group, SharedGroup)
            if not group.hand_over(session.session_number, item, now):
                self.budget.drop("no_member")

    # Retained messages.

    def retain(
        self,
        message: Message,
        txn: PublishTransaction | None,
        now: float,
        own_max: int = UNLIMITED,
    ) -> bool:
        """Keep, replace or (empty payload) remove; False when a limit forbids it."""
        topic = message.envelope.topic
        if not message.payload:  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            self.forget_retained(topic, txn)
            return True
        size = message.envelope.size
        before = self.retained.get(topic)
        if before is None and len(self.retained) >= self.settings.retained_messages_max:
            return False
        publisher = message.envelope.publisher
        is_one_more = before is None or before.envelope.publisher != publisher
        if is_one_more and self.retained_of.get(publisher, 0) >= own_max:
            return False
        grown = self.retained_bytes + size - (before.envelope.size if before else 0)
        if grown > self.settings.retained_bytes_max:
            return False
        self.retained.put(topic, message)  # [MQTT-3.3.1-5]
        self.retained_bytes = grown
        if is_one_more:
            self.count_retained(publisher, 1)
            if before is not None:
                self.count_retained(before.envelope.publisher, -1)
        self._record_retained(message, before, txn)
        return True

    def forget_retained(self, topic: str, txn: PublishTransaction | None = None) -> None:
        before = self.retained.remove(topic)
        if before is not None:
            self.retained_bytes -= before.envelope.size
            self.count_retained(before.envelope.publisher, -1)
            self._record_retained(None, before, txn)

    def count_retained(self, publisher: str, change: int) -> None:
        count = self.retained_of.get(publisher, 0) + change
        if count:
            self.retained_of[publisher] = count
        else:
            del self.retained_of[publisher]

    def _record_retained(
        self, message: Message | None, before: Message | None, txn: PublishTransaction | None
    ) -> None:
        journal = self.journal
        if journal is None:
            return
        before_mid = 0 if before is None else before.message_number
        if txn is not None and (message is not None or before_mid):
            txn.retain(message, before_mid)
        elif before_mid:
            journal.on_retained_gone(before_mid)

    def _sweep_retained(self, now: float) -> None:
        """Expired retained messages go even when nobody asks for them."""
        self.timers.at(now + self.settings.retained_sweep_s, self._sweep_retained)
        expired = [m.envelope.topic for m in self.retained.values() if m.envelope.is_expired(now)]
        for topic in expired:
            self.forget_retained(topic)

    # Back-pressure.

    def hold_back(self, connection: Connection, now: float) -> None:
        """Too much waits for slow readers or for the disk: stop reading from who adds to it."""
        if not connection.is_held_back and connection.state == states.ACTIVE:
            if not self._held_back:
                self._watch_readers(now)
            connection.is_held_back = True
            connection.link.pause_reading()
            self._held_back.add(connection)

    def _watch_readers(self, now: float) -> None:
        self.timers.at(now + self.settings.stalled_reader_s, self._on_readers_check)

    def _on_readers_check(self, now: float) -> None:
        """Readers that stand still, each below its own limit, may not stop everybody."""
        try:
            if self._held_back:
                for connection in list(self.links):
                    connection.close_if_stalled(now)
        finally:
            if self._held_back:
                self._watch_readers(now)

    def release_held_back(self) -> None:
        if (
            self._held_back
            and self.waiting_bytes < self.waiting_bytes_max * 0.8
            and not self.is_store_behind
        ):
            for connection in self._held_back:
                self._let_go(connection)
            self._held_back.clear()

    def _let_go(self, connection: Connection) -> None:
        connection.is_held_back = connection.awaits_log = False
        connection.read_on()

    def on_store_state(self, state: str) -> None:
        """What is wrong with the store, or nothing. QoS 0 does not wait for one that fails."""
        self.store_state = state
        if state:
            for connection in [c for c in self._held_back if c.awaits_log]:
                self._held_back.discard(connection)
                self._let_go(connection)

    # The store.

    def durability_of(self, topic: str) -> int:
        """What an acknowledgement promises on this topic."""
        if self.journal is None or topic.startswith("$SYS/"):
            return MEMORY
        for text, mode in self._durabilities:
            if matches(text, topic):
                return mode
        return self.journal.mode

    @property
    def is_store_behind(self) -> bool:
        """Whether more waits for the store, or for its tables, than memory is meant for."""
        journal = self.journal
        return journal is not None and (
            journal.uncommitted_bytes > self.settings.journal_bytes_max
            or journal.unfolded_bytes > self.settings.queue_memory_bytes_max
            or self._is_log_full
        )

    @property
    def is_log_behind(self) -> bool:
        """Whether QoS 0 waits for the log too. With a store that fails it goes on without it."""
        return self._is_log_full and not self.store_state

    @property
    def _is_log_full(self) -> bool:
        journal = self.journal
        return (
            journal is not None
            and journal.participant is not None
            and journal.participant.waiting_bytes > self.settings.stream_bytes_max
        )

    def on_committed(self, number: int, now: float) -> None:
        """Everything up to this group is on disk: what waited for it goes out."""
        assert self.journal is not None
        self.journal.on_committed(number, now)
        if self.arriving:
            admission.admit_ready(self, now)
        self.release_held_back()

    def on_folded(self, number: int, now: float) -> None:
        """The tables hold everything up to this group: memory need not."""
        assert self.journal is not None
        self.journal.on_folded(number)
        limit = self.settings.queue_memory_bytes_max
        if self.budget.memory_bytes > limit:
            self._spare_memory(number, int(limit * 0.8))
        self.release_held_back()

    def _spare_memory(self, folded: int, target_bytes: int) -> None:
        """Leave to the store alone what it has of queues, those of absent clients first."""
        for keep, is_online in ((0, False), (HEAD_MESSAGES_MIN, True)):
            for session in self.sessions:
                if session.is_online is is_online:
                    session.outbound.unload(folded, keep)
                if self.budget.memory_bytes <= target_bytes:
                    return
        for group in self.groups.values():
            group.unload(folded, 0)

    # What clients may do, when that changes.

    def guard_of(self, session: Session) -> Guard:
        """Of a session from the store nobody knows more than its client id and user name."""
        guard = self.guards.get(session.client_id)
        return guard or AskingGuard(self.access, session.client_id, session.username)

    def recheck(self, now: float) -> None:
        """The rules changed: nothing remembered holds, and subscriptions are checked again.

        Sessions from the store whose client was not here since are checked when it comes.
        """
        self.guarded = self.access.guards_topics
        for connection in self.connections.values():
            if connection.allowed is not None:
                connection.allowed.clear()
        is_under_way = bool(self._unchecked)
        self._unchecked = list(self.guards)
        if not is_under_way:
            self._recheck_some(now)

    def _recheck_some(self, now: float) -> None:
        for _ in range(min(_RECHECKED_AT_ONCE, len(self._unchecked))):
            self.recheck_client(self._unchecked.pop(), now)
        if self._unchecked:
            self.timers.at(now + _RECHECK_PAUSE_S, self._recheck_some)

    def recheck_client(self, client_id: str, now: float) -> None:
        """MQTT has no word for a subscription that is taken back, but for the connection."""
        session = self.sessions.get(client_id)
        if session is None:
            return
        connection = self.connections.get(client_id)
        guard = self.guards.get(client_id)
        is_gone = guard is not None and not guard.is_welcome
        if (self.withdraw(session, now) or is_gone) and connection is not None:
            connection.end(now, reasons.NOT_AUTHORIZED, why="no longer allowed")

    def withdraw(self, session: Session, now: float) -> bool:
        """Take back the subscriptions it may no longer have; whether there were any."""
        guard = self.guards.get(session.client_id)
        if guard is None:
            return False
        lost = [
            s for s in session.subscriptions.values() if not guard.may_subscribe(s.filter, s.qos)
        ]
        for subscription in lost:
            subscribe.unsubscribe(self, subscription, now)
            self.log(f"{session.client_id}: no longer allowed to subscribe {subscription.filter!r}")
        return bool(lost)

    # What operators may do.

    def kick(self, client_id: str, now: float, reason: int = reasons.ADMINISTRATIVE_ACTION) -> bool:
        """Disconnect a client; False when it is not connected."""
        connection = self.connections.get(client_id)
        if connection is None:
            return False
        assert may_carry(DISCONNECT, reason)
        connection.end(now, reason, why="kicked")
        return True

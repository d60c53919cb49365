"""Rows about clients, subscriptions and retained messages, for operators.

The tables of the broker may be long, so they are walked on the agenda: a small part of a share in
each turn, after everybody with input was served. A row is a flat tuple of plain values, which any
thread may read; what changes between two slices may be in the rows as it was or as it is.

    clients        a row for each session, whether its client is connected or not
    subscriptions  a row for each filter, of all clients or of one
    matches        the subscriptions that a topic matches
    retained       a page of the retained messages that a filter matches
    branches       how many there are below each child of a level
    inflight, queue  the messages of one session
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.rows import (
    HAS_CHILDREN,
    HAS_MESSAGE,
    ONE_BELOW,
    ClientDetail,
    ClientRow,
    MatchRow,
    MessageRow,
    Place,
    RetainedMessage,
    RetainedRow,
    RetainedSelect,
    RetainedSelected,
    Rows,
    SubscriptionRow,
)
from mqtt_broker.core.limits.client_limits import known_limits
from mqtt_broker.core.runtime.backpressure import NAMES
from mqtt_broker.topics.names import split_share
from mqtt_broker.topics.retained import RetainedScan
from sessions.journal.transaction import Delivery
from sessions.messages.message import Message
from sessions.messages.work import DONE, MORE, Work
from sessions.session import Session, Subscription

PARTS: Final = 50  # of a share, of which a walk takes one in a turn
ROW: Final = 20  # units of a row
_SPARE: Final = 64  # candidates for a page, beyond its size, until they are sorted
_SCAN_STEPS: Final = 32  # nodes of the tree of retained messages, between looks at the share

T = TypeVar("T")
R = TypeVar("R")


class Walk(Generic[T, R]):
    """Makes rows of a list of objects, a few in a turn, and hands them over at the end."""

    __slots__ = ("_at", "_done", "_items", "_make", "_rows", "_work")

    def __init__(
        self,
        work: Work,
        items: list[T],
        make: Callable[[T, list[R]], None],
        done: Callable[[Rows[R]], None],
    ) -> None:
        self._work = work
        self._items = items
        self._make = make  # appends the rows of an object
        self._done = done
        self._rows: Rows[R] = Rows()
        self._at = 0

    def go_on(self, now: float) -> int:
        """Make some more rows; see `WorkItem`."""
        work, items = self._work, self._items
        rows: list[R] = []
        self._rows.parts.append(rows)
        limit = work.narrow(PARTS)
        while self._at < len(items):
            before = len(rows)
            self._make(items[self._at], rows)
            self._at += 1
            work.spent += ROW * (1 + len(rows) - before)
            if work.is_over:
                break
        work.widen(limit)
        if self._at < len(items):
            return MORE
        self._done(self._rows)
        return DONE


class _Selection:
    """Finds the first retained messages behind a place, and counts all that match.

    Only these become rows: a hundred thousand that nobody sees would take long to free.
    """

    __slots__ = ("_best", "_done", "_query", "_scan", "_total", "_work")

    def __init__(
        self,
        work: Work,
        scan: RetainedScan[Message],
        query: RetainedSelect,
        done: Callable[[RetainedSelected], None],
    ) -> None:
        self._work = work
        self._scan = scan
        self._query = query
        self._done = done
        self._best: list[tuple[Place, Message]] = []
        self._total = 0

    def go_on(self, now: float) -> int:
        """Look at some more; see `WorkItem`."""
        work, scan = self._work, self._scan
        limit = work.narrow(PARTS)
        while not scan.is_done:
            before = scan.steps
            found = scan.take(_SCAN_STEPS)
            for message in found:
                if not message.envelope.is_expired(now):
                    self._look_at(message)
            work.spent += ROW // 4 * len(found) + (scan.steps - before)
            if len(self._best) > self._query.limit + _SPARE:
                self._sort()
            if work.is_over:
                break
        work.widen(limit)
        if not scan.is_done:
            return MORE
        self._sort()
        rows = [_retained_row(message) for _, message in self._best]
        self._done(RetainedSelected(rows, self._total))
        return DONE

    def _look_at(self, message: Message) -> None:
        query = self._query
        topic = message.envelope.topic
        if query.part and query.part not in topic.casefold():
            return
        self._total += 1
        value: float | str = ""
        if query.sort == "bytes":
            value = len(message.payload)
        elif query.sort == "received_at":
            value = message.envelope.received_at
        place: Place = (value, topic)
        after = query.after
        if after is None or (place < after if query.is_reversed else place > after):
            self._best.append((place, message))

    def _sort(self) -> None:
        """Keep one more than is wanted, in their order."""
        self._best.sort(key=_place_of, reverse=self._query.is_reversed)
        del self._best[self._query.limit + 1 :]


class _Branches:
    """Counts the retained messages below each child of a level of the tree."""

    __slots__ = ("_begin", "_done", "_found", "_scan", "_work")

    def __init__(
        self,
        work: Work,
        scan: RetainedScan[Message],
        prefix: str,
        done: Callable[[dict[str, int]], None],
    ) -> None:
        self._work = work
        self._scan = scan
        self._begin = len(prefix) + 1 if prefix else 0
        self._done = done
        self._found: dict[str, int] = {}

    def go_on(self, now: float) -> int:
        """Look at some more; see `WorkItem`."""
        work, scan = self._work, self._scan
        limit = work.narrow(PARTS)
        while not scan.is_done:
            before = scan.steps
            found = scan.take(_SCAN_STEPS)
            for message in found:
                if not message.envelope.is_expired(now):
                    self._count(message.envelope.topic)
            work.spent += ROW // 4 * len(found) + (scan.steps - before)
            if work.is_over:
                break
        work.widen(limit)
        if not scan.is_done:
            return MORE
        self._done(self._found)
        return DONE

    def _count(self, topic: str) -> None:
        begin = self._begin
        if begin and (len(topic) < begin or topic[begin - 1] != "/"):
            return  # the level itself
        end = topic.find("/", begin)
        name = topic[begin:] if end < 0 else topic[begin:end]
        known = self._found.get(name, 0)
        self._found[name] = (known | (HAS_MESSAGE if end < 0 else HAS_CHILDREN)) + ONE_BELOW


def _place_of(item: tuple[Place, Message]) -> Place:
    return item[0]


class Inspector:
    """Starts the walks over one broker's tables."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def clients(self, done: Callable[[Rows[ClientRow]], None]) -> None:
        """Make a row for each session."""

        def make(session: Session, rows: list[ClientRow]) -> None:
            rows.append(self.client_row(session))

        self._start(list(self._state.sessions), make, done)

    def subscriptions(
        self, client_id: str | None, done: Callable[[Rows[SubscriptionRow]], None]
    ) -> None:
        """Make a row for each subscription, of all clients or of one."""
        if client_id is None:
            sessions = list(self._state.sessions)
        else:
            session = self._state.sessions.get(client_id)
            sessions = [] if session is None else [session]

        def make(session: Session, rows: list[SubscriptionRow]) -> None:
            for subscription in session.subscriptions.values():
                rows.append(_subscription_row(subscription))

        self._start(sessions, make, done)

    def matches(self, topic: str, done: Callable[[Rows[MatchRow]], None]) -> None:
        """Make a row for each subscription that a topic matches."""
        routes = self._state.routes
        found = list(routes.trie.match(topic))
        for group in routes.groups.match(topic):
            found += [member.subscription for member in group.members.values()]
        self._state.work.spent += routes.trie.steps + routes.groups.steps + len(found)
        self._start(found, self._match_maker(topic), done)

    def _match_maker(self, topic: str) -> Callable[[Subscription, list[MatchRow]], None]:
        guards = self._state.authorizer.guards

        def make(subscription: Subscription, rows: list[MatchRow]) -> None:
            session = subscription.session
            if session.outbound.is_over:
                return
            guard = guards.get(session.client_id)
            shared = split_share(subscription.filter)
            text = subscription.filter if shared is None else shared[1]
            may = guard is None or guard.may_subscribe(text, subscription.qos)
            rows.append(
                MatchRow(
                    session.client_id,
                    subscription.filter,
                    subscription.qos,
                    "" if shared is None else shared[0],
                    session.is_online,
                    may,
                )
            )

        return make

    def retained(self, query: RetainedSelect, done: Callable[[RetainedSelected], None]) -> None:
        """Find the retained messages of a page."""
        self._state.agenda.add(_Selection(self._state.work, self._scan(query.text), query, done))

    def branches(self, prefix: str, done: Callable[[dict[str, int]], None]) -> None:
        """Count the retained messages below each child of a level; empty: the top."""
        scan = self._scan(f"{prefix}/#" if prefix else "")
        self._state.agenda.add(_Branches(self._state.work, scan, prefix, done))

    def _scan(self, text: str) -> RetainedScan[Message]:
        retained = self._state.retained
        return retained.scan(text) if text else retained.scan_all()

    def inflight(self, client_id: str, done: Callable[[Rows[MessageRow]], None]) -> bool:
        """Make a row for each message in flight to a client; False: it has no session."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return False

        def make(item: tuple[int, Delivery], rows: list[MessageRow]) -> None:
            rows.append(_message_row(item[0], item[1]))

        self._start(list(session.outbound.window.unacked.items()), make, done)
        return True

    def queue(self, client_id: str, done: Callable[[Rows[MessageRow]], None]) -> bool:
        """Make a row for each message in memory that waits for a client."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return False
        queue = session.outbound.queue
        items = [] if queue is None else list(enumerate(queue.items()))

        def make(item: tuple[int, Delivery], rows: list[MessageRow]) -> None:
            rows.append(_message_row(item[0], item[1]))

        self._start(items, make, done)
        return True

    def _start(
        self,
        items: list[T],
        make: Callable[[T, list[R]], None],
        done: Callable[[Rows[R]], None],
    ) -> None:
        self._state.agenda.add(Walk(self._state.work, items, make, done))

    # One client.

    def _connection(self, client_id: str) -> Connection | None:
        return cast("Connection | None", self._state.clients.connections.get(client_id))

    def client_row(self, session: Session) -> ClientRow:
        """Return the row of a session."""
        client_id = session.client_id
        connection = self._connection(client_id)
        outbound = session.outbound
        is_online = connection is not None and session.is_online
        box = outbound.outbox
        return ClientRow(
            client_id,
            is_online,
            session.username,
            connection.link.peer if connection is not None else "",
            outbound.version,
            connection.listener if connection is not None else "",
            connection.connected_at if connection is not None else 0.0,
            0.0 if is_online else session.disconnected_at,
            session.created_at,
            0.0 if is_online else session.expires_at,
            connection.server_keep_alive if connection is not None else 0,
            connection.clean_start if connection is not None else False,
            session.expiry_interval,
            session.session_number > 0,
            len(session.subscriptions),
            len(outbound.window),
            outbound.queued,
            outbound.queue_bytes,
            outbound.dropped,
            box.waiting_bytes if is_online else 0,
            connection.messages_in if connection is not None else 0,
            box.messages_out if is_online else 0,
            connection.bytes_in if connection is not None else 0,
            box.bytes_out + box.handed_bytes if is_online else 0,
            connection.last_heard_at if connection is not None else 0.0,
            ()
            if connection is None or not connection.is_paused
            else _held_names(connection.pauses),
        )

    def client(self, client_id: str) -> ClientDetail | None:
        """Return all about one client; None: it has no session."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return None
        connection = self._connection(client_id)
        outbound = session.outbound
        will = session.will
        return ClientDetail(
            self.client_row(session),
            outbound.window.limit if session.is_online else 0,
            outbound.outbox.packet_bytes_max if session.is_online else 0,
            None if will is None else (will.topic, will.qos, will.retain, len(will.payload)),
            {} if connection is None else known_limits(connection.limits),
        )

    def retained_message(self, topic: str, now: float) -> RetainedMessage | None:
        """Return the retained message of a topic."""
        message = self._state.retained.get(topic)
        if message is None or message.envelope.is_expired(now):
            return None
        return RetainedMessage(_retained_row(message), message.payload, message.envelope.section)


def _held_names(pauses: int) -> tuple[str, ...]:
    """Return the names of the reasons for which a client is not read from."""
    return tuple(name for reason, name in NAMES.items() if pauses & reason)


def _retained_row(message: Message) -> RetainedRow:
    """Return the row of a retained message."""
    envelope = message.envelope
    return RetainedRow(
        envelope.topic,
        envelope.qos,
        len(message.payload),
        envelope.publisher,
        envelope.received_at,
        envelope.expires_at,
    )


def _subscription_row(subscription: Subscription) -> SubscriptionRow:
    shared = split_share(subscription.filter)
    return SubscriptionRow(
        subscription.session.client_id,
        subscription.filter,
        subscription.qos,
        "" if shared is None else shared[0],
        subscription.no_local,
        subscription.retain_as_published,
        subscription.retain_handling,
        subscription.identifier,
        subscription.session.is_online,
    )


def _message_row(place: int, item: Delivery) -> MessageRow:
    message, options, _, _ = item
    envelope = message.envelope
    return MessageRow(
        place,
        envelope.topic,
        options.qos,
        options.retain,
        len(message.payload),
        envelope.publisher,
        envelope.received_at,
        envelope.expires_at,
    )

"""The broker: everything its connections share, and the turns in which it runs.

    accept   a new link                     -> a Connection, to be fed by `dispatch.receive`
    work     what was too much for one turn: a slice of it
    flush    the end of a turn: write what the turn produced, once a peer
    tick     timers that are due, a share of them; returns the next deadline
    resume   the late verdict on a CONNECT
    stop     tell every client, and close

Nothing here knows the time, a socket or a file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, cast

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT
from mqtt_broker.codec.reasons import may_carry
from mqtt_broker.core import dispatch, sys_topics
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.access import Access, OpenAccess, Verdict
from mqtt_broker.core.interfaces.client_log import ClientLog
from mqtt_broker.core.interfaces.link import Link
from mqtt_broker.core.interfaces.message_log import MessageLog
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.interfaces.tracing import MessageTracer
from mqtt_broker.core.limits.settings import DEFAULTS, Settings
from mqtt_broker.core.routing import dead_letters
from mqtt_broker.core.runtime.backpressure import STOPPING
from mqtt_broker.core.runtime.runtime import FailedClient, OnBug, Runtime
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.topics.shared import STRATEGIES, StrategyFactory
from sessions.journal.journal import Journal
from sessions.messages.work import Work

HEAD_MESSAGES_MIN: Final = 50  # of a connected client in memory, however little there is


def _raise(client: FailedClient | None, data: bytes, error: Exception) -> None:
    raise error


class Broker:
    """A broker; complete once it is constructed, except for the message log."""

    def __init__(
        self,
        settings: Settings = DEFAULTS,
        *,
        now: float,
        rng: random.Random,
        id_rng: random.Random | None = None,
        access: Access | None = None,
        log: Callable[[str], None] = lambda line: None,
        client_log: ClientLog | None = None,
        message_tracer: MessageTracer | None = None,
        on_bug: OnBug = _raise,
        heap_bytes: Callable[[], int] = lambda: 0,
        strategy: StrategyFactory | None = None,
        journal: Journal | None = None,
        durabilities: Sequence[tuple[str, int]] = (),
        checks: PayloadChecks | None = None,
        work: Work | None = None,
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.runtime = Runtime(
            now=now,
            rng=rng,
            id_rng=rng if id_rng is None else id_rng,
            log=log,
            on_bug=on_bug,
            heap_bytes=heap_bytes,
            dead_letters=dead_letters.buffer_for(settings.dead_letters),
            outbox_bytes_max=settings.outbox_bytes_max,
            outbox_total_bytes_max=settings.outbox_total_bytes_max,
            work=Work() if work is None else work,
            client_log=client_log,
            message_tracer=message_tracer,
        )
        self.state = BrokerState(
            settings,
            self.runtime,
            OpenAccess() if access is None else access,
            journal,
            durabilities,
            checks,
            strategy or STRATEGIES[settings.shared_strategy],
            Recorder(settings.recorder_bytes_max, now) if settings.recorder_bytes_max else None,
            now,
        )
        self.counters = self.runtime.counters
        self.outboxes = self.runtime.outboxes
        self.timers = self.runtime.timers
        self.backlog = self.state.backlog
        self.backpressure = self.state.backpressure
        self.clients = self.state.clients
        # Connections by client id, those past CONNACK; and every one that is not closed.
        self.connections = cast(dict[str, Connection], self.clients.connections)
        self.links = cast(dict[Connection, None], self.clients.links)
        self.retained = self.state.retained
        self.routes = self.state.routes
        self.sessions = self.state.sessions
        self.subscriptions = self.state.subscriptions
        self.unanswered = self.state.unanswered
        self.recorder = self.state.recorder
        if journal is not None:
            journal.report_to(log, lambda error: self.runtime.on_bug(None, b"", error))
        self.sys_topics = sys_topics.SysTopics(self.state, now)
        self.sys_topics.start(now)

    def attach_log(self, log: MessageLog | None) -> None:
        """Write what is published to this log from now on, and let clients read it.

        The one part that a broker gets late: a log needs the broker it sends records through.
        """
        self.state.router.attach_log(log)
        self.subscriptions.attach_log(log)

    def on_turn(self, seconds: float) -> None:
        """Count a turn of the sockets, which took so long."""
        self.state.timings.on_turn(seconds, self.backlog.published)

    @property
    def redeliveries_max(self) -> int:
        """The most redeliveries of a consumer group; 0: no end, since no dead letters are kept."""
        buffer = self.runtime.dead_letters
        wanted = buffer is not None and "redelivery" in buffer.reasons
        return self.settings.redeliveries_max if wanted else 0

    # The turn.

    def accept(self, link: Link, now: float) -> Connection:
        connection = Connection(self.state, link, now)
        self.clients.add(connection)
        self.counters.sockets += 1
        return connection

    def receive(self, connection: Connection, data: bytes, now: float) -> int:
        """Act on what the peer sent; see `dispatch.receive`."""
        return dispatch.receive(connection, data, now)

    @property
    def has_work(self) -> bool:
        """Tell whether `work` has anything to do."""
        return len(self.runtime.agenda.items) > 0

    @property
    def has_more(self) -> bool:
        """Tell whether a turn has to come at once: for `work`, or to write what was not written."""
        return len(self.runtime.agenda.items) > 0 or self.outboxes.has_left

    def work(self, now: float) -> None:
        """Go on with what was too much for one turn, a share each."""
        self.runtime.agenda.run(now)
        if self.clients.ready:
            dispatch.admit_finished(self.state, now)

    def flush(self, now: float) -> None:
        """Write what the turn produced: one write a peer. What is too much for one turn waits."""
        buffer = self.runtime.dead_letters
        if buffer is not None:
            try:
                dead_letters.publish_all(buffer, self.state.router, self.backlog, now)
            except Exception as error:  # of that message; those behind it are for the next turn
                self.runtime.on_bug(None, b"", error)
        outboxes = self.outboxes
        outboxes.flush(now)
        if outboxes.share_bytes < outboxes.share_bytes_max:
            self.state.slow_readers.balance(now)
        if self.backpressure.paused:
            self.backpressure.resume()
        if self.backpressure.unsent and not outboxes.has_left:
            self.backpressure.on_written()
        backlog = self.backlog
        if backlog.inflight_bytes * 2 > backlog.inflight_total_bytes_max:
            self.state.unacknowledged.watch(now)
        if backlog.starved:
            backlog.feed_starved(now)

    @property
    def has_output(self) -> bool:
        """Tell whether `flush` has anything to do."""
        buffer = self.runtime.dead_letters
        return (
            len(self.outboxes.dirty) > 0
            or (buffer is not None and len(buffer) > 0)
            or len(self.backpressure.paused) > 0
            or (len(self.backlog.starved) > 0 and self.backlog.may_feed)
        )

    def tick(self, now: float) -> float:
        """Fire timers that are due, a turn's share of them; the next deadline may be over, too."""
        timers = self.timers
        work = self.runtime.work
        work.begin()
        while timers.next() <= now and not work.is_over:
            try:
                timers.run(now, work)
            except Exception as error:  # ours; the other deadlines stand all the same
                self.runtime.on_bug(None, b"", error)
        return timers.next()

    def resume(self, connection: Connection, verdict: Verdict, now: float) -> None:
        """Carry on with a late verdict. Too late, or a second one: ignored."""
        dispatch.resume(connection, verdict, now)

    def stop_reading(self) -> None:
        """Read nothing from anybody from now on: what was read is finished before `stop`."""
        for client in list(self.links):
            client.pause(STOPPING)

    def stop(self, now: float) -> None:
        """Tell every client that the server goes, and close. [MQTT-4.13.1-1]"""
        self.clients.shut_down()
        for client in list(self.links):
            try:
                client.end(now, reasons.SERVER_SHUTTING_DOWN, say=client.has_session)
            except Exception as error:
                self.runtime.on_bug(client, b"", error)

    # The store.

    def on_committed(self, number: int, now: float) -> None:
        """Send what waited for this group of the journal: it is on disk."""
        assert self.journal is not None
        self.journal.on_committed(number, now)
        if self.clients.arriving:
            dispatch.admit_ready(self.state, now)
        if self.backpressure.paused:
            self.backpressure.resume()

    def on_folded(self, number: int, now: float) -> None:
        """Free memory: the tables hold everything up to this group."""
        assert self.journal is not None
        self.journal.on_folded(number)
        limit = self.settings.queue_memory_bytes_max
        if self.backlog.memory_bytes > limit:
            self._spare_memory(number, int(limit * 0.8))
        if self.backpressure.paused:
            self.backpressure.resume()

    def _spare_memory(self, folded: int, target_bytes: int) -> None:
        """Unload what the store has of queues, those of absent clients first."""
        for keep, is_online in ((0, False), (HEAD_MESSAGES_MIN, True)):
            for session in self.sessions:
                if session.is_online is is_online:
                    session.outbound.unload(folded, keep)
                if self.backlog.memory_bytes <= target_bytes:
                    return
        for group in self.subscriptions.groups.values():
            group.unload(folded, 0)

    def on_store_state(self, state: str) -> None:
        """Adapt to a store that fails, or works again; `state` is what is wrong."""
        self.backpressure.on_store_state(state)

    # What operators may do.

    def reauthorize(self, now: float) -> None:
        """Check again what clients were allowed: the rules changed."""
        self.state.authorizer.reauthorize(now)

    def change_settings(self, settings: Settings, now: float) -> None:
        """Use other settings from now on.

        What was sized by a setting at the start stays as it was: the caller knows which keys hold
        at once (`server.config.live_keys`) and changes no others.
        """
        interval_s = self.settings.sys_interval_s
        self.settings = settings
        self.state.change_settings(settings)
        if settings.sys_interval_s != interval_s:
            self.sys_topics.start(now)

    def kick(self, client_id: str, now: float, reason: int = reasons.ADMINISTRATIVE_ACTION) -> bool:
        """Disconnect a client; False when it is not connected."""
        client = self.clients.connections.get(client_id)
        if client is None:
            return False
        assert may_carry(DISCONNECT, reason)
        client.end(now, reason, why="kicked")
        return True

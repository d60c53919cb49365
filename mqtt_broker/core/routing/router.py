"""Find who gets a message, and deliver it to them.

find      the route of a topic, worked out once and kept until a subscription changes
begin     what the journal is told of messages that may have to be stored
deliver   to every session and every shared subscription of the route
fan_out   the same for bytes of QoS 0 that need no change
publish   all of it, for messages of the broker's own
start     the same for wills, which somebody waits for

To more receivers than one turn can serve a message goes in slices: see `distribution`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.core.interfaces.message_log import MessageLog, TopicWriter
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks, cost_of
from mqtt_broker.core.limits.settings import UNLIMITED
from mqtt_broker.core.routing.distribution import Distribution, OwnMessage
from mqtt_broker.core.routing.retained import RetainedMessages
from mqtt_broker.core.routing.routes import Route, Routes, Target
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.core.runtime.agenda import Agenda
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.recorder import kinds
from mqtt_broker.topics.names import is_reserved, matches
from sessions.journal.journal import COMMIT, MEMORY, Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.backlog import Backlog
from sessions.messages.message import Envelope, Message
from sessions.messages.outbox import CLEAN, DIRTY
from sessions.messages.work import BYTES_A_UNIT, DELIVERY, DONE, MORE, Work
from sessions.outbound import Outbound


class _OwnMessages:
    """The broker's own messages, in their order, while one of them is on its way to very many."""

    __slots__ = ("_agenda", "_router", "_under_way", "_waiting", "_work")

    def __init__(self, router: Router, agenda: Agenda, work: Work) -> None:
        self._router = router
        self._agenda = agenda
        self._work = work
        self._under_way: OwnMessage | None = None
        self._waiting: deque[tuple[Message, Outbound | None]] = deque()

    @property
    def are_waiting(self) -> bool:
        """Tell whether a new one has to wait for those before it."""
        return self._under_way is not None

    def begin(self, message: OwnMessage) -> None:
        """Go on with this message in the next turns."""
        self._under_way = message
        self._agenda.add(self)

    def wait(self, message: Message, publisher: Outbound | None) -> None:
        """Publish this behind those before it."""
        self._waiting.append((message, publisher))

    def go_on(self, now: float) -> int:
        """Deliver some more of the first, then publish the next; see `WorkItem`."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None and under_way.go_on(now) == MORE:
            self._under_way = under_way
            return MORE
        while self._waiting:
            self._under_way = self._router.start(*self._waiting.popleft(), now)
            if self._under_way is not None or self._work.is_over:
                return MORE
        return DONE


class Router:
    __slots__ = (
        "_backlog",
        "_counters",
        "_durabilities",
        "_journal",
        "_log",
        "_outboxes",
        "_own",
        "_retained",
        "_work",
        "checks",
        "routes",
    )

    def __init__(
        self,
        runtime: Runtime,
        backlog: Backlog,
        journal: Journal | None,
        routes: Routes,
        retained: RetainedMessages,
        *,
        durabilities: Sequence[tuple[str, int]],
        checks: PayloadChecks | None,
    ) -> None:
        self._counters = runtime.counters
        self._outboxes = runtime.outboxes
        self._work = runtime.work
        self._backlog = backlog
        self._journal = journal
        self._retained = retained
        self._durabilities = durabilities  # by Topic Filter; the first that matches counts
        self.checks = checks
        self._log: MessageLog | None = None
        self._own = _OwnMessages(self, runtime.agenda, runtime.work)
        self.routes = routes

    def attach_log(self, log: MessageLog | None) -> None:
        """Ask this log for a writer of each topic from now on."""
        self._log = log
        self.routes.cache.clear()

    def find(self, topic: str) -> Route:
        """Work out a route, and whether the topic is one that clients may publish to."""
        refusal = 0
        if topic[0] == "$" and is_reserved(topic):
            refusal = reasons.NOT_AUTHORIZED
        durability = self._durability_of(topic)
        writer = None if self._log is None else self._log.find(topic)
        check = None if self.checks is None else self.checks.find(topic)
        return self.routes.find(topic, refusal, durability, writer, check)

    def payload_problem(self, topic: str, payload: bytes) -> str:
        """Say why the check of a topic rejects a payload; empty: it does not, or there is none."""
        check = None if self.checks is None else self.checks.find(topic)
        if check is None:
            return ""
        self._work.spent += cost_of(payload, check)
        return check.problem(payload)

    def _durability_of(self, topic: str) -> int:
        """Look up what an acknowledgement promises on this topic."""
        if self._journal is None or topic.startswith("$SYS/"):
            return MEMORY
        for text, mode in self._durabilities:
            if matches(text, topic):
                return mode
        return self._journal.mode

    def begin(self, messages: list[Message], route: Route) -> PublishTransaction | None:
        """Begin the transaction of messages that may have to be stored; None if none may."""
        journal = self._journal
        durability = route.durability
        if (
            journal is None
            or durability == MEMORY
            or not (messages[0].envelope.qos or messages[0].envelope.retain)
        ):
            return None
        return journal.begin(messages, awaits_commit=durability == COMMIT)

    def deliver(
        self,
        messages: list[Message],
        targets: list[Target],
        groups: list[SharedGroup],
        publisher: Outbound | None,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Deliver messages of one envelope to all of these. [MQTT-4.5.0-1]"""
        envelope = messages[0].envelope
        qos = envelope.qos
        outboxes = self._outboxes
        tracer = self._backlog.tracer
        sent = sent_bytes = numbered = unplain = 0
        whole: dict[tuple[bool, bool], bytes] | None = None
        for target in targets:
            if target.outbound is publisher:
                if target.has_own:
                    if target.own is None:
                        continue
                    target = target.own
            outbound = target.outbound
            options = (target.retained if envelope.retain else target.live)[qos]
            box = outbound.outbox
            if options.qos:
                outbound.deliver(messages, options, txn, now)
                numbered += 1
            elif box.state <= DIRTY and outbound.is_plain and not options.subscription_ids:
                key = (box.v5, options.retain)
                if whole is None:
                    whole = {}
                data = whole.get(key)
                if data is None:
                    payloads = [message.payload for message in messages]
                    data = whole[key] = envelope.encode_qos0(box.v5, options, payloads, now)
                box.put(data)
                sent_bytes += len(data)
                sent += len(messages)
                if tracer is not None:
                    tracer.delivered(
                        envelope, options, outbound.client_id, len(messages), now, is_repeated=False
                    )
            else:
                unplain += 1
                outbound.deliver_qos0(messages, options, now)
        for group in groups:
            for message in messages:
                group.deliver(message, txn, now)
        numbered_bytes = numbered * len(messages) * envelope.payload_bytes
        outboxes.turn_bytes += sent_bytes + numbered_bytes
        self._work.spent += numbered_bytes // BYTES_A_UNIT
        one_by_one = numbered + unplain + len(groups)
        self._work.spent += len(targets) + one_by_one * len(messages) * DELIVERY
        counters = self._counters
        counters.packets_sent[PUBLISH] += sent
        counters.publish_bytes_sent += sent_bytes

    def fan_out(
        self,
        outbounds: list[Outbound],
        data: bytes,
        count: int,
        route: Route,
        publisher: Outbound,
        now: float,
    ) -> None:
        """Send the same bytes, `count` QoS 0 messages, to every session that can read them."""
        outboxes = self._outboxes
        dirty = outboxes.dirty
        away = 0
        for outbound in outbounds:
            box = outbound.outbox
            state = box.state
            if state == DIRTY:
                box.pieces.append(data)
                box.messages_out += count
            elif state == CLEAN:
                box.state = DIRTY
                dirty.append(box)
                box.pieces.append(data)
                box.messages_out += count
            else:
                away += 1
                if outbound.is_online:
                    outbound.count_dropped(count)
                    self._backlog.drop("slow_reader", count)
                    recorder = self._backlog.recorder
                    if recorder is not None:
                        recorder.dropped(
                            outbound, "slow_reader", route.topic, publisher.client_id, count,
                            now, now,
                        )  # fmt: skip
        sent = len(outbounds) - away
        self._work.spent += len(outbounds) >> 2
        counters = self._counters
        counters.packets_sent[PUBLISH] += sent * count
        counters.publish_bytes_sent += sent * len(data)
        outboxes.turn_bytes += sent * len(data)

    def distribute(
        self, messages: list[Message], route: Route, publisher: Outbound | None
    ) -> Distribution:
        """Begin to deliver messages to more receivers than one turn can serve."""
        txn: PublishTransaction | None = None
        if self._journal is not None and route.durability != MEMORY and messages[0].envelope.qos:
            txn = self._journal.open(messages, awaits_commit=route.durability == COMMIT)
        return Distribution(self, self._journal, self._work, messages, route, publisher, txn)

    def retain_alone(self, message: Message, route: Route, own_max: int = UNLIMITED) -> bool:
        """Retain a message before it is delivered: what is retained next may not be recorded before
        it. False when a limit forbids it.
        """
        copy = Message(message.envelope, message.payload)
        txn = self.begin([copy], route)
        try:
            return self._retained.put(copy, txn, own_max)
        finally:
            message.envelope.forget_properties()
            if txn is not None and self._journal is not None:
                self._journal.add(txn)

    def publish(self, message: Message, publisher: Outbound | None, now: float) -> None:
        """Publish a message of the broker's own: no checks, no acknowledgement."""
        if self._own.are_waiting:
            self._own.wait(message, publisher)
            return
        own = self.start(message, publisher, now)
        if own is not None:
            self._own.begin(own)

    def start(self, message: Message, publisher: Outbound | None, now: float) -> OwnMessage | None:
        """Publish a message; returns what is left to do if it goes to very many."""
        envelope = message.envelope
        route = self.routes.cache.results.get(envelope.topic) or self.find(envelope.topic)
        recorder = self._backlog.recorder
        if recorder is not None and not envelope.topic.startswith("$SYS/"):
            code = envelope.qos | (kinds.RETAIN_BIT if envelope.retain else 0)
            by = recorder.broker if publisher is None else publisher
            recorder.published(route, by, 1, code, envelope.payload_bytes, now)
        writer = route.writer
        if writer is not None and not has_room(writer, envelope, [message.payload]):
            writer = None
            self._backlog.drop("stream_full")
        if len(route.targets) + len(route.groups) > self._work.deliveries_max:
            return self._start_large(message, route, writer, publisher, now)
        messages = [message]
        txn = self.begin(messages, route)
        try:
            if envelope.retain and not self._retained.put(message, txn):
                self._backlog.drop("quota_exceeded")  # subscribers get it all the same
            if writer is not None:
                writer.append(envelope, [message.payload], now)
            self.deliver(messages, route.targets, route.groups, publisher, txn, now)
        finally:
            if txn is not None and self._journal is not None:
                self._journal.add(txn)
        return None

    def _start_large(
        self,
        message: Message,
        route: Route,
        writer: TopicWriter | None,
        publisher: Outbound | None,
        now: float,
    ) -> OwnMessage | None:
        if message.envelope.retain and not self.retain_alone(message, route):
            self._backlog.drop("quota_exceeded")
        own = OwnMessage(self.distribute([message], route, publisher), writer)
        return None if own.go_on(now) == DONE else own


def has_room(writer: TopicWriter, envelope: Envelope, payloads: list[bytes]) -> bool:
    """Tell whether the log takes them. Nothing is promised at QoS 0, so it is not asked."""
    return not envelope.qos or writer.admits(envelope, payloads)

"""Find who gets a message, and deliver it to them.

find      the route of a topic, worked out once and kept until a subscription changes
begin     what the journal is told of messages that may have to be stored
deliver   to every session and every shared subscription of the route
fan_out   the same for bytes of QoS 0 that need no change
publish   all of it, for messages of the broker's own and for wills
"""

from __future__ import annotations

from collections.abc import Sequence

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.core.interfaces.message_log import MessageLog, TopicWriter
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.routing.retained import RetainedMessages
from mqtt_broker.core.routing.routes import Route, Routes
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.topics.names import is_reserved, matches
from sessions.journal.journal import COMMIT, MEMORY, Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.backlog import Backlog
from sessions.messages.message import Envelope, Message
from sessions.messages.outbox import CLEAN, DIRTY
from sessions.outbound import Outbound


class Router:
    __slots__ = (
        "_backlog",
        "_checks",
        "_counters",
        "_durabilities",
        "_journal",
        "_log",
        "_outboxes",
        "_retained",
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
        self._backlog = backlog
        self._journal = journal
        self._retained = retained
        self._durabilities = durabilities  # by Topic Filter; the first that matches counts
        self._checks = checks
        self._log: MessageLog | None = None
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
        check = None if self._checks is None else self._checks.find(topic)
        return self.routes.find(topic, refusal, durability, writer, check)

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
        route: Route,
        publisher: Outbound | None,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Deliver messages of one envelope to everybody the route names. [MQTT-4.5.0-1]"""
        envelope = messages[0].envelope
        qos = envelope.qos
        outboxes = self._outboxes
        sent = 0
        whole: dict[tuple[bool, bool], bytes] | None = None
        for target in route.targets:
            if target.outbound is publisher:
                if target.own is None:
                    continue
                target = target.own
            outbound = target.outbound
            options = (target.retained if envelope.retain else target.live)[qos]
            box = outbound.outbox
            if options.qos:
                outbound.deliver(messages, options, txn, now)
            elif box.state <= DIRTY and outbound.is_plain and not options.subscription_ids:
                key = (box.v5, options.retain)
                if whole is None:
                    whole = {}
                data = whole.get(key)
                if data is None:
                    payloads = [message.payload for message in messages]
                    data = whole[key] = envelope.encode_qos0(box.v5, options, payloads, now)
                box.put(data)
                outboxes.turn_bytes += len(data)
                sent += len(messages)
            else:
                outbound.deliver_qos0(messages, options, now)
        for group in route.groups:
            for message in messages:
                group.deliver(message, txn, now)
        counters = self._counters
        counters.packets_sent[PUBLISH] += sent
        counters.publish_bytes_sent += sent * (len(envelope.topic) + envelope.payload_bytes)

    def fan_out(self, outbounds: list[Outbound], data: bytes, count: int) -> None:
        """Send the same bytes, `count` QoS 0 messages, to every session that can read them."""
        outboxes = self._outboxes
        dirty = outboxes.dirty
        away = 0
        for outbound in outbounds:
            box = outbound.outbox
            state = box.state
            if state == DIRTY:
                box.pieces.append(data)
            elif state == CLEAN:
                box.state = DIRTY
                dirty.append(box)
                box.pieces.append(data)
            else:
                away += 1
                if outbound.is_online:
                    self._backlog.drop("slow_reader", count)
        sent = len(outbounds) - away
        counters = self._counters
        counters.packets_sent[PUBLISH] += sent * count
        counters.publish_bytes_sent += sent * len(data)
        outboxes.turn_bytes += sent * len(data)

    def publish(self, message: Message, publisher: Outbound | None, now: float) -> None:
        """Publish a message of the broker's own or a will: no checks, no acknowledgement."""
        topic = message.envelope.topic
        route = self.routes.cache.results.get(topic) or self.find(topic)
        messages = [message]
        txn = self.begin(messages, route)
        try:
            if message.envelope.retain and not self._retained.put(message, txn):
                self._backlog.drop("quota_exceeded")  # subscribers get it all the same
            if route.writer is None:
                pass
            elif has_room(route.writer, message.envelope, [message.payload]):
                route.writer.append(message.envelope, [message.payload], now)
            else:
                self._backlog.drop("stream_full")
            self.deliver(messages, route, publisher, txn, now)
        finally:
            if txn is not None and self._journal is not None:
                self._journal.add(txn)


def has_room(writer: TopicWriter, envelope: Envelope, payloads: list[bytes]) -> bool:
    """Tell whether the log takes them. Nothing is promised at QoS 0, so it is not asked."""
    return not envelope.qos or writer.admits(envelope, payloads)

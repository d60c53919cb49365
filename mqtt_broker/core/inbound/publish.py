"""Act on PUBLISH: check, retain, route, deliver, acknowledge.

A burst stays one burst all the way: its checks are made once, its receivers are found once, its
bytes are written once. Messages of the broker's own go through `Router.publish`.

why long: the ways of a PUBLISH by QoS are told in one place, since they share their checks.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBLISH, PUBREC, V5
from mqtt_broker.codec.encode import ID_BYTES, encode_ack
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Publish
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.clients.connection import CLOSED, Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.inbound import tracing
from mqtt_broker.core.inbound.large_publish import LargePublish, answer, hold_for_log
from mqtt_broker.core.interfaces.payload_checks import NOT_TEXT, cost_of, problem_of
from mqtt_broker.core.interfaces.tracing import MessageTrace
from mqtt_broker.core.routing.router import has_room
from mqtt_broker.core.routing.routes import Route
from mqtt_broker.core.runtime.backpressure import BEHIND, LOG_BEHIND
from mqtt_broker.recorder import kinds
from mqtt_broker.topics.names import level_count
from sessions.journal.journal import COMMIT
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import DeliveryOptions, Envelope, Message
from sessions.messages.timings import LENGTHS, SHORT, bit_length
from sessions.messages.work import CHECKED, DONE, MORE, PUBLISHED, WorkItem
from sessions.session import Session

_PUBACK_HEAD: Final = b"\x40\x02"
_PUBREC_HEAD: Final = b"\x50\x02"
_PUBACK_NOBODY_HEAD: Final = b"\x40\x03"
_NOBODY: Final = b"\x10"
_QOS0: Final = DeliveryOptions(0)


def on_publish(connection: Connection, packet: Publish, now: float) -> None:
    broker = connection.broker
    counters = broker.counters
    counters.packets_received[PUBLISH] += packet.count
    counters.publish_bytes_received += len(packet.raw)
    size = packet.size - 1
    length = LENGTHS[size] if size < SHORT else bit_length(size)
    broker.timings.packet_sizes[length] += packet.count
    topic = packet.topic
    is_text = False
    if packet.properties:
        if prop.TOPIC_ALIAS in packet.properties:
            topic = _resolve_alias(connection, packet)
        is_text = packet.properties.get(prop.PAYLOAD_FORMAT_INDICATOR) == 1
    route = broker.routes.cache.results.get(topic)
    if route is None:
        if level_count(topic) > broker.settings.topic_levels_max:
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.3-3", "too many topic levels")
        route = broker.router.find(topic)
    if broker.tracer is not None:
        broker.tracer.published(connection, packet, topic, route, now)
    message_tracer = broker.runtime.message_tracer
    trace: MessageTrace | None = None
    if message_tracer is not None:
        packet, trace = tracing.begin(message_tracer, connection, packet, topic, now)
    if route.check is None and not is_text:
        operation = _accept(connection, packet, topic, route, "", now)
    else:
        run = _CheckedRun(connection, packet, topic, route, is_text)
        operation = None if run.go_on(now) == DONE else run
    if trace is not None:
        tracing.note_store(trace, connection, route, packet.qos)
        trace.end()
    if operation is not None:
        connection.begin(operation)


class _CheckedRun:
    """A run whose payloads are checked, each alone. [MQTT-3.3.2-4]"""

    __slots__ = (
        "_at",
        "_connection",
        "_is_text",
        "_operation",
        "_packet",
        "_payloads",
        "_problem",
        "_route",
        "_topic",
    )

    def __init__(
        self, connection: Connection, packet: Publish, topic: str, route: Route, is_text: bool
    ) -> None:
        self._connection = connection
        self._packet = packet
        self._topic = topic
        self._route = route
        self._is_text = is_text
        self._payloads = packet.payloads()
        self._at = 0
        self._problem = self._check(0)  # of the next payload
        self._operation: WorkItem | None = None

    def _check(self, at: int) -> str:
        payload, check = self._payloads[at], self._route.check
        self._connection.broker.work.spent += CHECKED + cost_of(payload, check)
        return problem_of(payload, check, is_text=self._is_text)

    def go_on(self, now: float) -> int:
        """Take some more of the messages; see `WorkItem`."""
        connection = self._connection
        work = connection.broker.work
        while True:
            if self._operation is not None:
                if self._operation.go_on(now) == MORE:
                    return MORE
                self._operation = None
            if self._at == len(self._payloads) or connection.state == CLOSED:
                return DONE
            if self._at and work.is_over:
                return MORE
            self._take_part(now)

    def _take_part(self, now: float) -> None:
        """Take the messages up to the next that has another problem, or to the end of the share."""
        payloads, why, begin = self._payloads, self._problem, self._at
        work = self._connection.broker.work
        self._at += 1
        while self._at < len(payloads):
            self._problem = self._check(self._at)
            if self._problem != why or work.is_over:
                break
            self._at += 1
        part = self._packet
        if self._at - begin < len(payloads):
            part = part.part(begin, self._at)
        self._operation = _accept(self._connection, part, self._topic, self._route, why, now)


def _accept(
    connection: Connection, packet: Publish, topic: str, route: Route, why: str, now: float
) -> WorkItem | None:
    """Take a PUBLISH or refuse it; `why` says what is wrong with its payload, if anything.

    Returns what is left to do if it goes to more than one turn can serve.
    """
    broker = connection.broker
    session = connection.session
    refusal = 0
    allowed = connection.authorization.allowed
    if (
        packet.properties
        or packet.retain
        or broker.checks_qos
        or route.refusal
        or why
        or (allowed is not None and topic not in allowed)
    ):
        refusal = route.refusal or _refusal(connection, packet, topic)
        if why and not refusal:
            refusal = reasons.PAYLOAD_FORMAT_INVALID
            if why == NOT_TEXT:
                why = ""  # the code says all of it
            else:
                _dead_letter(connection, packet, topic, why, now)
    elif not packet.qos:
        operation = _forward_qos0(connection, packet, topic, route, session, now)
        if route.writer is not None and broker.backpressure.is_log_behind:
            connection.hold_back(LOG_BEHIND, now)
        return operation
    if packet.qos == 2:  # each QoS has its own answer. [MQTT-3.3.4-1]
        operation = _take_qos2(connection, packet, topic, route, refusal, why, now)
    else:
        operation = _take(connection, packet, topic, route, refusal, why, now)
    journal = broker.journal
    if journal is not None and (packet.qos or packet.retain) and journal.is_behind:
        connection.hold_back(BEHIND, now)
    return operation


def _is_large(broker: BrokerState, route: Route, count: int) -> bool:
    """Tell whether so many messages go to more receivers than one turn can serve."""
    return (len(route.targets) + len(route.groups)) * count > broker.work.deliveries_max


def _dead_letter(connection: Connection, packet: Publish, topic: str, why: str, now: float) -> None:
    """Keep a payload that its schema rejects as a dead letter."""
    dead_letters = connection.broker.runtime.dead_letters
    if dead_letters is not None:
        client_id = connection.session.client_id
        envelope = _envelope(packet, topic, client_id, connection.version == V5, now)
        envelope.forget_properties()
        for payload in packet.payloads():
            dead_letters.add("schema", Message(envelope, payload), client_id, why)


def _take(
    connection: Connection,
    packet: Publish,
    topic: str,
    route: Route,
    refusal: int,
    why: str,
    now: float,
) -> WorkItem | None:
    """Take QoS 1, and QoS 0 that has to be checked.

    The acknowledgement stands in front of what comes back to the publisher itself, unless it
    waits: until the message is on disk, or every stored session has taken it.
    """
    broker = connection.broker
    broker.work.spent += PUBLISHED * packet.count
    session = connection.session
    envelope = _envelope(packet, topic, session.client_id, session.outbound.version == V5, now)
    payloads = packet.payloads()
    messages = [Message(envelope, payload) for payload in payloads]
    if route.writer is not None and not refusal and not has_room(route.writer, envelope, payloads):
        refusal = _log_is_full(connection)
    receivers = len(route.targets) + len(route.groups)
    if receivers * packet.count > broker.work.deliveries_max and not refusal:
        if not packet.retain or _retain_alone(connection, messages[-1], route):
            _record(connection, packet, route, packet.count, now)
            data = _pubacks(connection, packet, 0, "", route) if packet.qos else b""
            return _publish_to_many(connection, messages, route, data, [], now)
        refusal = reasons.QUOTA_EXCEEDED
    txn: PublishTransaction | None = None
    if route.durability and not refusal:
        txn = broker.router.begin(messages, route)
    place = len(connection.outbox.pieces)
    try:
        if packet.retain and not refusal and not _retain(connection, messages[-1], txn):
            refusal = reasons.QUOTA_EXCEEDED
        if refusal:
            _count_refused(connection, topic, refusal, packet.count, now)
        else:
            _record(connection, packet, route, packet.count, now)
            if route.writer is not None:
                route.writer.append(envelope, payloads, now)
            broker.router.deliver(messages, route.targets, route.groups, session.outbound, txn, now)
    finally:
        if packet.properties:
            envelope.forget_properties()
        if txn is not None and broker.journal is not None:
            broker.journal.add(txn)
    if packet.qos:  # and forgotten: the same id again is a new message. [MQTT-4.3.2-5]
        data = _pubacks(connection, packet, refusal, why, route)
        if route.writer is not None and not refusal and route.durability == COMMIT:
            hold_for_log(connection, data, txn)
        elif txn is not None and txn.awaits_commit and txn.is_wanted:
            txn.acknowledge_with((connection.acks or connection.open_acks()).hold(data))
        elif txn is not None and txn.awaits_commit and packet.retain and not refusal:
            # There was nothing to remove: what removed it may not be on disk.
            connection.send_in_order(data, now, safely=True)
        else:
            connection.send_before(data, place)
    return None


def _publish_to_many(
    connection: Connection,
    messages: list[Message],
    route: Route,
    data: bytes,
    opened: list[int],
    now: float,
    *,
    is_certain: bool = True,
    violation: Violation | None = None,
) -> WorkItem | None:
    """Begin to deliver messages to very many; `data` is the answer. Returns what is left to do."""
    distribution = connection.broker.router.distribute(messages, route, connection.session.outbound)
    if distribution.txn is not None and messages[0].envelope.retain:
        distribution.txn.pin()  # the answer waits for what is retained, or removed, and recorded
    return LargePublish(
        connection, distribution, route, data,
        opened=opened, is_certain=is_certain, violation=violation,
    ).start(now)  # fmt: skip


def _retain_alone(connection: Connection, message: Message, route: Route) -> bool:
    own_max = connection.limits.retained_messages_max
    return connection.broker.router.retain_alone(message, route, own_max)


def _retain(connection: Connection, message: Message, txn: PublishTransaction | None) -> bool:
    return connection.broker.retained.put(message, txn, connection.limits.retained_messages_max)


def _log_is_full(connection: Connection) -> int:
    if connection.version != V5:  # without a word for it: unanswered, it is sent again
        raise Violation(
            reasons.QUOTA_EXCEEDED,
            "MQTT3-4.8.0-1",
            "the telemetry log accepts no more messages now",
        )
    return reasons.QUOTA_EXCEEDED


def _resolve_alias(connection: Connection, packet: Publish) -> str:
    alias = packet.properties.number(prop.TOPIC_ALIAS)
    aliases = connection.aliases
    if aliases is None:
        aliases = connection.open_aliases()
    if alias > aliases.limit:  # [MQTT-3.3.2-9]
        raise Violation(reasons.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-9", f"Topic Alias {alias}")
    if packet.topic:
        if not aliases.put(alias, packet.topic):  # [MQTT-3.3.2-12]
            shared = connection.broker.aliases
            why = f"Topic Aliases of {aliases.bytes} bytes, of {shared.bytes} of all clients"
            raise Violation(reasons.QUOTA_EXCEEDED, "MQTT-4.13.1-1", why)
        return packet.topic
    topic = aliases.get(alias)
    if topic is None:
        raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.3.2-7", f"Topic Alias {alias} is unknown")
    return topic


def _refusal(connection: Connection, packet: Publish, topic: str) -> int:
    """Return a reason code when this client may not publish this here and now, else 0."""
    broker = connection.broker
    settings = broker.settings
    if packet.qos > settings.maximum_qos:  # [MQTT-3.2.2-11]
        raise Violation(reasons.QOS_NOT_SUPPORTED, "MQTT-3.2.2-11", f"QoS {packet.qos}")
    if packet.retain and not connection.limits.retain_available:  # [MQTT-3.2.2-14]
        raise Violation(reasons.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-14", "RETAIN")
    if not connection.authorization.may_publish(topic):
        return reasons.NOT_AUTHORIZED
    return 0


def _forward_qos0(
    connection: Connection,
    packet: Publish,
    topic: str,
    route: Route,
    session: Session,
    now: float,
) -> WorkItem | None:
    """Forward QoS 0 that needs no check: the bytes go out as they came in."""
    broker = connection.broker
    recorder = broker.recorder
    if recorder is not None:
        count = packet.count
        size = (packet.size - packet.payload_at) * count
        recorder.published(route, session.outbound, count, 0, size, now)
    v5 = session.outbound.version == V5
    if route.rest or route.groups:
        return _route_qos0(connection, packet, topic, route, session, now)
    same, other = (route.plain_v5, route.plain_v3) if v5 else (route.plain_v3, route.plain_v5)
    if same:
        broker.router.fan_out(same, packet.raw, packet.count, route, session.outbound, now)
    if other or route.writer is not None:
        envelope = _envelope(packet, topic, session.client_id, v5, now)
        if route.writer is not None:
            route.writer.append_run(envelope, packet, now)
    if other:
        data = envelope.encode_qos0(not v5, _QOS0, packet.payloads(), now)
        broker.router.fan_out(other, data, packet.count, route, session.outbound, now)
    return None


def _envelope(packet: Publish, topic: str, publisher: str, v5: bool, now: float) -> Envelope:
    size, at = packet.payload_at, packet.id_at
    qos = packet.qos
    properties = packet.properties
    section = packet.section if properties else b""
    envelope = Envelope(
        topic, qos, packet.retain, properties, section, packet.size - size, publisher, now
    )
    # The DUP that came in is not the one that goes out. [MQTT-3.3.1-3]
    if qos and not (packet.dup or packet.retain or properties):
        raw = packet.raw
        envelope.use_layout(v5, qos, raw[:at], raw[at + 2 : size])
    return envelope


def _route_qos0(
    connection: Connection,
    packet: Publish,
    topic: str,
    route: Route,
    session: Session,
    now: float,
) -> WorkItem | None:
    broker = connection.broker
    v5 = session.outbound.version == V5
    envelope = _envelope(packet, topic, session.client_id, v5, now)
    payloads = packet.payloads()
    messages = [Message(envelope, payload) for payload in payloads]
    if _is_large(broker, route, packet.count):
        return _publish_to_many(connection, messages, route, b"", [], now)
    if route.writer is not None:
        route.writer.append(envelope, payloads, now)
    broker.router.deliver(messages, route.targets, route.groups, session.outbound, None, now)
    return None


class _SortedIds:
    """The packet ids of a QoS 2 run by what they are."""

    __slots__ = ("answered", "freed", "fresh", "opened", "violation")

    def __init__(self) -> None:
        self.fresh: list[bytes] = []  # payloads of new messages,
        self.opened: list[int] = []  # and their packet ids
        self.answered: list[int] = []
        self.freed: list[int] = []  # of repetitions that are refused now
        self.violation: Violation | None = None

    def sort(self, session: Session, packet: Publish, *, is_refused: bool) -> None:
        """Open the packet ids that are new, as far as the Receive Maximum and memory go."""
        receiver = session.inbound
        for packet_id, payload in zip(packet.packet_ids(), packet.payloads(), strict=True):
            if packet_id in receiver.ids:  # again, as often as it likes. [MQTT-4.3.3-10]
                if is_refused:  # [MQTT-4.3.3-9]
                    receiver.refuse(packet_id)
                    self.freed.append(packet_id)
            else:
                if receiver.over_quota(1) and not session.allow_more_ids():
                    self.violation = _too_many_ids(session)
                    return
                if not is_refused:
                    receiver.on_publish(packet_id)
                self.fresh.append(payload)
                self.opened.append(packet_id)
            self.answered.append(packet_id)


def _too_many_ids(session: Session) -> Violation:
    if session.inbound.limit < session.receive_maximum:
        why = f"no memory for more than {session.inbound.limit} QoS 2 messages in flight"
        return Violation(reasons.QUOTA_EXCEEDED, "MQTT-4.13.1-1", why)
    why = "more QoS 2 messages in flight than Receive Maximum"
    return Violation(reasons.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.3.4-8", why)


def _take_qos2(
    connection: Connection,
    packet: Publish,
    topic: str,
    route: Route,
    refusal: int,
    why: str,
    now: float,
) -> WorkItem | None:
    """Take QoS 2: deliver what is new, answer every id with PUBREC. [MQTT-4.3.3-8]

    A burst that runs over the Receive Maximum is taken as far as it was allowed.
    """
    receiver = connection.session.inbound
    ids = _SortedIds()
    ids.sort(connection.session, packet, is_refused=refusal > 0)
    fresh, opened, answered, freed = ids.fresh, ids.opened, ids.answered, ids.freed
    violation = ids.violation
    broker = connection.broker
    broker.work.spent += PUBLISHED * packet.count
    session = connection.session
    txn: PublishTransaction | None = None
    place = len(connection.outbox.pieces)
    refused = answered if refusal else []
    if fresh and not refusal:
        envelope = _envelope(packet, topic, session.client_id, connection.version == V5, now)
        messages = [Message(envelope, payload) for payload in fresh]
        if route.writer is not None and not has_room(route.writer, envelope, fresh):
            for packet_id in opened:  # the session outlives the connection
                receiver.refuse(packet_id)
            refused, refusal = opened, _log_is_full(connection)
        if not refusal and _is_large(broker, route, len(messages)):
            if not packet.retain or _retain_alone(connection, messages[-1], route):
                _record(connection, packet, route, len(messages), now)
                return _publish_to_many(
                    connection,
                    messages,
                    route,
                    _pubrecs(connection, answered, [], 0, ""),
                    opened,
                    now,
                    is_certain=len(opened) == len(answered) or not session.session_number,
                    violation=violation,
                )
            for packet_id in opened:
                receiver.refuse(packet_id)
            refused, refusal = opened, reasons.QUOTA_EXCEEDED
        if route.durability and not refusal:
            txn = broker.router.begin(messages, route)
        try:
            if not refusal and packet.retain and not _retain(connection, messages[-1], txn):
                for packet_id in opened:
                    receiver.refuse(packet_id)
                refused, refusal = opened, reasons.QUOTA_EXCEEDED
            if not refusal:
                _record(connection, packet, route, len(messages), now)
                if route.writer is not None:
                    route.writer.append(envelope, fresh, now)
                if txn is not None and session.outbound.session_number:
                    txn.receive(session.outbound.session_number, opened)
                broker.router.deliver(
                    messages, route.targets, route.groups, session.outbound, txn, now
                )
        finally:
            if packet.properties:
                envelope.forget_properties()
            if txn is not None and broker.journal is not None:
                broker.journal.add(txn)
    if refusal:
        _count_refused(connection, topic, refusal, len(fresh), now)
    if freed and session.outbound.session_number and broker.journal is not None:
        broker.journal.on_freed(session.outbound.session_number, freed)
    data = _pubrecs(connection, answered, refused, refusal, why)
    is_logged = bool(route.writer is not None and fresh and not refusal)
    # An id is repeated, or nothing was there to remove: what it rests on may not be on disk.
    is_certain = not (
        (session.outbound.session_number and len(opened) < len(answered))
        or (txn is not None and txn.awaits_commit and packet.retain and not refusal)
    )
    answer(
        connection, data, txn, now, place=place,
        is_logged=is_logged and route.durability == COMMIT, is_certain=is_certain,
    )  # fmt: skip
    if violation is not None:
        raise violation
    return None


def _pubacks(
    connection: Connection, packet: Publish, refusal: int, why: str, route: Route
) -> bytes:
    """Encode a PUBACK for each message of the burst. [MQTT-4.3.2-4], [MQTT-2.2.1-5]

    MQTT 3.1.1 has no code for a refusal: there the message is acknowledged and dropped.
    """
    raw, size, at = packet.raw, packet.size, packet.id_at
    connection.broker.counters.packets_sent[PUBACK] += packet.count
    if refusal and connection.version == V5:
        return _refusals(connection, PUBACK, packet.packet_ids(), refusal, why)
    if not refusal and not route.is_matched and connection.version == V5:
        ids = [raw[i : i + 2] for i in range(at, len(raw), size)]
        return b"".join([_PUBACK_NOBODY_HEAD + i + _NOBODY for i in ids])
    if packet.count == 1:
        return _PUBACK_HEAD + raw[at : at + 2]
    ids = [raw[i : i + 2] for i in range(at, len(raw), size)]
    return b"".join([_PUBACK_HEAD + i for i in ids])


def _pubrecs(
    connection: Connection, answered: list[int], refused: list[int], refusal: int, why: str
) -> bytes:
    """Encode a PUBREC for each id in their order; refused ones get the refusal.

    [MQTT-4.3.3-8], [MQTT-4.6.0-3]
    """
    connection.broker.counters.packets_sent[PUBREC] += len(answered)
    if not refused or connection.version != V5:
        return b"".join([_PUBREC_HEAD + ID_BYTES[i] for i in answered])
    rejects = set(refused)
    return b"".join(
        [
            _refusals(connection, PUBREC, [i], refusal, why)
            if i in rejects
            else _PUBREC_HEAD + ID_BYTES[i]
            for i in answered
        ]
    )


def _refusals(
    connection: Connection, packet_type: int, packet_ids: list[int], refusal: int, why: str
) -> bytes:
    """Encode refusals, with a Reason String if the client wants it [MQTT-3.1.2-29] and it fits.

    [MQTT-3.4.2-2], [MQTT-3.5.2-2]
    """
    properties = NO_PROPERTIES
    if why and connection.wants_reasons:
        properties = Properties({prop.REASON_STRING: why})
        if not connection.outbox.fits(len(encode_ack(packet_type, 1, refusal, properties))):
            properties = NO_PROPERTIES
    return b"".join([encode_ack(packet_type, i, refusal, properties) for i in packet_ids])


def _count_refused(
    connection: Connection, topic: str, refusal: int, count: int, now: float
) -> None:
    broker = connection.broker
    name = reasons.name(refusal)
    broker.counters.refuse("publish", name, count)
    broker.backlog.drop(name.lower().replace(" ", "_"), count)
    recorder = broker.recorder
    if recorder is not None:
        why = ""
        if refusal == reasons.NOT_AUTHORIZED:
            why = connection.authorization.why_not_publish(topic)
        recorder.refused(
            connection.session.outbound, kinds.PUBLISH_REFUSED, topic, refusal, why, now, count
        )


def _record(connection: Connection, packet: Publish, route: Route, count: int, now: float) -> None:
    """Record messages that are accepted, before they are delivered."""
    recorder = connection.broker.recorder
    if recorder is not None:
        code = packet.qos | (kinds.RETAIN_BIT if packet.retain else 0)
        size = (packet.size - packet.payload_at) * count
        recorder.published(route, connection.session.outbound, count, code, size, now)

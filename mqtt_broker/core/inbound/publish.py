"""What a PUBLISH means: check, retain, match, deliver, acknowledge.

`on_publish` is what a connected client sent; `publish` is the same for messages that come
from the broker itself (wills, `$SYS`). Both end in `route`. A burst stays one burst all the
way: its checks are made once, its receivers are found once, its bytes are written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBLISH, PUBREC, V5
from mqtt_broker.codec.encode import ID_BYTES, encode_ack
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Publish
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.interfaces.message_log import TopicWriter
from mqtt_broker.core.interfaces.payload_checks import NOT_TEXT, checked
from mqtt_broker.core.routing.routes import Route
from mqtt_broker.topics.names import level_count
from sessions.journal.journal import COMMIT, MEMORY
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import DeliveryOptions, Envelope, Message
from sessions.messages.outbox import CLEAN, DIRTY
from sessions.outbound import Outbound
from sessions.session import Session

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.core.clients.connection import Connection

_OURS: Final = frozenset({"$SYS", "$share", "$stream", "$dlq"})
_PUBACK_HEAD: Final = b"\x40\x02"
_PUBREC_HEAD: Final = b"\x50\x02"
_PUBACK_NOBODY_HEAD: Final = b"\x40\x03"
_NOBODY: Final = b"\x10"
_QOS0: Final = DeliveryOptions(0)
TURN_BYTES_MAX: Final = 16 << 20  # written to outboxes until a turn is flushed half-way


def on_publish(connection: Connection, packet: Publish, now: float) -> None:
    broker = connection.broker
    stats = broker.stats
    stats.packets_received[PUBLISH] += packet.count
    stats.publish_bytes_received += len(packet.raw)
    connection.has_published = True
    connection.only_acknowledges = False
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
        route = find_route(broker, topic)
    if route.check is None and not is_text:
        _accept(connection, packet, topic, route, "", now)
        return
    for part, why in checked(packet, route.check, is_text=is_text):  # each alone. [MQTT-3.3.2-4]
        _accept(connection, part, topic, route, why, now)


def _accept(
    connection: Connection, packet: Publish, topic: str, route: Route, why: str, now: float
) -> None:
    """Take it, unless it is refused: `why` says so of its payload."""
    broker = connection.broker
    session = connection.session
    refusal = 0
    allowed = connection.allowed
    if (
        packet.properties
        or packet.retain
        or broker.is_strict
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
                _bury(connection, packet, topic, why, now)
    elif not packet.qos:
        _forward_qos0(broker, packet, topic, route, session, now)
        if broker.waiting_bytes > broker.waiting_bytes_max:
            broker.hold_back(connection, now)
        elif route.writer is not None and broker.is_log_behind:
            connection.awaits_log = True
            broker.hold_back(connection, now)
        return
    if packet.qos == 2:  # each QoS has its own answer. [MQTT-3.3.4-1]
        _take_qos2(connection, packet, topic, route, refusal, why, now)
    else:
        _take(connection, packet, topic, route, refusal, why, now)
    if broker.waiting_bytes > broker.waiting_bytes_max or (
        broker.journal is not None and (packet.qos or packet.retain) and broker.is_store_behind
    ):
        broker.hold_back(connection, now)


def _bury(connection: Connection, packet: Publish, topic: str, why: str, now: float) -> None:
    """What no schema lets through may still be looked at."""
    dead_letters = connection.broker.dead_letters
    if dead_letters is not None:
        client_id = connection.session.client_id
        envelope = _envelope(packet, topic, client_id, connection.version == V5, now)
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
) -> None:
    """QoS 1, and what has to be looked at of QoS 0.

    The acknowledgement stands in front of what comes back to the publisher itself, unless it
    waits: until the message is on disk, or every stored session has taken it.
    """
    broker = connection.broker
    session = connection.session
    envelope = _envelope(packet, topic, session.client_id, session.outbound.version == V5, now)
    payloads = packet.payloads()
    messages = [Message(envelope, payload) for payload in payloads]
    if route.writer is not None and not refusal and not _has_room(route.writer, envelope, payloads):
        refusal = _log_is_full(connection)
    txn: PublishTransaction | None = None
    if route.durability and not refusal:
        txn = begin(broker, messages, route)
    place = len(connection.outbox.pieces)
    try:
        if packet.retain and not refusal and not _retain(connection, messages[-1], txn, now):
            refusal = reasons.QUOTA_EXCEEDED
        if refusal:
            _count_refused(broker, refusal, packet.count)
        else:
            if route.writer is not None:
                route.writer.append(envelope, payloads, now)
            route_messages(broker, messages, route, session.outbound, txn, now)
    finally:
        if txn is not None and broker.journal is not None:
            broker.journal.add(txn)
    if packet.qos:  # and forgotten: the same id again is a new message. [MQTT-4.3.2-5]
        data = _pubacks(connection, packet, refusal, why, route)
        if route.writer is not None and not refusal and route.durability == COMMIT:
            _hold_for_tap(connection, data, txn)
        elif txn is not None and txn.awaits_commit and txn.is_wanted:
            txn.acknowledge_with(connection.hold(data))
        elif txn is not None and txn.awaits_commit and packet.retain and not refusal:
            # There was nothing to remove: what removed it may not be on disk.
            connection.answer(data, now, safely=True)
        else:
            connection.answer_before(data, place)


def _retain(
    connection: Connection, message: Message, txn: PublishTransaction | None, now: float
) -> bool:
    return connection.broker.retain(message, txn, now, connection.limits.retained_messages_max)


def _has_room(writer: TopicWriter, envelope: Envelope, payloads: list[bytes]) -> bool:
    """Tell whether the log has room for what is promised. Nothing is promised at QoS 0."""
    return not envelope.qos or writer.admits(envelope, payloads)


def _log_is_full(connection: Connection) -> int:
    if connection.version != V5:  # without a word for it: unanswered, it is sent again
        raise Violation(reasons.QUOTA_EXCEEDED, "MQTT3-4.8.0-1", "the log takes no more now")
    return reasons.QUOTA_EXCEEDED


def _hold_for_tap(connection: Connection, data: bytes, txn: PublishTransaction | None) -> None:
    """Until the next group is on disk: the tap's files go with it."""
    journal = connection.broker.journal
    assert journal is not None, "without a journal nothing promises to commit"
    answer = connection.hold(data)
    journal.wait(answer)
    if txn is not None:
        txn.refuse_with(answer)


def begin(broker: Broker, messages: list[Message], route: Route) -> PublishTransaction | None:
    """Begin the transaction of messages that may have to be stored; None if none of them may."""
    journal = broker.journal
    durability = route.durability
    if (
        journal is None
        or durability == MEMORY
        or not (messages[0].envelope.qos or messages[0].envelope.retain)
    ):
        return None
    return journal.begin(messages, awaits_commit=durability == COMMIT)


def find_route(broker: Broker, topic: str) -> Route:
    """Work out a route, and whether the topic is one that clients may publish to."""
    refusal = 0
    if topic[0] == "$" and is_ours(topic):
        refusal = reasons.NOT_AUTHORIZED
    durability = broker.durability_of(topic)
    log = broker.message_log
    writer = None if log is None else log.find(topic)
    check = None if broker.checks is None else broker.checks.find(topic)
    return broker.routes.find(topic, refusal, durability, writer, check)


def is_ours(topic: str) -> bool:
    """`$SYS` is the broker's to publish, except for the state that bridges report."""
    if topic.startswith("$SYS/broker/connection/") and topic.endswith("/state"):
        return False
    return topic.split("/", 1)[0] in _OURS


def _resolve_alias(connection: Connection, packet: Publish) -> str:
    alias = packet.properties.number(prop.TOPIC_ALIAS)
    aliases = connection.aliases
    if alias > aliases.limit:  # [MQTT-3.3.2-9]
        raise Violation(reasons.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-9", f"Topic Alias {alias}")
    if packet.topic:
        aliases.put(alias, packet.topic)  # [MQTT-3.3.2-12]
        return packet.topic
    topic = aliases.get(alias)
    if topic is None:
        raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.3.2-7", f"Topic Alias {alias} is unknown")
    return topic


def _refusal(connection: Connection, packet: Publish, topic: str) -> int:
    """A reason code when this client may not publish this here and now, else 0."""
    broker = connection.broker
    settings = broker.settings
    if packet.qos > settings.maximum_qos:  # [MQTT-3.2.2-11]
        raise Violation(reasons.QOS_NOT_SUPPORTED, "MQTT-3.2.2-11", f"QoS {packet.qos}")
    if packet.retain and not connection.limits.retain_available:  # [MQTT-3.2.2-14]
        raise Violation(reasons.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-14", "RETAIN")
    if not connection.may_publish(topic):
        return reasons.NOT_AUTHORIZED
    return 0


def _forward_qos0(
    broker: Broker, packet: Publish, topic: str, route: Route, session: Session, now: float
) -> None:
    """The short way: QoS 0, nothing to check. The bytes go out as they came in."""
    v5 = session.outbound.version == V5
    if route.rest or route.groups:
        _route_qos0(broker, packet, topic, route, session, now)
        return
    same, other = (route.plain_v5, route.plain_v3) if v5 else (route.plain_v3, route.plain_v5)
    if same:
        _fan_out(broker, same, packet.raw, packet.count)
    if other or route.writer is not None:
        envelope = _envelope(packet, topic, session.client_id, v5, now)
        if route.writer is not None:
            route.writer.append_run(envelope, packet, now)
    if other:
        data = envelope.whole(not v5, _QOS0, packet.payloads(), now)
        _fan_out(broker, other, data, packet.count)


def _fan_out(broker: Broker, outbounds: list[Outbound], data: bytes, count: int) -> None:
    """The same bytes, `count` QoS 0 messages, to every session that is there to read them."""
    dirty = broker.dirty
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
                broker.budget.drop("slow_reader", count)
    sent = len(outbounds) - away
    stats = broker.stats
    stats.packets_sent[PUBLISH] += sent * count
    stats.publish_bytes_sent += sent * len(data)
    broker.turn_bytes += sent * len(data)


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
        envelope.adopt(v5, qos, raw[:at], raw[at + 2 : size])
    return envelope


def _route_qos0(
    broker: Broker, packet: Publish, topic: str, route: Route, session: Session, now: float
) -> None:
    v5 = session.outbound.version == V5
    envelope = _envelope(packet, topic, session.client_id, v5, now)
    payloads = packet.payloads()
    if route.writer is not None:
        route.writer.append(envelope, payloads, now)
    messages = [Message(envelope, payload) for payload in payloads]
    route_messages(broker, messages, route, session.outbound, None, now)


def route_messages(
    broker: Broker,
    messages: list[Message],
    route: Route,
    publisher: Outbound | None,
    txn: PublishTransaction | None,
    now: float,
) -> None:
    """Deliver messages of one envelope to everybody the route names. [MQTT-4.5.0-1]"""
    envelope = messages[0].envelope
    qos = envelope.qos
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
                data = whole[key] = envelope.whole(box.v5, options, payloads, now)
            box.put(data)
            broker.turn_bytes += len(data)
            sent += len(messages)
        else:
            outbound.deliver_qos0(messages, options, now)
    for group in route.groups:
        for message in messages:
            group.deliver(message, txn, now)
    broker.stats.packets_sent[PUBLISH] += sent
    broker.stats.publish_bytes_sent += sent * (len(envelope.topic) + envelope.payload_bytes)


def _take_qos2(
    connection: Connection,
    packet: Publish,
    topic: str,
    route: Route,
    refusal: int,
    why: str,
    now: float,
) -> None:
    """QoS 2: deliver what is new, answer every id with PUBREC. [MQTT-4.3.3-8]

    A burst that runs over the Receive Maximum is taken as far as it was allowed.
    """
    receiver = connection.session.receiver
    fresh: list[bytes] = []
    opened: list[int] = []
    answered: list[int] = []
    freed: list[int] = []
    violation: Violation | None = None
    for packet_id, payload in zip(packet.packet_ids(), packet.payloads(), strict=True):
        if packet_id in receiver.ids:  # again, as often as it likes. [MQTT-4.3.3-10]
            if refusal:  # [MQTT-4.3.3-9]
                receiver.refuse(packet_id)
                freed.append(packet_id)
        else:
            if receiver.over_quota(1):  # [MQTT-3.3.4-8]
                violation = Violation(
                    reasons.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.3.4-8", "too many QoS 2 under way"
                )
                break
            if not refusal:
                receiver.on_publish(packet_id)
            fresh.append(payload)
            opened.append(packet_id)
        answered.append(packet_id)
    broker = connection.broker
    session = connection.session
    txn: PublishTransaction | None = None
    place = len(connection.outbox.pieces)
    refused = answered if refusal else []
    if fresh and not refusal:
        envelope = _envelope(packet, topic, session.client_id, connection.version == V5, now)
        messages = [Message(envelope, payload) for payload in fresh]
        if route.writer is not None and not _has_room(route.writer, envelope, fresh):
            for packet_id in opened:  # the session outlives the connection
                receiver.refuse(packet_id)
            refused, refusal = opened, _log_is_full(connection)
        if route.durability and not refusal:
            txn = begin(broker, messages, route)
        try:
            if not refusal and packet.retain and not _retain(connection, messages[-1], txn, now):
                for packet_id in opened:
                    receiver.refuse(packet_id)
                refused, refusal = opened, reasons.QUOTA_EXCEEDED
            if not refusal:
                if route.writer is not None:
                    route.writer.append(envelope, fresh, now)
                if txn is not None and session.outbound.session_number:
                    txn.receive(session.outbound.session_number, opened)
                route_messages(broker, messages, route, session.outbound, txn, now)
        finally:
            if txn is not None and broker.journal is not None:
                broker.journal.add(txn)
    if refusal:
        _count_refused(broker, refusal, len(fresh))
    if freed and session.outbound.session_number and broker.journal is not None:
        broker.journal.on_freed(session.outbound.session_number, freed)
    broker.stats.packets_sent[PUBREC] += len(answered)
    data = _pubrecs(connection, answered, refused, refusal, why)
    if route.writer is not None and fresh and not refusal and route.durability == COMMIT:
        _hold_for_tap(connection, data, txn)
    elif txn is not None and txn.awaits_commit and txn.is_wanted:
        txn.acknowledge_with(connection.hold(data))
    elif (session.outbound.session_number and len(opened) < len(answered)) or (
        txn is not None and txn.awaits_commit and packet.retain and not refusal
    ):
        # An id is repeated, or nothing was there to remove: what it rests on may not be on disk.
        connection.answer(data, now, safely=True)
    else:
        connection.answer_before(data, place)
    if violation is not None:
        raise violation


def _pubacks(
    connection: Connection, packet: Publish, refusal: int, why: str, route: Route
) -> bytes:
    """PUBACK for every message of the burst, with its id. [MQTT-4.3.2-4], [MQTT-2.2.1-5]

    MQTT 3.1.1 has no word for a refusal: there the message is acknowledged and dropped.
    """
    raw, size, at = packet.raw, packet.size, packet.id_at
    connection.broker.stats.packets_sent[PUBACK] += packet.count
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
    """PUBREC for every id in their order, with the refusal for those that were refused.

    [MQTT-4.3.3-8], [MQTT-4.6.0-3]
    """
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
    """With a Reason String, if the client wants to know [MQTT-3.1.2-29] and it fits.

    [MQTT-3.4.2-2], [MQTT-3.5.2-2]
    """
    properties = NO_PROPERTIES
    if why and connection.wants_reasons:
        properties = Properties({prop.REASON_STRING: why})
        if not connection.outbox.fits(len(encode_ack(packet_type, 1, refusal, properties))):
            properties = NO_PROPERTIES
    return b"".join([encode_ack(packet_type, i, refusal, properties) for i in packet_ids])


def _count_refused(broker: Broker, refusal: int, count: int) -> None:
    name = reasons.name(refusal)
    broker.stats.refuse("publish", name, count)
    broker.budget.drop(name.lower().replace(" ", "_"), count)


def publish(broker: Broker, message: Message, publisher: Outbound | None, now: float) -> None:
    """Publish a message of the broker's own or a will: no checks, no acknowledgement."""
    topic = message.envelope.topic
    route = broker.routes.cache.results.get(topic) or find_route(broker, topic)
    messages = [message]
    txn = begin(broker, messages, route)
    try:
        if message.envelope.retain and not broker.retain(message, txn, now):
            broker.budget.drop("quota_exceeded")  # it is still delivered to who is subscribed
        if route.writer is None:
            pass
        elif _has_room(route.writer, message.envelope, [message.payload]):
            route.writer.append(message.envelope, [message.payload], now)
        else:
            broker.budget.drop("stream_full")
        route_messages(broker, messages, route, publisher, txn, now)
    finally:
        if txn is not None and broker.journal is not None:
            broker.journal.add(txn)

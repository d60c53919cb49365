"""Act on SUBSCRIBE and UNSUBSCRIBE, and send the retained messages that a subscription brings."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import SUBACK, SUBSCRIBE, UNSUBACK, UNSUBSCRIBE, V5
from mqtt_broker.codec.encode import encode_suback, encode_unsuback
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Subscribe, SubscriptionRequest, Unsubscribe
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.message_log import OFFSET_PROPERTY, Refusal
from mqtt_broker.topics.names import filter_problem, is_stream_filter, level_count, split_share
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import DeliveryOptions
from sessions.messages.outbox import CONGESTED
from sessions.session import Session, Subscription

_RETAINED_BYTES_AT_ONCE: Final = 256 << 10
_REASON_CHARS_MAX: Final = 1_000


def on_subscribe(connection: Connection, packet: Subscribe, now: float) -> None:
    """Answer every request with its own code; SUBACK goes before the retained messages.

    A filter that breaks the grammar spoils the whole packet, so all are checked first.
    """
    broker = connection.broker
    broker.counters.packets_received[SUBSCRIBE] += 1
    for request in packet.requests:
        check_request(request, connection.limits.topic_levels_max)
    identifiers = packet.properties.subscription_ids
    identifier = identifiers[0] if identifiers else 0
    codes: list[int] = []
    texts: list[str] = []
    fresh: list[tuple[Subscription, bool]] = []
    start = _stream_start(packet)
    for request in packet.requests:  # as if each came alone. [MQTT-3.8.4-5]
        code = _refusal(connection, request)
        is_stream = is_stream_filter(request.filter)
        if not code and is_stream:
            refusal = _stream_refusal(connection, request, start)
            if refusal is not None:
                code = refusal.reason
                texts.append(refusal.text)
        if not code:
            subscription = Subscription(
                connection.session,
                request.filter,
                request.qos,
                request.no_local,
                request.retain_as_published,
                request.retain_handling,
                identifier,
            )
            is_new = broker.subscriptions.add(subscription, now, start)
            fresh.append((subscription, is_new))
            code = request.qos  # whatever our Maximum QoS. [MQTT-3.8.4-7], [MQTT-3.2.2-10]
            if is_stream:
                code = min(code, 1)  # offsets make repeats visible, so once more says enough
        if code >= reasons.UNSPECIFIED_ERROR:
            broker.counters.refuse("subscribe", reasons.name(code))
        codes.append(code)  # one for each, in order. [MQTT-3.8.4-6], [MQTT-3.9.3-1]
    if connection.version != V5:  # 3.1.1 knows one refusal. [MQTT3-3.9.3-2]
        codes = [code if code < 0x80 else 0x80 for code in codes]
    # The answer, under the id of the request. [MQTT-3.8.4-1], [MQTT-2.2.1-6]
    broker.counters.packets_sent[SUBACK] += 1
    data = _encode_suback(connection, packet.packet_id, codes, texts)
    connection.check_answer(data)

    session = connection.session
    box = session.outbound.outbox
    keeps = (
        session.session_number > 0 and broker.journal is not None and broker.journal.awaits_commit
    )
    has_recorded = keeps and _record_retained(broker, session, fresh, now)

    def begin(then: float) -> None:
        if has_recorded and session.outbound.outbox is box:
            _send_recorded(broker, session, then)
        for subscription, is_new in fresh:
            if not is_stream_filter(subscription.filter):
                _send_retained(broker, subscription, is_new, then, 0, 0 if keeps else 2)
            elif broker.subscriptions.log is not None:
                broker.subscriptions.log.subscriptions.begin(subscription, then)

    connection.send_in_order(data, now, begin, safely=session.session_number > 0)
    _publish_event(connection, "subscribed", [s.filter for s, _ in fresh], now)


def _stream_start(packet: Subscribe) -> str | None:
    """Return where the client wants to begin to read streams, if it says so."""
    for name, value in packet.properties.user:
        if name == OFFSET_PROPERTY:
            return value
    return None


def _stream_refusal(
    connection: Connection, request: SubscriptionRequest, start: str | None
) -> Refusal | None:
    log = connection.broker.subscriptions.log
    if log is None:
        return Refusal(reasons.TOPIC_FILTER_INVALID, "this broker keeps no streams")
    return log.subscriptions.refusal(
        connection.session, request.filter, start, goes_on=request.retain_handling == 1
    )


def _encode_suback(
    connection: Connection, packet_id: int, codes: list[int], texts: list[str]
) -> bytes:
    """Encode a SUBACK, with a Reason String for a client that wants one and can take it.

    Not without Request Problem Information [MQTT-3.1.2-29], nor if it makes the packet too
    large. [MQTT-3.9.2-1]
    """
    version = connection.version
    if texts and connection.wants_reasons:
        said = Properties({prop.REASON_STRING: "; ".join(texts)[:_REASON_CHARS_MAX]})
        data = encode_suback(version, packet_id, codes, said)
        if connection.outbox.fits(len(data)):
            return data
    return encode_suback(version, packet_id, codes, NO_PROPERTIES)


def on_unsubscribe(connection: Connection, packet: Unsubscribe, now: float) -> None:
    """Answer with one UNSUBACK for all filters. [MQTT-3.10.4-4], [MQTT-3.10.4-6]"""
    broker = connection.broker
    broker.counters.packets_received[UNSUBSCRIBE] += 1
    session = connection.session
    codes: list[int] = []
    for text in packet.filters:  # a code for each, in order. [MQTT-3.11.3-1]
        if filter_problem(text):
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.1-1", "a malformed Topic Filter")
        subscription = session.subscriptions.get(text)  # [MQTT-3.10.4-1]
        if subscription is None:
            codes.append(reasons.NO_SUBSCRIPTION_EXISTED)  # [MQTT-3.10.4-5]
        else:
            broker.subscriptions.remove(subscription, now)
            codes.append(reasons.SUCCESS)  # or the other of its codes. [MQTT-3.11.3-2]
    broker.counters.packets_sent[UNSUBACK] += 1
    data = encode_unsuback(connection.version, packet.packet_id, codes)
    connection.check_answer(data)
    connection.send_in_order(data, now, safely=session.session_number > 0)
    _publish_event(connection, "unsubscribed", packet.filters, now)


def check_request(request: SubscriptionRequest, levels_max: int) -> None:
    """Raise the Violation of a Topic Filter that no server could accept."""
    text = request.filter
    shared = split_share(text)
    if shared is not None:
        name, text = shared
        if not text or not name or name == "+":  # [MQTT-4.8.2-1]
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.8.2-1", "a malformed $share filter")
        if "#" in name or "+" in name:
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.8.2-2", "a wildcard in a share name")
        if request.no_local:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.8.3-4", "No Local on $share")
    problem = filter_problem(text)
    if problem:
        raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.1-1", problem)
    if level_count(text) > levels_max:
        raise Violation(
            reasons.MALFORMED_PACKET, "MQTT-4.7.3-3", "a Topic Filter of too many levels"
        )


def _refusal(connection: Connection, request: SubscriptionRequest) -> int:
    """Return the code of SUBACK that refuses a request, or 0. [MQTT-3.9.3-2]"""
    session = connection.session
    limit = connection.limits.subscriptions_max
    if request.filter not in session.subscriptions and len(session.subscriptions) >= limit:
        return reasons.QUOTA_EXCEEDED
    guard = connection.authorization.guard
    if guard is not None and not guard.may_subscribe(request.filter, request.qos):
        return reasons.NOT_AUTHORIZED
    return 0


def _record_retained(
    broker: BrokerState, session: Session, fresh: list[tuple[Subscription, bool]], now: float
) -> bool:
    """Record the retained messages of these subscriptions at QoS 1 and 2 together with them.

    A client that has got SUBACK gets them too, over a crash. True when there are any: they leave
    behind SUBACK, and everything else behind them.
    """
    session.outbound.add_barrier()
    count = 0
    for subscription, is_new in fresh:
        if not is_stream_filter(subscription.filter):
            count += _send_retained(broker, subscription, is_new, now, 1, 2)
    if not count:
        session.outbound.remove_barrier()
    return count > 0


def _send_recorded(broker: BrokerState, session: Session, now: float) -> None:
    """Send what waited for SUBACK, as much at a time as a peer may read."""
    outbound = session.outbound
    outbound.remove_barrier()
    is_more = not outbound.barriers
    while is_more and outbound.resend and outbound.outbox.state < CONGESTED:
        before = len(outbound.resend)
        outbound.send_resends(now, _RETAINED_BYTES_AT_ONCE)
        broker.outboxes.write(outbound.outbox, now)
        is_more = len(outbound.resend) < before
    outbound.pump(now)


def _send_retained(
    broker: BrokerState, subscription: Subscription, is_new: bool, now: float, low: int, high: int
) -> int:
    """Send the retained messages of a subscription, of QoS `low` to `high`; returns how many.

    [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]
    With handling 0 a subscription that replaces one brings them again. [MQTT-3.8.4-4]
    """
    handling = subscription.retain_handling
    if handling == 2 or (handling == 1 and not is_new) or split_share(subscription.filter):
        return 0
    session = subscription.session
    journal = broker.journal
    if journal is None or not session.session_number:
        return _deliver_retained(broker, subscription, None, now, low, high)
    txn = journal.begin([], awaits_commit=journal.awaits_commit)
    try:
        return _deliver_retained(broker, subscription, txn, now, low, high)
    finally:
        journal.add(txn)


def _deliver_retained(
    broker: BrokerState,
    subscription: Subscription,
    txn: PublishTransaction | None,
    now: float,
    low: int,
    high: int,
) -> int:
    session = subscription.session
    waiting_bytes = count = 0
    for message in broker.retained.match(subscription.filter):
        envelope = message.envelope
        qos = min(envelope.qos, subscription.qos)
        if not low <= qos <= high or envelope.is_expired(now):
            continue
        if subscription.no_local and envelope.publisher == session.client_id:
            continue
        # A retained copy says so, whatever Retain As Published says. [MQTT-3.3.1-8]
        grant = DeliveryOptions(qos, True, subscription.identifiers)
        count += 1
        if qos:
            session.outbound.deliver([message], grant, txn, now)
        else:
            session.outbound.deliver_qos0([message], grant, now, may_queue=True)
        waiting_bytes += envelope.size
        if waiting_bytes > _RETAINED_BYTES_AT_ONCE:  # see whether the peer can take more
            waiting_bytes = 0
            broker.outboxes.write(session.outbound.outbox, now)
    if waiting_bytes > broker.settings.outbox_bytes_max // 4:
        broker.outboxes.write(session.outbound.outbox, now)
    return count


def _publish_event(connection: Connection, event: str, filters: list[str], now: float) -> None:
    events = connection.broker.events
    if filters and events.is_wanted:
        events.publish(connection.session.client_id, event, {"filters": filters}, now)

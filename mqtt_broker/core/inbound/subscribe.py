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
from mqtt_broker.core.clients.authorization import why_not
from mqtt_broker.core.clients.connection import CLOSED, Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.message_log import OFFSET_PROPERTY, Refusal
from mqtt_broker.core.routing.retained_delivery import RetainedCopies, brings_retained
from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.topics.names import filter_problem, is_stream_filter, level_count, split_share
from sessions.messages.outbox import CONGESTED, Outbox
from sessions.messages.work import (
    CHARS_A_UNIT,
    DONE,
    FILTER,
    FILTER_CHECKED,
    MORE,
    RECORDED,
    STREAM,
    WAITS,
)
from sessions.session import Session, Subscription

_RETAINED_BYTES_AT_ONCE: Final = 256 << 10
_REASON_CHARS_MAX: Final = 1_000


def on_subscribe(connection: Connection, packet: Subscribe, now: float) -> None:
    """Answer every request with its own code; SUBACK goes before the retained messages."""
    connection.broker.counters.packets_received[SUBSCRIBE] += 1
    subscribing = _Subscribing(connection, packet)
    if subscribing.go_on(now) != DONE:
        connection.begin(subscribing)


class _Subscribing:
    """A SUBSCRIBE that is acted upon: very many filters, or what they bring, take many turns.

    A filter that breaks the grammar spoils the whole packet, so all are checked first. What the
    filters bring to a stored session at QoS 1 and 2 is recorded together with them: a client that
    has got SUBACK gets that too, over a crash. It leaves behind SUBACK, and everything else at
    these QoS behind it. A subscription is recorded behind what it brings: one that is there after a
    crash has brought all of it. So has one whose client goes meanwhile, and has not got SUBACK.
    It waits while the disk is as far behind as publishers may be.
    """

    __slots__ = (
        "_at",
        "_checked",
        "_codes",
        "_connection",
        "_fresh",
        "_identifier",
        "_later",
        "_packet",
        "_recorded",
        "_start",
        "_texts",
    )

    def __init__(self, connection: Connection, packet: Subscribe) -> None:
        self._connection = connection
        self._packet = packet
        self._checked = 0  # requests
        self._at = 0  # the next request to be acted upon
        identifiers = packet.properties.subscription_ids
        self._identifier = identifiers[0] if identifiers else 0
        self._start = _stream_start(packet)
        self._codes: list[int] = []
        self._texts: list[str] = []
        self._fresh: list[tuple[Subscription, bool]] = []
        self._recorded: RetainedCopies | None = None  # of a stored session
        self._later: list[Subscription] = []  # to be recorded behind what they bring

    def go_on(self, now: float) -> int:
        """Act on some more of it; see `WorkItem`."""
        connection = self._connection
        if connection.state != CLOSED and self._act(now) == MORE:
            return MORE
        if self._recorded is not None:
            journal = connection.broker.journal
            if journal is not None and journal.is_behind and not _is_leaving(connection):
                return WAITS
            if self._record(self._recorded, now) == MORE:
                return MORE
        if connection.state != CLOSED:  # else nobody is told any more
            self._answer(now)
        return DONE

    def _act(self, now: float) -> int:
        """Check some more of the requests, and act on them."""
        connection = self._connection
        work = connection.broker.work
        requests = self._packet.requests
        while self._checked < len(requests):
            check_request(requests[self._checked], connection.limits.topic_levels_max)
            self._checked += 1
            work.spent += FILTER_CHECKED
            if self._checked < len(requests) and work.is_over:
                return MORE
        if not self._at:
            self._keep_back()
        while self._at < len(requests):
            self._subscribe(requests[self._at], now)
            self._at += 1
            work.spent += FILTER
            if self._at < len(requests) and work.is_over:
                return MORE
        return DONE

    def _record(self, copies: RetainedCopies, now: float) -> int:
        """Record some more of what the subscriptions bring, and then the subscriptions."""
        broker = self._connection.broker
        session = copies.session
        if broker.sessions.get(session.client_id) is not session:
            return DONE  # it has ended
        if copies.go_on(now, waits=False) == MORE:
            return MORE
        while self._later:
            subscription = self._later.pop()
            if session.subscriptions.get(subscription.filter) is subscription:
                broker.subscriptions.record(subscription)
            broker.work.spent += RECORDED
            if self._later and broker.work.is_over:
                return MORE
        return DONE

    def _keep_back(self) -> None:
        """Let nothing at QoS 1 and 2 overtake what a stored session is brought."""
        broker = self._connection.broker
        session = self._connection.session
        journal = broker.journal
        if session.session_number and journal is not None and journal.awaits_commit:
            self._recorded = broker.retained_deliveries.copies(session)
            session.outbound.add_barrier()

    def _subscribe(self, request: SubscriptionRequest, now: float) -> None:
        """Act on one request, as if it came alone. [MQTT-3.8.4-5]"""
        connection = self._connection
        broker = connection.broker
        code, why = _refusal(connection, request)
        is_stream = is_stream_filter(request.filter)
        if not code and is_stream:
            chars = len(request.filter) + (0 if self._start is None else len(self._start))
            broker.work.spent += STREAM + chars // CHARS_A_UNIT
            refusal = _stream_refusal(connection, request, self._start)
            if refusal is not None:
                code, why = refusal.reason, refusal.text
        if why and why not in self._texts:
            self._texts.append(why)
        if not code:
            subscription = Subscription(
                connection.session,
                request.filter,
                request.qos,
                request.no_local,
                request.retain_as_published,
                request.retain_handling,
                self._identifier,
            )
            is_new = broker.subscriptions.put_in_force(subscription, now, self._start)
            if broker.recorder is not None:
                outbound = connection.session.outbound
                details = kinds.subscription_code(
                    request.qos,
                    request.retain_handling,
                    existed=not is_new,
                    no_local=request.no_local,
                )
                broker.recorder.subscribed(outbound, request.filter, details, now)
            self._fresh.append((subscription, is_new))
            if self._recorded is not None and brings_retained(subscription, is_new):
                self._recorded.want(subscription, 1, 2)
                self._later.append(subscription)
            else:
                broker.subscriptions.record(subscription)
            code = request.qos  # whatever our Maximum QoS. [MQTT-3.8.4-7], [MQTT-3.2.2-10]
            if is_stream:
                code = min(code, 1)  # offsets make repeats visible, so once more says enough
        if code >= reasons.UNSPECIFIED_ERROR:
            broker.counters.refuse("subscribe", reasons.name(code))
            if broker.recorder is not None:
                self._record_refusal(broker.recorder, request.filter, code, why, now)
        self._codes.append(code)  # one for each, in order. [MQTT-3.8.4-6], [MQTT-3.9.3-1]

    def _record_refusal(
        self, recorder: Recorder, text: str, code: int, why: str, now: float
    ) -> None:
        connection = self._connection
        if code == reasons.NOT_AUTHORIZED:
            why = why_not(connection.authorization.guard, text, is_publish=False) or why
        outbound = connection.session.outbound
        recorder.refused(outbound, kinds.SUBSCRIBE_REFUSED, text, code, why, now)

    def _answer(self, now: float) -> None:
        connection = self._connection
        broker = connection.broker
        codes = self._codes
        texts = self._texts
        if texts:
            said = "; ".join(texts)[:_REASON_CHARS_MAX]
            broker.log(f"{connection.name}: SUBSCRIBE refused, {said}")
        if connection.version != V5:  # 3.1.1 knows one refusal. [MQTT3-3.9.3-2]
            codes = [code if code < 0x80 else 0x80 for code in codes]
        # The answer, under the id of the request. [MQTT-3.8.4-1], [MQTT-2.2.1-6]
        broker.counters.packets_sent[SUBACK] += 1
        data = _encode_suback(connection, self._packet.packet_id, codes, texts)
        connection.check_answer(data)
        outbound = connection.session.outbound
        is_kept_back = self._recorded is not None and self._recorded.count > 0
        if self._recorded is not None and not is_kept_back:
            outbound.remove_barrier()
            outbound.pump(now)
        box = outbound.outbox
        connection.send_in_order(
            data,
            now,
            lambda then: self._begin(box if is_kept_back else None, then),
            safely=outbound.session_number > 0,
        )
        _publish_event(connection, "subscribed", [s.filter for s, _ in self._fresh], now)

    def _begin(self, keeps_back: Outbox | None, now: float) -> None:
        """Begin to send what the subscriptions bring: SUBACK has been sent."""
        broker = self._connection.broker
        session = self._connection.session
        if keeps_back is not None and session.outbound.outbox is keeps_back:
            _send_recorded(broker, session, now)
        brings: list[Subscription] = []
        for subscription, is_new in self._fresh:
            if is_stream_filter(subscription.filter):
                if broker.subscriptions.log is not None:
                    broker.subscriptions.log.subscriptions.begin(subscription, now)
            elif brings_retained(subscription, is_new):
                brings.append(subscription)
        if brings:
            high = 2 if self._recorded is None else 0
            broker.retained_deliveries.send(session, brings, high, now)


def _is_leaving(connection: Connection) -> bool:
    """Tell whether the connection ends as soon as nothing of it is held."""
    unfinished = connection.unfinished
    return connection.state == CLOSED or (unfinished is not None and unfinished.is_leaving)


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
        return Refusal(reasons.TOPIC_FILTER_INVALID, "this broker has no streams")
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
    connection.broker.counters.packets_received[UNSUBSCRIBE] += 1
    unsubscribing = _Unsubscribing(connection, packet)
    if unsubscribing.go_on(now) == MORE:
        connection.begin(unsubscribing)


class _Unsubscribing:
    """An UNSUBSCRIBE that is acted upon: very many filters take many turns."""

    __slots__ = ("_codes", "_connection", "_packet")

    def __init__(self, connection: Connection, packet: Unsubscribe) -> None:
        self._connection = connection
        self._packet = packet
        self._codes: list[int] = []

    def go_on(self, now: float) -> int:
        """Act on some more of it; see `WorkItem`."""
        connection = self._connection
        if connection.state == CLOSED:
            return DONE
        work = connection.broker.work
        codes = self._codes
        filters = self._packet.filters
        while len(codes) < len(filters):  # a code for each, in order. [MQTT-3.11.3-1]
            codes.append(self._unsubscribe(filters[len(codes)], now))
            work.spent += FILTER
            if len(codes) < len(filters) and work.is_over:
                return MORE
        self._answer(now)
        return DONE

    def _unsubscribe(self, text: str, now: float) -> int:
        if filter_problem(text):
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.1-1", "malformed Topic Filter")
        connection = self._connection
        subscription = connection.session.subscriptions.get(text)  # [MQTT-3.10.4-1]
        if subscription is None:
            return reasons.NO_SUBSCRIPTION_EXISTED  # [MQTT-3.10.4-5]
        if is_stream_filter(text):
            connection.broker.work.spent += STREAM
        connection.broker.subscriptions.remove(subscription, now)
        return reasons.SUCCESS  # or the other of its codes. [MQTT-3.11.3-2]

    def _answer(self, now: float) -> None:
        connection = self._connection
        connection.broker.counters.packets_sent[UNSUBACK] += 1
        data = encode_unsuback(connection.version, self._packet.packet_id, self._codes)
        connection.check_answer(data)
        is_stored = connection.session.session_number > 0
        connection.send_in_order(data, now, safely=is_stored)
        _publish_event(connection, "unsubscribed", self._packet.filters, now)


def check_request(request: SubscriptionRequest, levels_max: int) -> None:
    """Raise the Violation of a Topic Filter that no server could accept."""
    text = request.filter
    shared = split_share(text)
    if shared is not None:
        name, text = shared
        if not text or not name or name == "+":  # [MQTT-4.8.2-1]
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-4.8.2-1", "malformed $share filter")
        if "#" in name or "+" in name:
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.8.2-2", "wildcard in a share name")
        if request.no_local:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.8.3-4", "No Local on $share")
    problem = filter_problem(text)
    if problem:
        raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.1-1", problem)
    if level_count(text) > levels_max:
        raise Violation(
            reasons.MALFORMED_PACKET, "MQTT-4.7.3-3", "Topic Filter with too many levels"
        )


def _refusal(connection: Connection, request: SubscriptionRequest) -> tuple[int, str]:
    """Return the code of SUBACK that refuses a request, and why; 0 if none does. [MQTT-3.9.3-2]"""
    session = connection.session
    if request.filter not in session.subscriptions:
        limits = connection.broker.subscriptions.limits
        limit = limits.refusal(session, request.filter, connection.limits)
        if limit:
            return reasons.QUOTA_EXCEEDED, limit
    guard = connection.authorization.guard
    if guard is not None and not guard.may_subscribe(request.filter, request.qos):
        return reasons.NOT_AUTHORIZED, ""
    return 0, ""


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


def _publish_event(connection: Connection, event: str, filters: list[str], now: float) -> None:
    events = connection.broker.events
    if filters and events.is_wanted:
        events.publish(connection.session.client_id, event, {"filters": filters}, now)

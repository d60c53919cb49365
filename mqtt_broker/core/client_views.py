"""Snapshots of a client for the recorder's answers."""

from __future__ import annotations

from typing import Final

from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.routing.retained_delivery import delivery_to
from mqtt_broker.recorder.client_view import ClientView, RetainedView, SubscriptionView
from mqtt_broker.recorder.inquiry import Inquiry
from mqtt_broker.recorder.message_ids import MessageName
from mqtt_broker.recorder.message_inquiry import MessageInquiry
from mqtt_broker.recorder.recorder import Recorder, to_ms
from mqtt_broker.topics.names import is_wildcard
from sessions.messages.message import Envelope
from sessions.outbound import Outbound

_MESSAGES_MAX: Final = 20_000  # in flight or queued, that are looked at in one turn


def view_client(broker: BrokerState, client_id: str, topic: str = "") -> ClientView:
    """Return a client as it is now: its subscriptions, and what it has not acknowledged.

    With the retained message of `topic`, if that is one.
    """
    session = broker.sessions.get(client_id)
    retained = view_retained(broker, topic)
    if session is None:
        return ClientView(client_id, retained=retained)
    outbound = session.outbound
    queue = outbound.queue
    waiting = 0 if queue is None else queue.in_memory
    bringing = delivery_to(session)
    view = ClientView(
        client_id,
        is_known=True,
        is_online=session.is_online,
        queues_qos0=broker.backlog.queue_qos0,
        subscriptions=[
            SubscriptionView(one.filter, one.qos, no_local=one.no_local)
            for one in session.subscriptions.values()
        ],
        waiting_elsewhere=0 if queue is None else queue.stored_messages,
        is_whole=len(outbound.window.unacked) + waiting <= _MESSAGES_MAX,
        retained=retained,
        retained_filters=[] if bringing is None else bringing.filters,
    )
    if view.is_whole:
        _add_messages(view, outbound)
    return view


def view_retained(broker: BrokerState, topic: str) -> RetainedView | None:
    """Return the retained message of a topic; None: there is none, or it is not a topic."""
    message = None if not topic or is_wildcard(topic) else broker.retained.get(topic)
    if message is None:
        return None
    envelope = message.envelope
    expires_ms = _expires_ms(envelope)
    return RetainedView(envelope.publisher, envelope.qos, to_ms(envelope.received_at), expires_ms)


def _expires_ms(envelope: Envelope) -> int:
    return to_ms(envelope.expires_at) if envelope.expiry_interval >= 0 else 0


def _add_messages(view: ClientView, outbound: Outbound) -> None:
    for message, _, _, _ in outbound.window.unacked.values():
        view.add_in_flight(message.envelope.topic, to_ms(message.envelope.received_at))
    if outbound.queue is not None:
        for message, _, _, _ in outbound.queue.items():
            envelope = message.envelope
            view.add_waiting(envelope.topic, to_ms(envelope.received_at), _expires_ms(envelope))


def inquire(
    broker: BrokerState,
    recorder: Recorder,
    client_id: str,
    topic: str,
    since: float,
    now: float,
    message: MessageName | None = None,
) -> Inquiry:
    """Begin to find out why a client did, or did not, get what was published to a topic.

    `message` is the one that is asked about, if it is a single one.
    """

    def look(about: str) -> ClientView:
        return view_client(broker, client_id, about)

    if message is not None:
        return MessageInquiry(recorder, look, topic, message, to_ms(now))
    return Inquiry(recorder, look, topic, to_ms(since), to_ms(now))

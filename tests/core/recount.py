"""What a broker keeps, counted anew: its own counts have to agree at any time."""

from __future__ import annotations

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.core.routing.subscription_limits import SubscriptionLimits
from mqtt_broker.topics.chains import ENTRY_BYTES
from mqtt_broker.topics.names import is_stream_filter, split_share, text_bytes
from mqtt_broker.topics.retained import RetainedTree
from sessions.messages.message import Message
from sessions.messages.work import Work
from sessions.session import Session, state_bytes
from sessions.window import PLACE_BYTES, RELEASED_BYTES


def check_bytes(broker: Broker) -> None:
    """Raise AssertionError when the broker miscounts what it keeps: retained messages, filters,
    names and wills, messages under way.
    """
    _check_windows(broker)
    states = [state_bytes(s.client_id, s.username, s.will) for s in broker.sessions]
    assert [session.state_bytes for session in broker.sessions] == states
    ids = sum(session.ids_bytes for session in broker.sessions)
    assert broker.sessions.state.bytes == sum(states) + ids, "names, wills, packet ids"
    for session in broker.sessions:
        assert len(session.inbound.ids) <= max(session.inbound.limit, session.receive_maximum)
    retained = broker.retained
    tree: RetainedTree[bool] = RetainedTree()
    size = 0
    for message in retained.values():
        tree.put(message.envelope.topic, True)
        size += message.settled_bytes
    size += sum(ENTRY_BYTES + text_bytes(client_id) for client_id in retained.published_by)
    assert retained.bytes == size + tree.bytes, "retained messages"

    routes = Routes(Work())
    limits = SubscriptionLimits(Settings(), routes)
    groups: dict[str, SharedGroup] = {}
    for session in broker.sessions:
        one = Session(session.outbound, receive_maximum=1, now=0.0)
        for text, subscription in session.subscriptions.items():
            limits.add(one, text)
            shared = split_share(text)
            if is_stream_filter(text):
                continue
            if shared is None:
                routes.add(subscription)
            elif text not in groups:
                groups[text] = broker.subscriptions.groups[text]
                routes.add_group(shared[1], text, groups[text])
        assert one.subscription_bytes == session.subscription_bytes, session.client_id
        assert one.subscription_levels == session.subscription_levels, session.client_id
    found = broker.subscriptions.limits
    assert found.bytes - found.overlap_bytes == limits.bytes, "subscriptions"
    assert found.overlap_bytes == sum(overlap.bytes for overlap in found.overlaps.values())


def _check_windows(broker: Broker) -> None:
    places: dict[Message, int] = {}
    released = 0
    for session in broker.sessions:
        window = session.outbound.window
        released += len(window.releasing)
        for message, _, _, _ in window.unacked.values():
            places[message] = places.get(message, 0) + 1
    for message, count in places.items():
        assert message.holders == count, message.envelope.topic
    sizes = sum(m.envelope.size + PLACE_BYTES * (n - 1) for m, n in places.items())
    assert broker.backlog.inflight_bytes == sizes + RELEASED_BYTES * released, "under way"

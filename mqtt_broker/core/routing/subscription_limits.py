"""Limit what the subscriptions of a client keep in memory, and what they make a match visit.

What a client has is counted as if it shared nothing with others, so that it does not depend on its
neighbours. What all have together is counted as it is.

Wildcard and shared filters of one client may overlap: a Topic Name then visits many of them, at
every message. How many at most is worked out only for a client that has so many levels in all its
filters that it could be too many.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.topics.names import (
    is_stream_filter,
    is_wildcard,
    level_count,
    split_share,
    text_bytes,
)
from mqtt_broker.topics.overlap import FilterOverlap
from sessions.session import Session

# What a subscription itself takes, beside the text of its filter.
_SUBSCRIPTION_BYTES: Final = 140
_MEMBER_BYTES: Final = 600  # more, of one in a shared group
# The same with its place among the routes. The text of a wildcard filter is in the trie and in the
# overlap as well.
_EXACT_BYTES: Final = 400
_WILDCARD_BYTES: Final = 1_000
_SHARED_BYTES: Final = 2_300
_WILDCARD_TEXTS: Final = 3


class SubscriptionLimits:
    __slots__ = (
        "_overlap_max",
        "_own_bytes",
        "_routes",
        "_total_bytes_max",
        "overlap_bytes",
        "overlaps",
    )

    def __init__(self, settings: Settings, routes: Routes) -> None:
        self._routes = routes
        self._own_bytes = 0  # of all subscriptions, without the routes
        self._total_bytes_max = settings.subscriptions_total_bytes_max
        # One filter fits at least: each of its levels, the root and the filter's end.
        self._overlap_max = max(settings.subscription_overlap_max, settings.topic_levels_max + 2)
        self.overlap_bytes = 0
        self.overlaps: dict[Session, FilterOverlap] = {}  # of those with many levels

    def refusal(self, session: Session, text: str, limits: ClientLimits) -> str:
        """Say which limit forbids the client one more filter; empty when none does."""
        if len(session.subscriptions) >= limits.subscriptions_max:
            return f"limit reached: {limits.subscriptions_max:,} subscriptions of a client"
        size = _bytes_of(text)
        if session.subscription_bytes + size > limits.subscriptions_bytes_max:
            size_max = limits.subscriptions_bytes_max
            return f"limit reached: {size_max:,} bytes of subscriptions of a client"
        if self.bytes + size > self._total_bytes_max:
            return f"limit reached: {self._total_bytes_max:,} bytes of subscriptions of all clients"
        if not self._may_overlap(session, text):
            return f"limit reached: {self._overlap_max:,} levels of filters that a topic matches"
        return ""

    @property
    def bytes(self) -> int:
        """About the bytes that all subscriptions keep, and what finds them."""
        return self._own_bytes + self._routes.bytes + self.overlap_bytes

    def add(self, session: Session, text: str) -> None:
        """Count a filter that the client has from now on."""
        levels = _overlapping_levels(text)
        session.count_subscription(_bytes_of(text), levels)
        self._own_bytes += _own_bytes_of(text)
        overlap = self.overlaps.get(session) if levels else None
        if overlap is not None:
            self.overlap_bytes -= overlap.bytes
            overlap.add(_filter_of(text))
            self.overlap_bytes += overlap.bytes

    def remove(self, session: Session, text: str) -> None:
        """Stop counting a filter that the client had."""
        levels = _overlapping_levels(text)
        session.count_subscription(-_bytes_of(text), -levels)
        self._own_bytes -= _own_bytes_of(text)
        overlap = self.overlaps.get(session) if levels else None
        if overlap is None:
            return
        self.overlap_bytes -= overlap.bytes
        if 2 * session.subscription_levels <= self._overlap_max:
            del self.overlaps[session]
        else:
            overlap.remove(_filter_of(text))
            self.overlap_bytes += overlap.bytes

    def forget_overlap(self, session: Session) -> None:
        """Keep the overlap of a session's filters no longer: it has ended."""
        overlap = self.overlaps.pop(session, None)
        if overlap is not None:
            self.overlap_bytes -= overlap.bytes

    def _may_overlap(self, session: Session, text: str) -> bool:
        """Tell whether one name would visit few enough levels of the client's filters."""
        levels = _overlapping_levels(text)
        if not levels or 1 + session.subscription_levels + levels <= self._overlap_max:
            return True
        overlap = self.overlaps.get(session) or self._overlap_of(session)
        before = overlap.most
        overlap.add(_filter_of(text))
        after = overlap.most
        overlap.remove(_filter_of(text))
        return after <= max(before, self._overlap_max)  # it may have had more of an older broker

    def _overlap_of(self, session: Session) -> FilterOverlap:
        """Begin to keep the overlap of a client's filters."""
        overlap = self.overlaps[session] = FilterOverlap()
        for text in session.subscriptions:
            if _overlapping_levels(text):
                overlap.add(_filter_of(text))
        self.overlap_bytes += overlap.bytes
        return overlap


def _bytes_of(text: str) -> int:
    size = text_bytes(text)
    if split_share(text) is not None:
        return _SHARED_BYTES + _WILDCARD_TEXTS * size
    if is_wildcard(text):
        return _WILDCARD_BYTES + _WILDCARD_TEXTS * size
    return _EXACT_BYTES + size


def _own_bytes_of(text: str) -> int:
    size = _SUBSCRIPTION_BYTES + text_bytes(text)
    return size if split_share(text) is None else size + _MEMBER_BYTES


def _overlapping_levels(text: str) -> int:
    """Return the levels of a filter and its end; 0 if no other can match what it matches.

    One filter without a wildcard is found with one look, and a filter of a stream is no route.
    """
    if is_stream_filter(text):
        return 0
    shared = split_share(text)
    if shared is not None:
        return level_count(shared[1]) + 1
    return level_count(text) + 1 if is_wildcard(text) else 0


def _filter_of(text: str) -> str:
    shared = split_share(text)
    return text if shared is None else shared[1]

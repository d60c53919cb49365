"""The limits of one client: the strictest of the settings', its listener's and its user's.

A field that says nothing is as large as it can be, so two `ClientLimits` are met field by field
with the smaller value. What CONNACK told (Maximum Packet Size, Receive Maximum, Retain Available)
holds as it was told until the connection ends. Counting is in `token_bucket`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from mqtt_broker.codec.constants import REMAINING_LENGTH_MAX
from mqtt_broker.core.limits.settings import UNLIMITED, Settings
from sessions.messages.backlog import QueueLimits

# A message grows on its way: by Subscription Identifiers, and by what a dead letter says. What
# comes in is so much smaller than MQTT's largest packet that it still fits into one.
GROWTH_BYTES_MAX: Final = 1 << 20
ANY_RATE: Final = float("inf")
_KNOWN_MAX: Final = 1_000  # an embedder's `Access` may give each client its own


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits of one client, named as the settings and the configuration file name them."""

    packet_bytes_max: int = UNLIMITED
    receive_maximum: int = UNLIMITED
    inflight_max: int = UNLIMITED
    queue_messages_max: int = UNLIMITED
    queue_bytes_max: int = UNLIMITED
    subscriptions_max: int = UNLIMITED
    subscriptions_bytes_max: int = UNLIMITED
    topic_levels_max: int = UNLIMITED
    retain_available: bool = True
    retained_messages_max: int = UNLIMITED  # that it published itself
    # A client that sends faster is not read from until it is due again: TCP tells it to wait. Of
    # what is sent to it faster, QoS 0 is dropped and the rest waits, as if it read slowly.
    messages_per_s: float = ANY_RATE
    bytes_per_s: float = ANY_RATE
    sent_messages_per_s: float = ANY_RATE
    sent_bytes_per_s: float = ANY_RATE


def known_limits(limits: ClientLimits) -> dict[str, float]:
    """Return the limits that limit anything, by name."""
    return {
        field.name: getattr(limits, field.name)
        for field in fields(ClientLimits)
        if getattr(limits, field.name) not in (UNLIMITED, ANY_RATE)
    }


def of_settings(settings: Settings) -> ClientLimits:
    return ClientLimits(
        min(settings.packet_bytes_max, REMAINING_LENGTH_MAX - GROWTH_BYTES_MAX),
        settings.receive_maximum,
        settings.inflight_max,
        settings.queue_messages_max,
        settings.queue_bytes_max,
        settings.subscriptions_max,
        settings.subscriptions_bytes_max,
        settings.topic_levels_max,
        settings.retain_available,
        settings.retained_messages_max,
    )


def stricter(one: ClientLimits, other: ClientLimits | None) -> ClientLimits:
    """Combine two limits: the smaller value of each field."""
    if other is None:
        return one
    return ClientLimits(
        min(one.packet_bytes_max, other.packet_bytes_max),
        min(one.receive_maximum, other.receive_maximum),
        min(one.inflight_max, other.inflight_max),
        min(one.queue_messages_max, other.queue_messages_max),
        min(one.queue_bytes_max, other.queue_bytes_max),
        min(one.subscriptions_max, other.subscriptions_max),
        min(one.subscriptions_bytes_max, other.subscriptions_bytes_max),
        min(one.topic_levels_max, other.topic_levels_max),
        one.retain_available and other.retain_available,
        min(one.retained_messages_max, other.retained_messages_max),
        min(one.messages_per_s, other.messages_per_s),
        min(one.bytes_per_s, other.bytes_per_s),
        min(one.sent_messages_per_s, other.sent_messages_per_s),
        min(one.sent_bytes_per_s, other.sent_bytes_per_s),
    )


class KnownLimits:
    """Caches combined limits: a fleet of one kind has one object, not one a client."""

    __slots__ = ("base", "met_limits", "queue_limits")

    def __init__(self, base: ClientLimits) -> None:
        self.base = base  # what the settings say of everybody
        self.met_limits: dict[tuple[ClientLimits | None, ClientLimits | None], ClientLimits] = {}
        self.queue_limits: dict[tuple[int, int], QueueLimits] = {}

    def met(self, of_listener: ClientLimits | None, own: ClientLimits | None) -> ClientLimits:
        if of_listener is None and own is None:
            return self.base
        key = (of_listener, own)
        found = self.met_limits.get(key)
        if found is None:
            if len(self.met_limits) >= _KNOWN_MAX:
                self.met_limits.clear()
            found = stricter(stricter(self.base, of_listener), own)
            self.met_limits[key] = found
        return found

    def bounds(self, limits: ClientLimits) -> QueueLimits:
        """Return the limits of a client's queue."""
        key = (limits.queue_messages_max, limits.queue_bytes_max)
        found = self.queue_limits.get(key)
        if found is None:
            if len(self.queue_limits) >= _KNOWN_MAX:
                self.queue_limits.clear()
            found = self.queue_limits[key] = QueueLimits(*key)
        return found


def as_told(fresh: ClientLimits, told: ClientLimits) -> ClientLimits:
    """Return `fresh` for a connected client, except for what CONNACK told it."""
    return ClientLimits(
        told.packet_bytes_max,
        told.receive_maximum,
        fresh.inflight_max,
        fresh.queue_messages_max,
        fresh.queue_bytes_max,
        fresh.subscriptions_max,
        fresh.subscriptions_bytes_max,
        fresh.topic_levels_max,
        told.retain_available,
        fresh.retained_messages_max,
        fresh.messages_per_s,
        fresh.bytes_per_s,
        fresh.sent_messages_per_s,
        fresh.sent_bytes_per_s,
    )

"""The kinds of cells, and the codes of reasons in them."""

from __future__ import annotations

from typing import Final

# In the ring of traffic. A publication:
PUBLISHED: Final = 1
# What happened at one client to messages that were received within a range of time:
QUEUED: Final = 2
SENT: Final = 3  # from the queue
RESENT: Final = 4  # with DUP, on a new connection
ACKNOWLEDGED: Final = 5  # PUBACK, or PUBREC at QoS 2
GIVEN: Final = 6  # to a member of a shared subscription
SUBSCRIBED: Final = 7
UNSUBSCRIBED: Final = 8
RETAINED: Final = 9  # a retained message was delivered, because of a SUBSCRIBE
# In the ring of evidence:
DROPPED: Final = 16
REFUSED: Final = 17  # a PUBLISH or a SUBSCRIBE
CONNECTED: Final = 18
DISCONNECTED: Final = 19
NOT_CONNECTED: Final = 20  # a CONNECT that was refused
SESSION_ENDED: Final = 21
TAKEN_OVER: Final = 22  # a connection, by another one with the same client id
# Of the events on disk only: a time of which they are missing.
EVENTS_LOST: Final = 23

KIND_NAMES: Final = {
    PUBLISHED: "published",
    QUEUED: "queued",
    SENT: "sent",
    RESENT: "resent",
    ACKNOWLEDGED: "acknowledged",
    GIVEN: "given",
    SUBSCRIBED: "subscribed",
    UNSUBSCRIBED: "unsubscribed",
    RETAINED: "retained",
    DROPPED: "dropped",
    REFUSED: "refused",
    CONNECTED: "connected",
    DISCONNECTED: "disconnected",
    NOT_CONNECTED: "not_connected",
    SESSION_ENDED: "session_ended",
    TAKEN_OVER: "taken_over",
    EVENTS_LOST: "events_lost",
}

# Why a message had to wait.
AWAY: Final = 1
WINDOW_FULL: Final = 2
READS_SLOWLY: Final = 3
BEHIND_OTHERS: Final = 4
WAIT_NAMES: Final = {
    AWAY: "away",
    WINDOW_FULL: "window full",
    READS_SLOWLY: "reads slowly",
    BEHIND_OTHERS: "behind others",
}

# Why a message was dropped: the names that `Backlog.dropped` counts by.
DROP_REASONS: Final = (
    "unknown",
    "slow_reader",
    "queue_full",
    "expired",
    "packet_too_large",
    "not_authorized",
    "not_stored",
    "no_member",
    "session_ended",
    "stream_full",
    "quota_exceeded",
    "queue_cleared",
)
DROP_CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(DROP_REASONS)}

# Bits of the code of a publication.
QOS_BITS: Final = 3
RETAIN_BIT: Final = 4
# Bits of the code of a subscription, above those of its QoS.
HANDLING_AT: Final = 2  # two bits: its Retain Handling
EXISTED_BIT: Final = 16  # it replaced one with the same filter
NO_LOCAL_BIT: Final = 32
# Of the code of retained messages, beside their QoS: topics of which only the number is known.
MANY_BIT: Final = 4
# What a refusal was about.
PUBLISH_REFUSED: Final = 0
SUBSCRIBE_REFUSED: Final = 1
# How a session ended.
EXPIRED: Final = 1
REPLACED: Final = 2  # by a connection with Clean Start, or by an operator
NOT_KEPT: Final = 3  # it was not to outlive its connection
ENDS: Final = {EXPIRED: "expired", REPLACED: "replaced", NOT_KEPT: "not kept"}
# What became of a session that was taken over.
CONTINUED: Final = 0
BEGUN_ANEW: Final = 1
TAKEOVERS: Final = {CONTINUED: "session continued", BEGUN_ANEW: "session begun anew"}


def subscription_code(qos: int, retain_handling: int, *, existed: bool, no_local: bool) -> int:
    """Return the code of a subscription that was granted."""
    code = qos | retain_handling << HANDLING_AT
    return code | (EXISTED_BIT if existed else 0) | (NO_LOCAL_BIT if no_local else 0)

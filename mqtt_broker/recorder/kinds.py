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
# In the ring of evidence:
DROPPED: Final = 16
REFUSED: Final = 17  # a PUBLISH or a SUBSCRIBE
CONNECTED: Final = 18
DISCONNECTED: Final = 19
NOT_CONNECTED: Final = 20  # a CONNECT that was refused
SESSION_ENDED: Final = 21

KIND_NAMES: Final = {
    PUBLISHED: "published",
    QUEUED: "queued",
    SENT: "sent",
    RESENT: "resent",
    ACKNOWLEDGED: "acknowledged",
    GIVEN: "given",
    SUBSCRIBED: "subscribed",
    UNSUBSCRIBED: "unsubscribed",
    DROPPED: "dropped",
    REFUSED: "refused",
    CONNECTED: "connected",
    DISCONNECTED: "disconnected",
    NOT_CONNECTED: "not_connected",
    SESSION_ENDED: "session_ended",
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
# What a refusal was about.
PUBLISH_REFUSED: Final = 0
SUBSCRIBE_REFUSED: Final = 1
# How a session ended.
EXPIRED: Final = 1
REPLACED: Final = 2  # by a connection with Clean Start, or by an operator
NOT_KEPT: Final = 3  # it was not to outlive its connection
ENDS: Final = {EXPIRED: "expired", REPLACED: "replaced", NOT_KEPT: "not kept"}

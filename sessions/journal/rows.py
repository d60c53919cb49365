"""What the store keeps, as plain values: the same in the journal, in the tables and at recovery.

Nothing here does anything. Numbers that others refer to:

    sid     a session (or a shared subscription that keeps messages itself), never used twice
    mid     a stored message, whoever it is for
    n       a delivery's place in its session: later ones have a greater n
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WillRow:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    section: bytes  # the properties as they came, with their length; empty: none


@dataclass(slots=True)
class SessionRow:
    sid: int
    client_id: str
    username: str | None
    version: int
    created_at: float
    expiry_interval: int
    is_online: bool  # when this was written; then the two times below are 0
    expires_at: float  # away: when the session ends; inf: never
    will_at: float  # away: when the will is due; 0: it is not
    will: WillRow | None


@dataclass(slots=True)
class ShareRow:
    """A shared subscription with messages that wait for any member."""

    sid: int
    filter: str  # whole: $share/<group>/<filter>


@dataclass(slots=True)
class SubscriptionRow:
    sid: int
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int  # 0: none


@dataclass(slots=True)
class MessageRow:
    mid: int
    topic: str
    qos: int
    retain: bool
    section: bytes  # MQTT 5 properties as they came, with their length; empty: none
    payload: bytes
    publisher: str
    received_at: float
    expiry_interval: int  # seconds from received_at; -1: never


@dataclass(slots=True)
class DeliveryRow:
    """One message for one session: waiting (packet_id 0) or under way."""

    sid: int
    n: int
    mid: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    share: str  # the whole filter of the shared subscription it was taken from, or empty
    packet_id: int
    size: int  # what it counts against the limits of queues


@dataclass(slots=True)
class BacklogRow:
    """What waits for one session: all of it, without the messages."""

    sid: int
    messages: int
    bytes: int
    n_first: int
    n_last: int


@dataclass(slots=True)
class StreamRow:
    """A stream of the telemetry log that the broker has."""

    name: str
    epoch: str  # of this life of the stream: one that is made anew under its name has another
    filter: str  # the topics whose messages go there
    settings: str  # JSON, all of them
    created_at: float


@dataclass(slots=True)
class CursorRow:
    """Up to where somebody has taken a partition of a stream."""

    owner: str  # a consumer group, or a session with a reader of its own
    stream: str
    epoch: str
    partition: int
    offset: int  # the next to be taken

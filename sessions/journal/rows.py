"""Rows of the store as plain values: the same in the journal, in the tables and at a start.

The fields have the names of the columns. Numbers that others refer to:

    sid     session number: a session, or a shared subscription with messages; never used twice
    mid     message number: a stored message, whoever it is for
    n       a delivery's place in its session: later ones have a greater place
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
    """A shared subscription with messages that wait for any of its members."""

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
    """A message for a session: waiting (packet_id 0) or in flight."""

    sid: int
    n: int
    mid: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    share: str  # the whole filter of the shared subscription it was taken from, or empty
    packet_id: int
    size: int  # the bytes that it counts against the limits of queues


@dataclass(slots=True)
class BacklogRow:
    """The sums and the bounds of what waits for one session."""

    sid: int
    messages: int
    bytes: int
    n_first: int
    n_last: int


@dataclass(slots=True)
class StreamRow:
    """A stream of the telemetry log."""

    name: str
    epoch: str  # a stream that is made anew under the same name has another
    filter: str  # the topics whose messages it gets
    settings: str  # JSON, all of them
    created_at: float


@dataclass(slots=True)
class CursorRow:
    """The position of a reader in one partition of a stream."""

    owner: str  # a consumer group, or a session with its subscription
    stream: str
    epoch: str
    partition: int
    offset: int  # of the next record

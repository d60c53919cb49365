"""Rows of the store as plain values: the same in the journal, in the tables and at the start.

The fields have the names of the columns. Numbers that refer to other rows:

    sid     session number, of a session or of a shared subscription with messages; never reused
    mid     message number, of a stored message
    n       place of a delivery in its session: a later delivery has a greater place
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WillRow:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    section: bytes  # the properties as received, with their length; empty: none


@dataclass(slots=True)
class SessionRow:
    sid: int
    client_id: str
    username: str | None
    version: int
    created_at: float
    expiry_interval: int
    is_online: bool  # when this was written; if so, the two times below are 0
    expires_at: float  # if offline: when the session ends; inf: never
    will_at: float  # if offline: when the will is due; 0: it is not
    will: WillRow | None


@dataclass(slots=True)
class ShareRow:
    """A shared subscription with messages that wait for a member."""

    sid: int
    filter: str  # the full filter: $share/<group>/<filter>


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
    section: bytes  # MQTT 5 properties as received, with their length; empty: none
    payload: bytes
    publisher: str
    received_at: float
    expiry_interval: int  # seconds from received_at; -1: never


@dataclass(slots=True)
class DeliveryRow:
    """A message for a session, queued (packet_id 0) or in flight."""

    sid: int
    n: int
    mid: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    share: str  # the full filter of the shared subscription that it comes from, or empty
    packet_id: int
    size: int  # the bytes that it counts against the limits of queues


@dataclass(slots=True)
class BacklogRow:
    """The sums and the first and last place of the deliveries queued for one session."""

    sid: int
    messages: int
    bytes: int
    n_first: int
    n_last: int


@dataclass(slots=True)
class StreamRow:
    """A stream of the telemetry log."""

    name: str
    epoch: str  # a new one for each stream that is created, also with the same name
    filter: str  # Topic Filter of the messages that it gets
    settings: str  # all settings, as JSON
    created_at: float


@dataclass(slots=True)
class CursorRow:
    """The position of a reader in one partition of a stream."""

    owner: str  # a consumer group, or a subscription of a session
    stream: str
    epoch: str
    partition: int
    offset: int  # of the next record

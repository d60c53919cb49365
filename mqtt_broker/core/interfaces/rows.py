"""Rows about clients, subscriptions and messages, for operators: flat tuples of plain values.

`core.inspection` makes them; any thread may read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

R = TypeVar("R")

Place = tuple[Any, str]  # in a sorted list: the value that is sorted by, and the key
# What is known of a child of a level, in one number: flags, and a count of the messages below.
HAS_MESSAGE: Final = 1  # a message has this very topic
HAS_CHILDREN: Final = 2
ONE_BELOW: Final = 4


class Rows(Generic[R]):
    """Rows in parts. Whoever keeps very many frees them part by part: at once takes long."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[list[R]] = []

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[R]:
        for part in self.parts:
            yield from part


class ClientRow(NamedTuple):
    """A client and its session. Counts of messages and bytes are those of its connection."""

    id: str
    is_online: bool
    user: str | None
    address: str
    version: int
    listener: str
    connected_at: float  # 0: it is not connected
    disconnected_at: float  # 0: it is connected, or that is not known
    created_at: float
    expires_at: float  # 0: it is connected; inf: never
    keep_alive_s: int
    clean_start: bool
    session_expiry_s: int
    is_stored: bool
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    dropped: int
    unread_bytes: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    heard_at: float
    held: tuple[str, ...]  # why it is not read from now


class ClientDetail(NamedTuple):
    """More about one client."""

    row: ClientRow
    receive_maximum: int
    packet_bytes_max: int  # 0: no limit
    will: tuple[str, int, bool, int] | None  # topic, QoS, retain, bytes of the payload
    limits: dict[str, float]


class SubscriptionRow(NamedTuple):
    """A subscription of a client."""

    client: str
    filter: str
    qos: int
    group: str  # of a shared subscription; empty: it is none
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    is_online: bool


class MatchRow(NamedTuple):
    """A subscription that a topic matches."""

    client: str
    filter: str
    qos: int
    group: str
    is_online: bool
    is_permitted: bool  # as the rules are now


class RetainedRow(NamedTuple):
    """A retained message."""

    topic: str
    qos: int
    size: int
    publisher: str
    received_at: float
    expires_at: float  # 0: never


class RetainedSelect(NamedTuple):
    """Which retained messages to find."""

    text: str  # a Topic Filter; empty: all
    part: str  # of the topic, in lower case
    sort: str  # topic, bytes or received_at
    is_reversed: bool
    after: Place | None
    limit: int


class RetainedSelected(NamedTuple):
    """The rows of a page and one more, if there is, and how many match in all."""

    rows: list[RetainedRow]
    total: int


class MessageRow(NamedTuple):
    """A message in flight to a client, or one that waits for it."""

    place: int  # packet id in flight, else the place in the queue
    topic: str
    qos: int
    retain: bool
    size: int
    publisher: str
    received_at: float
    expires_at: float


class RetainedMessage(NamedTuple):
    """A retained message with its payload."""

    row: RetainedRow
    payload: bytes
    section: bytes  # its properties, as they came


class NewMessage(NamedTuple):
    """A message that an operator publishes."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    section: bytes  # its properties, encoded


class Published(NamedTuple):
    """The outcome of publishing a message."""

    reason_code: int
    matches: int  # sessions and groups that it goes to
    why: str  # what is wrong with it; empty: nothing

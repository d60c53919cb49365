"""The bodies of frames, by kind.

    HINT      Hint: the progress of a number
    MESSAGES  a list of entries, each a message; whoever routes them knows their form
    OUTBOX    Outbox: entries of an outbox, which are committed
    RELEASE   a list of Release: sessions that the sender asks the receiver to release
    RELEASED  a list of Released: the answers
    PING      a number of 8 bytes, which PONG returns

A list of entries is their number, their sizes and then their bytes: it is taken apart by calls
that loop in C, 40 ns an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Any, Final

from mqtt_broker.cluster.frames.layout import (
    HINT,
    MESSAGES,
    OUTBOX,
    PING,
    PONG,
    RELEASE,
    RELEASED,
)

ENTRIES_MAX: Final = 65_536
CLIENT_ID_BYTES_MAX: Final = 65_535
_COUNT: Final = Struct(">I")
_SIZE_BYTES: Final = 4
_HINT: Final = Struct(">QQQQQ")
_OUTBOX: Final = Struct(">QQQ")
_RELEASE: Final = Struct(">Q")
_RELEASED: Final = Struct(">QB")
_PING: Final = Struct(">Q")

# What became of a request for release.
OFFERED: Final = 1  # the session is in the database, for the one who asked
NOT_MINE: Final = 2  # this node does not have it: read the owner again
LATER: Final = 3  # it is being flushed, or moved to somebody else: ask again
_OUTCOMES: Final = frozenset((OFFERED, NOT_MINE, LATER))


class MalformedBody(Exception):
    """The body is not one of its kind."""


class Hint:
    """The progress of a number. The others read in the database what is behind it.

    The last two are about the receiver: a hint for all has none of them.
    """

    __slots__ = ("committed", "filters", "known", "outbox", "settings")

    def __init__(
        self, committed: int, filters: int, settings: int, outbox: int = 0, known: int = 0
    ) -> None:
        self.committed = committed  # the last committed group
        self.filters = filters  # the version of its filters
        self.settings = settings  # the version of what all nodes have to know: bans, rules
        self.outbox = outbox  # the last committed entry for the receiver
        self.known = known  # the version of the receiver's filters by which it routes

    def encode(self) -> bytes:
        """Return the body of a frame."""
        return _HINT.pack(self.committed, self.filters, self.settings, self.outbox, self.known)


class Outbox:
    """Consecutive entries from one outbox, of a group that is committed."""

    __slots__ = ("entries", "filters", "first", "turn")

    def __init__(self, turn: int, filters: int, first: int, entries: Sequence[bytes]) -> None:
        self.turn = turn  # of the sender's transaction
        self.filters = filters  # the version of the receiver's filters by which they were routed
        self.first = first  # the number of the first entry
        self.entries = entries

    def encode(self) -> bytes:
        """Return the body of a frame."""
        return _OUTBOX.pack(self.turn, self.filters, self.first) + encode_entries(self.entries)


class Release:
    """A request: release the session of this client, which you have had since this tenure."""

    __slots__ = ("client_id", "tenure")

    def __init__(self, tenure: int, client_id: str) -> None:
        self.tenure = tenure
        self.client_id = client_id


class Released:
    """The answer to a `Release`."""

    __slots__ = ("client_id", "outcome", "tenure")

    def __init__(self, tenure: int, outcome: int, client_id: str) -> None:
        self.tenure = tenure
        self.outcome = outcome
        self.client_id = client_id


def encode_entries(entries: Sequence[bytes]) -> bytes:
    """Return a list of entries as the body of a frame."""
    return pack(f">{len(entries) + 1}I", len(entries), *map(len, entries)) + b"".join(entries)


def encode_releases(releases: Sequence[Release]) -> bytes:
    """Return requests as the body of a frame."""
    return encode_entries([_RELEASE.pack(one.tenure) + one.client_id.encode() for one in releases])


def encode_released(answers: Sequence[Released]) -> bytes:
    """Return answers as the body of a frame."""
    return encode_entries(
        [_RELEASED.pack(one.tenure, one.outcome) + one.client_id.encode() for one in answers]
    )


def encode_ping(number: int) -> bytes:
    """Return the body of a PING or a PONG."""
    return _PING.pack(number)


def decode_entries(body: memoryview, at: int = 0) -> list[bytes]:
    """Return the entries of a list that begins at this place and ends with the body."""
    begin = at + _COUNT.size
    if len(body) < begin:
        raise MalformedBody
    (count,) = _COUNT.unpack_from(body, at)
    at = begin + _SIZE_BYTES * count
    if count > ENTRIES_MAX or at > len(body):
        raise MalformedBody
    sizes: tuple[int, ...] = unpack_from(f">{count}I", body, begin)
    if sum(sizes) != len(body) - at:
        raise MalformedBody
    data = bytes(body)
    ends = list(accumulate(sizes, initial=at))
    return [data[start:end] for start, end in pairwise(ends)]


def decode(kind: int, body: memoryview) -> Any:
    """Return the body of a frame of a known kind."""
    return _DECODERS[kind](body)


def _decode_hint(body: memoryview) -> Hint:
    if len(body) != _HINT.size:
        raise MalformedBody
    return Hint(*_HINT.unpack(body))


def _decode_outbox(body: memoryview) -> Outbox:
    entries = decode_entries(body, _OUTBOX.size)
    turn, filters, first = _OUTBOX.unpack_from(body)
    if not entries:
        raise MalformedBody
    return Outbox(turn, filters, first, entries)


def _decode_releases(body: memoryview) -> list[Release]:
    found = []
    for entry in decode_entries(body):
        client_id = _client_id(entry, _RELEASE.size)
        (tenure,) = _RELEASE.unpack_from(entry)
        found.append(Release(tenure, client_id))
    return found


def _decode_released(body: memoryview) -> list[Released]:
    found = []
    for entry in decode_entries(body):
        client_id = _client_id(entry, _RELEASED.size)
        tenure, outcome = _RELEASED.unpack_from(entry)
        if outcome not in _OUTCOMES:
            raise MalformedBody
        found.append(Released(tenure, outcome, client_id))
    return found


def _client_id(entry: bytes, at: int) -> str:
    if not at < len(entry) <= at + CLIENT_ID_BYTES_MAX:
        raise MalformedBody
    try:
        return entry[at:].decode()
    except UnicodeDecodeError:
        raise MalformedBody from None


def _decode_ping(body: memoryview) -> int:
    if len(body) != _PING.size:
        raise MalformedBody
    (number,) = _PING.unpack(body)
    return int(number)


_DECODERS: Final[dict[int, Callable[[memoryview], Any]]] = {
    HINT: _decode_hint,
    MESSAGES: decode_entries,
    OUTBOX: _decode_outbox,
    RELEASE: _decode_releases,
    RELEASED: _decode_released,
    PING: _decode_ping,
    PONG: _decode_ping,
}

"""Drops, refusals and connections: a ring in which each client has a share.

A client that has used up its share of the newest segment writes to a small ring of its own from
then on, and overwrites nothing but its own evidence. Refused connections of clients without a
session, which anybody can make up, have a ring to themselves.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.recorder.runs import ClientRuns
from mqtt_broker.recorder.segments import (
    CLIENT_TAG,
    EVIDENCE,
    EVIDENCE_CELL,
    NUMBERS,
    Segment,
    SegmentRing,
)

SEGMENTS: Final = 4
CELLS_EACH: Final = 16  # of a client, in one segment of the common ring
_SHARE_BYTES: Final = 2 * 2 * 2048  # of the ring of one client: two segments
_SHARE_OVERHEAD_BYTES: Final = 2_000
_RECENT_MAX: Final = 4_096
IN_SHARE: Final = -1  # in place of a generation


class Evidence:
    """Keeps what was dropped and refused, and who came and went."""

    __slots__ = (
        "_lost_ms",
        "_recent",
        "_shares_bytes_max",
        "_shares_max",
        "common",
        "shares",
        "strangers",
    )

    def __init__(self, bytes_max: int) -> None:
        self.common = SegmentRing(EVIDENCE_CELL, bytes_max // 2, SEGMENTS)
        self.strangers = SegmentRing(EVIDENCE_CELL, bytes_max // 8, 2)
        self._shares_bytes_max = bytes_max * 3 // 8
        self._shares_max = max(1, self._shares_bytes_max // (_SHARE_BYTES + _SHARE_OVERHEAD_BYTES))
        self.shares: dict[str, SegmentRing] = {}  # by client id, in the order they were made in
        self._lost_ms = 0  # what was in shares before this time may be lost
        # Of sessions that have ended, their places: the next one of the client goes on with them.
        self._recent: dict[str, tuple[int, int]] = {}

    def write(
        self,
        client: ClientRuns,
        kind: int,
        code: int,
        topic: str,
        other: str,
        now_ms: int,
        *,
        are_texts: bool,
        count: int = 1,
        first: int = 0,
        last: int = 0,
        is_stranger: bool = False,
    ) -> tuple[Segment, int]:
        """Write a cell of a client; returns where, so that the next equal one extends it.

        `are_texts`: `topic` and `other` are details, not a topic and a publisher.
        """
        segment = self._segment_for(client, now_ms, is_stranger=is_stranger)
        if is_stranger:
            number = segment.number_client(client.client_id)
        else:
            number = self._number(client, segment)
        about = 0
        if topic:
            about = segment.number_text(topic) if are_texts else segment.number_topic(topic)
        by = segment.number_text(other) if other else 0
        offset = segment.reserve()
        at = now_ms - segment.base_ms
        EVIDENCE.pack_into(
            segment.cells, offset, at, number, about, by, count, first, last, 0, kind, code
        )
        if segment.name_bytes > _SHARE_BYTES and client.evident_in == IN_SHARE:
            self._trim_shares(client.client_id, now_ms)
        return segment, offset

    def _segment_for(self, client: ClientRuns, now_ms: int, *, is_stranger: bool) -> Segment:
        if is_stranger:
            return self.strangers.writable(now_ms)
        if not client.evident_in:
            self._find_place(client)
        if client.evident_in == IN_SHARE:
            share = self.shares.get(client.client_id)
            if share is not None:
                return share.writable(now_ms)
            client.move_evidence(0)  # somebody else needed it
        segment = self.common.writable(now_ms)
        if client.evident_in == segment.generation:
            if segment.spent[client.evident_as & NUMBERS] >= CELLS_EACH:
                return self._open_share(client, now_ms).writable(now_ms)
        return segment

    def _find_place(self, client: ClientRuns) -> None:
        """Find where an earlier session of the client wrote."""
        if client.client_id in self.shares:
            client.move_evidence(IN_SHARE)
        else:
            place, number = self._recent.pop(client.client_id, (0, 0))
            client.move_evidence(place, number)

    def _open_share(self, client: ClientRuns, now_ms: int) -> SegmentRing:
        """Make the ring of a client; the oldest of such rings goes if there are too many."""
        while len(self.shares) >= self._shares_max:
            del self.shares[next(iter(self.shares))]
            self._lost_ms = now_ms
        share = self.shares[client.client_id] = SegmentRing(EVIDENCE_CELL, _SHARE_BYTES, 2)
        client.move_evidence(IN_SHARE)
        return share

    def _trim_shares(self, client_id: str, now_ms: int) -> None:
        """Drop the oldest rings of other clients if long names made the rings too large."""
        size = self._shares_bytes
        for other in list(self.shares):
            if size <= self._shares_bytes_max:
                return
            if other != client_id:
                size -= _SHARE_OVERHEAD_BYTES + self.shares.pop(other).bytes
                self._lost_ms = now_ms

    @property
    def _shares_bytes(self) -> int:
        overhead = len(self.shares) * _SHARE_OVERHEAD_BYTES
        return overhead + sum(ring.bytes for ring in self.shares.values())

    def _number(self, client: ClientRuns, segment: Segment) -> int:
        """Return the number of a client in the segment that it writes to."""
        if client.evident_in == IN_SHARE:  # of which it is the only client
            return CLIENT_TAG if segment.clients else segment.number_client(client.client_id)
        return client.number_evidence_in(segment)

    def end_session(self, client: ClientRuns) -> None:
        """Remember the place of a client whose session has ended."""
        if client.evident_in > 0:
            while len(self._recent) >= _RECENT_MAX:
                del self._recent[next(iter(self._recent))]
            self._recent[client.client_id] = (client.evident_in, client.evident_as)

    def current_of(self, client: ClientRuns) -> Segment | None:
        """Return the segment that a client wrote to last, if it is still written to."""
        if client.evident_in == IN_SHARE:
            share = self.shares.get(client.client_id)
            return None if share is None else share.current
        return self.common.current

    def rings_of(self, client_id: str) -> list[SegmentRing]:
        """Return the rings that may have evidence of a client."""
        share = self.shares.get(client_id)
        rings = [self.common, self.strangers]
        return rings if share is None else [*rings, share]

    def sees_back_to_ms(self, client_id: str) -> int:
        """Return the time from which on the evidence of a client is complete; 0: the start."""
        rings = self.rings_of(client_id)
        return max([self._lost_ms] + [ring.begins_ms for ring in rings])

    @property
    def bytes(self) -> int:
        """The bytes in use."""
        return self._shares_bytes + self.common.bytes + self.strangers.bytes

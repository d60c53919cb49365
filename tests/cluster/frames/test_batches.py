"""Entries leave in frames of about 32 KB, in their order, the last ones at the end of the turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.frames.batches import BATCH_BYTES, ENTRY_BYTES_MAX, Batches
from mqtt_broker.cluster.frames.bodies import ENTRIES_MAX, decode_entries
from mqtt_broker.cluster.frames.layout import FRAME_BYTES_MAX, OVERHEAD_BYTES
from tests.property_examples import examples


class Sent:
    """The frames that were sent."""

    def __init__(self) -> None:
        self.bodies: list[tuple[int, bytes]] = []
        self.is_up = True
        self.batches = Batches(self._send)

    def _send(self, to: int, body: bytes) -> bool:
        if self.is_up:
            self.bodies.append((to, body))
        return self.is_up

    def entries(self, to: int) -> list[bytes]:
        return [
            entry
            for one, body in self.bodies
            for entry in decode_entries(memoryview(body))
            if one == to
        ]


@examples(100)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40_000)), max_size=60))
def test_entries_arrive_whole_and_in_order(added: list[tuple[int, int]]) -> None:
    sent = Sent()
    for to, size in added:
        sent.batches.add(to, bytes(size))
    sent.batches.flush()
    for to in (1, 2, 3):
        assert [len(one) for one in sent.entries(to)] == [size for one, size in added if one == to]
    for _, body in sent.bodies:
        entries = decode_entries(memoryview(body))
        assert entries
        assert len(body) <= BATCH_BYTES + 8 or len(entries) == 1


def test_a_full_frame_leaves_at_once_and_the_rest_with_the_turn() -> None:
    sent = Sent()
    for _ in range(300):
        sent.batches.add(1, bytes(128))
    assert len(sent.bodies) == 1
    sent.batches.flush()
    assert len(sent.bodies) == 2 and len(sent.entries(1)) == 300
    sent.batches.flush()
    assert len(sent.bodies) == 2


def test_many_empty_entries_are_bounded() -> None:
    sent = Sent()
    for _ in range(ENTRIES_MAX):
        sent.batches.add(1, b"")
    sent.batches.flush()
    assert len(sent.entries(1)) == ENTRIES_MAX
    assert all(len(body) <= BATCH_BYTES + 8 for _, body in sent.bodies)


def test_what_no_frame_can_hold_is_counted_and_no_other_entry_waits_for_it() -> None:
    sent = Sent()
    sent.batches.add(1, b"before")
    sent.batches.add(1, bytes(ENTRY_BYTES_MAX + 1))
    sent.batches.add(1, bytes(ENTRY_BYTES_MAX))
    sent.batches.add(1, b"behind")
    sent.batches.flush()
    assert sent.batches.too_large == 1
    assert [len(one) for one in sent.entries(1)] == [6, ENTRY_BYTES_MAX, 6]
    assert max(len(body) for _, body in sent.bodies) == FRAME_BYTES_MAX - OVERHEAD_BYTES


def test_entries_of_frames_that_are_not_sent_are_counted() -> None:
    sent = Sent()
    sent.is_up = False
    for entry in (b"one", b"two"):
        sent.batches.add(1, entry)
    sent.batches.flush()
    assert sent.batches.dropped == 2 and not sent.bodies

"""A reader takes what a node of its cluster wrote for it, once, and says why it drops the rest."""

from __future__ import annotations

import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.frames import layout
from mqtt_broker.cluster.frames.bodies import Hint, encode_entries, encode_ping
from mqtt_broker.cluster.frames.layout import ALL, FRAME_BYTES_MAX, OVERHEAD_BYTES, Drop, FrameKey
from mqtt_broker.cluster.frames.reader import Frame, FrameReader
from mqtt_broker.cluster.frames.repeats import WINDOW
from mqtt_broker.cluster.frames.writer import FrameWriter
from tests.cluster.frames import world
from tests.property_examples import examples

ENTRIES: Final = [b"one", b"", b"three"]
BODY: Final = encode_entries(ENTRIES)


def taken(found: Frame | Drop) -> Frame:
    assert isinstance(found, Frame), found
    return found


def write(writer: FrameWriter, kind: int = layout.MESSAGES, body: bytes = BODY) -> bytes:
    found = writer.write(kind, 2, body)
    assert found is not None
    return found


def test_a_frame_is_taken_with_what_was_written() -> None:
    reader = world.reader()
    frame = taken(reader.read(write(world.writer())))
    assert (frame.kind, frame.sender, frame.to, frame.body) == (layout.MESSAGES, 1, 2, ENTRIES)
    assert reader.taken == 1 and not any(reader.dropped.values())


def test_a_hint_goes_to_all() -> None:
    data = world.writer().write(layout.HINT, ALL, Hint(1, 2, 3).encode())
    assert data is not None
    frame = taken(world.reader().read(memoryview(data)))
    assert (frame.to, frame.body.committed, frame.body.filters, frame.body.settings) == (0, 1, 2, 3)


@examples(200)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_never_taken(place: int, change: int) -> None:
    data = bytearray(write(world.writer()))
    data[place % len(data)] ^= change
    assert isinstance(world.reader().read(bytes(data)), Drop)


def test_a_cut_frame_is_never_taken() -> None:
    data = write(world.writer())
    reader = world.reader()
    for size in range(len(data)):
        assert reader.read(data[:size]) is Drop.CUT
        assert reader.read(data + data[:size] + b"x") is Drop.CUT
    assert reader.dropped[Drop.CUT] == 2 * len(data)


@examples(300)
@given(st.binary(max_size=200))
def test_bytes_of_others_are_never_taken(data: bytes) -> None:
    assert isinstance(world.reader().read(data), Drop)
    assert isinstance(world.reader().read(layout.MAGIC + b"\x01" + data), Drop)


def test_who_has_no_secret_forges_nothing() -> None:
    """Only NATS is open to them: they know the cluster's name, numbers and epochs."""
    reader = world.reader()
    other = FrameKey("fleet", bytes(16))
    assert reader.read(write(world.writer(key=other))) is Drop.FORGED
    assert reader.read(write(world.writer(key=FrameKey("flee", world.SECRET)))) is (
        Drop.OTHER_CLUSTER
    )


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret has 15 bytes: at least 16 needed"):
        FrameKey("fleet", bytes(15))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (world.sealed(BODY, version=2), Drop.UNKNOWN_VERSION),
        (world.sealed(BODY, kind=200), Drop.UNKNOWN_KIND),
        (world.sealed(BODY, to=ALL), Drop.NOT_FOR_ALL),
        (world.sealed(BODY, to=7), Drop.OTHER_RECEIVER),
        (world.sealed(BODY, size=len(BODY) + 1), Drop.CUT),
        (world.sealed(BODY[:-1]), Drop.MALFORMED),
        (world.sealed(bytes(FRAME_BYTES_MAX - OVERHEAD_BYTES + 1)), Drop.OVERSIZED),
        (b"GET / HTTP/1.1\r\n", Drop.NOT_A_FRAME),
        (b"", Drop.CUT),
    ],
)
def test_each_reason_is_counted(data: bytes, reason: Drop) -> None:
    reader = world.reader()
    assert reader.read(data) is reason
    assert {one: count for one, count in reader.dropped.items() if count} == {reason: 1}


def test_frames_of_old_epochs_are_dropped() -> None:
    writer, reader = world.writer(), world.reader()
    taken(reader.read(write(writer)))
    reader.set_senders({1: "a later one"})
    assert reader.read(write(writer)) is Drop.SENDER_EPOCH
    reader.set_senders({})
    assert reader.read(write(writer)) is Drop.UNKNOWN_SENDER
    reader.set_senders({1: world.EPOCHS[1]})
    reader.set_hosted({2: "a later one"})
    assert reader.read(write(writer)) is Drop.RECEIVER_EPOCH
    writer.set_receivers({2: "a later one"})
    taken(reader.read(write(writer)))


def test_a_node_that_starts_anew_takes_nothing_that_its_predecessor_got() -> None:
    """Its predecessor knew what had come; it does not."""
    writer = world.writer()
    kept = write(writer)
    again = world.reader()
    again.set_hosted({2: "its second epoch"})
    assert again.read(kept) is Drop.RECEIVER_EPOCH


def test_a_number_can_be_hosted_again_under_another_epoch() -> None:
    writer, reader = world.writer(), world.reader()
    for _ in range(5):
        taken(reader.read(write(writer)))
    reader.set_hosted({2: "second"})
    other = FrameWriter(world.KEY, 1, world.EPOCHS[1])
    other.set_receivers({2: "second"})
    taken(reader.read(write(other)))


def test_several_numbers_are_hosted_at_once() -> None:
    reader = FrameReader(world.KEY)
    reader.set_hosted({2: "b", 3: "c"})
    reader.set_senders({1: world.EPOCHS[1]})
    writer = FrameWriter(world.KEY, 1, world.EPOCHS[1])
    writer.set_receivers({2: "b", 3: "c"})
    for number in (2, 3, 2, 3):
        data = writer.write(layout.PING, number, encode_ping(9))
        assert data is not None and taken(reader.read(data)).to == number
    assert reader.missing == 0


def test_messages_are_taken_once_and_in_order() -> None:
    writer, reader = world.writer(), world.reader()
    first, second, third = (write(writer) for _ in range(3))
    taken(reader.read(first))
    taken(reader.read(third))
    assert reader.missing == 1
    assert reader.read(third) is Drop.REPEATED
    assert reader.read(second) is Drop.LATE
    assert reader.read(second) is Drop.REPEATED
    assert reader.missing == 0


def test_messages_are_not_late_behind_other_kinds() -> None:
    writer, reader = world.writer(), world.reader()
    messages = write(writer)
    taken(reader.read(write(writer, layout.PING, encode_ping(1))))
    taken(reader.read(messages))


@examples(100)
@given(st.integers(0, 2**32))
def test_other_kinds_are_taken_once_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    writer, reader = world.writer(), world.reader()
    frames = [write(writer, layout.PING, encode_ping(at)) for at in range(40)]
    came = [frame for frame in frames if rng.random() < 0.8]
    came += rng.choices(frames, k=20)
    rng.shuffle(came)
    bodies = [found.body for one in came if isinstance(found := reader.read(one), Frame)]
    assert sorted(bodies) == sorted({frames.index(one) for one in came})
    assert reader.dropped[Drop.REPEATED] == len(came) - len(bodies)


def test_the_memory_of_what_came_is_bounded() -> None:
    reader = world.reader()
    ping = encode_ping(1)
    taken(reader.read(world.sealed(ping, kind=layout.PING, sequence=1)))
    taken(reader.read(world.sealed(ping, kind=layout.PING, sequence=2**63)))
    near, far = 2**63 - WINDOW + 1, 2**63 - WINDOW
    taken(reader.read(world.sealed(ping, kind=layout.PING, sequence=near)))
    assert reader.read(world.sealed(ping, kind=layout.PING, sequence=near)) is Drop.REPEATED
    assert reader.read(world.sealed(ping, kind=layout.PING, sequence=far)) is Drop.LATE


def test_what_is_dropped_elsewhere_is_counted_here() -> None:
    reader = world.reader()
    reader.drop(Drop.OVERSIZED)
    assert reader.dropped[Drop.OVERSIZED] == 1

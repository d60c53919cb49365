"""A writer counts its frames so that no reader ever takes one for another."""

from __future__ import annotations

from mqtt_broker.cluster.frames import layout
from mqtt_broker.cluster.frames.bodies import encode_ping
from mqtt_broker.cluster.frames.layout import ALL, HEADER, FrameKey
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.cluster.frames.writer import FrameWriter
from tests.cluster.frames import world

PING = encode_ping(1)


def sequence(data: bytes | None) -> int:
    assert data is not None
    return int(HEADER.unpack_from(data)[6])


def test_a_number_that_nobody_hosts_gets_nothing() -> None:
    assert world.writer().write(layout.PING, 3, PING) is None


def test_frames_are_counted_for_each_receiver() -> None:
    writer = world.writer()
    writer.set_receivers({2: "b", 3: "c"})
    found = [sequence(writer.write(layout.PING, to, PING)) for to in (2, 3, 2, ALL, 3, 2)]
    assert found == [1, 1, 2, 1, 2, 3]


def test_a_receiver_that_was_away_takes_what_comes_then() -> None:
    writer, reader = world.writer(), world.reader()
    for _ in range(3):
        assert isinstance(reader.read(writer.write(layout.PING, 2, PING) or b""), Frame)
    writer.set_receivers({})
    writer.set_receivers({2: world.EPOCHS[2]})
    assert isinstance(reader.read(writer.write(layout.PING, 2, PING) or b""), Frame)


def test_learning_of_others_does_not_begin_anew() -> None:
    writer = world.writer()
    assert sequence(writer.write(layout.PING, 2, PING)) == 1
    writer.set_receivers({2: world.EPOCHS[2], 3: "c"})
    assert sequence(writer.write(layout.PING, 2, PING)) == 2


def test_the_version_can_be_held_back() -> None:
    writer = world.writer()
    writer.set_version(7)
    data = writer.write(layout.PING, 2, PING)
    assert data is not None and data[2] == 7


def test_two_clusters_write_different_frames() -> None:
    frames = set()
    for key in (world.KEY, FrameKey("other", world.SECRET), FrameKey("fleet", bytes(16))):
        writer = FrameWriter(key, 1, "a")
        frames.add(writer.write(layout.HINT, ALL, bytes(24)))
    assert len(frames) == 3

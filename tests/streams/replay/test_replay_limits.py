"""Readers of streams within limits: how many, how much memory, how many files; late reads."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from mqtt_broker.codec import reasons
from tests.core.peers import unsubscribe
from tests.streams.replaying import (
    STREAM,
    V5,
    ReplayLimits,
    Replays,
    acknowledge,
    drain,
    got,
    numbers,
    payloads,
    subscribe,
)


def test_too_many_readers(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s", limits=ReplayLimits(readers_max=2, groups_max=1))
    one = world.client("one")
    assert subscribe(one) == 0
    assert subscribe(one, f"$share/g/{STREAM}") == 0
    assert subscribe(one, f"{STREAM}/@latest") == reasons.QUOTA_EXCEEDED
    assert subscribe(one, STREAM, "latest") == 0
    one.send(unsubscribe(V5, STREAM))
    one.take()
    assert subscribe(one, f"$share/h/{STREAM}") == reasons.QUOTA_EXCEEDED
    world.close()


@pytest.mark.parametrize("ends_session", [False, True])
def test_a_reader_that_went_leaves_nothing_behind(world: Replays, ends_session: bool) -> None:
    """Not in the window either: the collector comes so seldom that it would be a leak."""
    world.put(*numbers(0, 200))
    peer = world.client("c")
    gc.disable()
    try:
        subscribe(peer, qos=1)
        world.settle()
        assert len(got(peer)) == 200
        session = world.broker.sessions.get("c")
        assert session is not None and session.outbound.sources is not None
        [feed] = session.outbound.sources
        lost = weakref.ref(feed)
        del feed
        if ends_session:
            peer.drop()
        else:
            peer.send(unsubscribe(V5, STREAM))
        assert lost() is None
    finally:
        gc.enable()


def test_pages_and_files_are_bounded(tmp_path: Path) -> None:
    world = Replays(
        tmp_path / "s",
        partitions=4,
        stream={"partition_by": "round-robin"},
        limits=ReplayLimits(buffered_bytes_max=400_000, files_max=3),
    )
    for number in range(20):
        world.put(*[b"%d " % number + bytes(1000)] * 40)
    peers = [world.client(f"c{number}", receive_maximum=2) for number in range(8)]
    for peer in peers:
        subscribe(peer, qos=1)
        assert world.replay.context.read_ahead.bytes < 800_000
        assert world.replay.context.read_ahead.files <= 4
    for peer in peers:
        found = drain(peer)
        assert len(found) == 800
        for partition in range(4):
            offsets = [record.offset for record in found if record.partition == partition]
            assert offsets == list(range(200))
    world.close()


def test_reads_that_are_late_are_void(world: Replays) -> None:
    world.put(*numbers(0, 5))
    one = world.client("one", expiry=100)
    world.holds_reads = True
    subscribe(one, qos=1)
    assert len(world.reads) == 1
    one.drop()
    one = world.client("one", clean=False, expiry=100)
    assert len(world.reads) == 1  # the first has to come back before the next
    world.holds_reads = False
    world.settle()
    assert [record.payload for record in drain(one)] == numbers(0, 5)
    world.put(b"5")
    world.holds_reads = True
    acknowledge(one, *got(one))
    world.put(b"6")
    one.send(unsubscribe(V5, STREAM))
    world.holds_reads = False
    world.settle()
    assert not world.replay.context.read_ahead.files and not world.replay.context.read_ahead.bytes


def test_files_that_cannot_be_opened_are_tried_again(
    world: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(*numbers(0, 3))

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mqtt_broker.streams.replay.pages.Reader", fails)
    one = world.client("one")
    subscribe(one)
    assert not got(one)
    monkeypatch.undo()
    world.wait(2)
    assert payloads(one) == numbers(0, 3)
    assert any("Too many open files" in line for line in world.lines)
